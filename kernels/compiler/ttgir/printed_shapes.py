"""Shapes as TTGIR prints them: which operation prints which, and the same text with a smaller one.

Every type with a shape is printed as ``tensor<128x64xf32, …>``, ``!ttg.memdesc<…>`` or ``!tt.tensordesc<…>`` (around a
tensor type up to Triton 3.8, around the shape itself since), so a shape is the token after ``<`` that starts ``128x``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from warpplan.kernels.compiler.ttgir.control import read_branch, read_loop, read_while
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region, is_value, tokenize

_SHAPE = re.compile(r"(?:\d+x)+")


DESCRIPTOR = "!tt.tensordesc"


@dataclass(frozen=True)
class Printed:
    """A shape printed in an operation's own text: ``at`` is its token's position in the list that was searched."""

    at: int
    shape: tuple[int, ...]


def shapes_in(parts: list[str | Region]) -> list[Printed]:
    """Every shape printed in ``parts``, in order; those of regions and of attribute dictionaries left out: the type of
    a ``tt.divisibility`` is no tile's."""
    found, braces = [], 0
    for i, part in enumerate(parts):
        braces += (part == "{") - (part == "}")
        match = _SHAPE.match(part) if isinstance(part, str) and not braces else None
        if match and i >= 2 and parts[i - 1] == "<" and parts[i - 2] != "dense":
            found.append(Printed(i, tuple(int(n) for n in match.group()[:-1].split("x"))))
    return found


def sliced(token: str, dim: int, size: int) -> str:
    """The shape's token with ``size`` along ``dim``: ``128x64xf32`` to ``64x64xf32``."""
    match = _SHAPE.match(token)
    assert match is not None, token
    numbers = match.group()[:-1].split("x")
    numbers[dim] = str(size)
    return "x".join(numbers) + "x" + token[match.end() :]


def result_shapes(operation: IrOperation) -> dict[str, tuple[int, ...]]:
    """The shape of each result that has one. For a loop also that of what it carries, by the names inside."""
    if operation.name == "scf.for":
        carried = read_loop(operation).carried
        named = [(name, kind) for inside, _, kind, result in carried for name in (inside, result)]
    elif operation.name == "scf.while":
        loop = read_while(operation)
        named = [(inside, kind) for inside, _, kind in loop.carried]
        named += [(name, kind) for inside, kind, result in loop.handed for name in (inside, result)]
    elif operation.name == "scf.if":
        named = [(result, kind) for kind, result in read_branch(operation).results]
    else:
        return _plain_shapes(operation)
    shapes = {name: shapes_in(list(tokenize(kind))) for name, kind in named if not kind.startswith(DESCRIPTOR)}
    return {name: printed[0].shape for name, printed in shapes.items() if printed}


def _plain_shapes(operation: IrOperation) -> dict[str, tuple[int, ...]]:
    names, parts = operation.defined, operation.parts
    printed = shapes_in(parts)
    if not names or not printed or operation.name == "tt.make_tensor_descriptor":
        return {}
    arrow = max((i for i, part in enumerate(parts) if part == "->"), default=-1)
    after = [p.shape for p in printed if p.at > arrow]
    if len(after) == 1 or (arrow < 0 and len(after) != len(names)):
        after = [printed[-1].shape] * len(names)  # one type for all: what is elementwise, and tt.split
    return dict(zip(names, after, strict=True)) if after else {}


def operand_list(operation: IrOperation) -> list[str]:
    """The values that it uses, those of a reduction's body left out."""
    if operation.name in ('"tt.reduce"', '"tt.scan"'):
        parts = operation.tokens
        return [t for t in parts[: parts.index(")")] if is_value(t)]
    return operation.operands
