"""Values of a kernel: their types, and which of them follow the rows of its products.

Data partitions split a tile along the rows of its accumulators. A value follows them where operations that treat rows
alike (arithmetic, reductions along a row, layouts, loops) link it to a product's result, accumulator or first operand.
"""

from __future__ import annotations

from collections.abc import Iterable

from warpplan.kernels.compiler.analysis.operation_kinds import DOTS, FREE, operation_axis, result_types, short_name
from warpplan.kernels.compiler.ttgir.control import read_branch, read_loop, read_while, yielded
from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.types import ShapedType, find_types, parse_type

Types = dict[str, ShapedType | None]

_ROWS_KEPT = frozenset({"tt.broadcast", "tt.expand_dims", "arith.bitcast", "tt.bitcast", "ttg.memdesc_subslice"})


def value_types(function: IrOperation) -> Types:
    """By name, ``None`` for scalars; names are unique. Arguments of blocks other than a loop's are left out."""
    types: Types = {}
    head = function.parts[: next(i for i, p in enumerate(function.parts) if not isinstance(p, str))]
    name = ""
    for token in (p for p in head if isinstance(p, str)):
        if token.startswith("%"):
            name = token
            types[name] = None
    text = "".join(p for p in head if isinstance(p, str))
    for argument in text.split("%")[1:]:
        name, _, kind = argument.partition(":")
        shaped = find_types(kind)
        types["%" + name.strip()] = parse_type(shaped[0]) if shaped else None
    for operation in function.walk():
        if short_name(operation) == "scf.for":
            for inside, _, kind, outside in read_loop(operation).carried:
                types[inside] = types[outside] = parse_type(kind)
        elif short_name(operation) == "scf.while":
            repeat = read_while(operation)
            types.update((inside, parse_type(kind)) for inside, _, kind in repeat.carried)
            types.update(
                (name, parse_type(kind)) for inside, kind, result in repeat.handed for name in (inside, result)
            )
        elif short_name(operation) == "scf.if":
            for kind, outside in read_branch(operation).results:
                types[outside] = parse_type(kind)
        elif operation is not function and not operation.name.startswith("scf."):
            types.update(zip(operation.defined, result_types(operation), strict=True))
    return types


def row_values(function: IrOperation, types: Types) -> frozenset[str]:
    """The values whose first dimension is the rows of a product."""
    links, seeds = _Links(), []
    for operation in function.walk():
        name = short_name(operation)
        if name == "scf.for":
            loop = read_loop(operation)
            for (inside, initial, _, outside), back in zip(loop.carried, loop.yielded, strict=False):
                links.join((inside, initial, outside, back))
        elif name == "scf.while":
            repeat = read_while(operation)
            for (inside, initial, _), back in zip(repeat.carried, yielded(repeat.after), strict=False):
                links.join((inside, initial, back))
            for (inside, _, result), value in zip(repeat.handed, repeat.condition.operands[1:], strict=True):
                links.join((inside, value, result))
        elif name == "scf.if":
            branch = read_branch(operation)
            for region in (branch.then, branch.otherwise):
                for (_, outside), value in zip(branch.results, yielded(region), strict=False):
                    links.join((outside, value))
        elif name in DOTS:
            first, _, *more = operation.operands
            seeds += operation.defined or more[:1]
            links.join((first, *more[:1], *operation.defined))
        elif name not in FREE or name in _ROWS_KEPT:
            links.join(_alike(operation, name, types))
    roots = {links.root(seed) for seed in seeds}
    return frozenset(value for value in types if links.root(value) in roots)


def _alike(operation: IrOperation, name: str, types: Types) -> tuple[str, ...]:
    """The values of ``operation`` that have the same rows."""
    if name in ("tt.reduce", "tt.scan", "tt.expand_dims") and operation_axis(operation) == 0:
        return ()
    shaped = [(v, t) for v in (*operation.operands, *operation.defined) if (t := types.get(v)) is not None and t.shape]
    if not shaped:
        return ()
    shaped = [(v, t) for v, t in shaped if t.kind != "!tt.tensordesc"]
    most = max((t.shape[0] for _, t in shaped), default=0)
    return tuple(v for v, t in shaped if t.shape[0] == most)


class _Links:
    """Sets of values, joined as links are found."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def root(self, value: str) -> str:
        while (parent := self._parent.get(value, value)) != value:
            self._parent[value] = self._parent.get(parent, parent)
            value = parent
        return value

    def join(self, values: Iterable[str]) -> None:
        first, *others = [self.root(value) for value in values] or [""]
        for other in others:
            self._parent[other] = first
