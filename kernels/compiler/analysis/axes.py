"""Which axes of an operation's operands and results are one and the same.

An operation is an iteration over axes 0, 1, …; each operand, result and printed type is indexed by some of them:
``tt.expand_dims {axis = 1}`` takes (0) to (0, –), ``tt.broadcast`` (0, –) to (0, 1), a reduction along 1 (0, –) to (0),
a product (0, –) · (–, –) to (0, –). Splitting an operation along an axis splits all that the axis indexes and leaves
the rest whole; a dimension without an axis, "–" or None, cannot be split.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from warpplan.kernels.compiler.analysis.operation_kinds import COPY_LOAD, RING_LOADS
from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.printed_shapes import operand_list, shapes_in

Axes = tuple[int | None, ...]
Shapes = dict[str, tuple[int, ...]]

_ELEMENTWISE = {
    "tt.addptr", "tt.fp_to_fp", "tt.bitcast", "tt.int_to_ptr", "tt.ptr_to_int", "tt.clampf", "tt.precise_sqrt",
    "tt.precise_divf", "tt.mulhiui", "tt.extern_elementwise", "tt.elementwise_inline_asm", "tt.splat", "tt.load",
    "tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.make_range", "ttg.convert_layout", "ttg.local_alloc",
    "ttg.local_load", "ub.poison",
}  # fmt: skip
_TRANSPOSED = {"tt.trans", "ttg.memdesc_trans"}
_PRODUCTS = {"tt.dot", "ttng.warp_group_dot"}
ATOMICS = {"tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_reduce"}
BOXED_WRITES = {"tt.descriptor_store", "tt.descriptor_reduce"}
STORES = {"tt.store", "tt.descriptor_store", "tt.descriptor_scatter", "tt.print", "tt.assert"}
_ONE_VALUE = {"arith.", "math.", "tt.", "ttg.", "ub."}


@dataclass(frozen=True)
class Rule:
    """The axes of an operation's operands that have a shape, of its results, and of the types that it prints."""

    operands: tuple[Axes, ...]
    results: tuple[Axes, ...]
    printed: tuple[Axes, ...]


def rule(operation: IrOperation, shapes: Shapes) -> Rule | None:
    """How ``operation`` may be split; None where it has to stay whole. ``shapes`` holds every value with a shape."""
    name = operation.name
    operands = tensor_operands(operation, shapes)
    results = [v for v in operation.defined if v in shapes]
    printed = [p.shape for p in shapes_in(operation.parts)]
    plain: list[Axes] = [tuple(range(len(shapes[v]))) for v in [*operands, *results]]
    text = "".join(operation.tokens)
    if name == "arith.constant":
        return (
            _same(0, len(results), 1, plain[0]) if plain and "dense<[" not in text and 'dense<"' not in text else None
        )
    if name.startswith(("arith.", "math.")) or name in _ELEMENTWISE:
        if len(set(plain)) > 1 or any(len(shape) != len(plain[0]) for shape in printed):
            return None
        return _same(len(operands), len(results), len(printed), plain[0]) if plain else None
    if name == "tt.expand_dims":
        axis, source = _number(text, "axis"), plain[0]
        result: Axes = (*source[:axis], None, *source[axis:])
        return Rule((source,), (result,), (source, result))
    if name == "tt.broadcast":
        kept = (i if a == b else None for i, (a, b) in enumerate(zip(*printed, strict=True)))
        source = tuple(kept)
        return Rule((source,), (plain[-1],), (source, plain[-1]))
    if name in _TRANSPOSED:
        result = tuple(int(n) for n in text.partition("order=array<i32:")[2].partition(">")[0].split(","))
        return Rule((plain[0],), (result,), (plain[0], result))
    if name in _PRODUCTS:
        rows: Axes = (0, None)
        whole: Axes = (None, None)
        extra = (rows,) * (len(operands) - 2)
        return Rule((rows, whole, *extra), (rows,), (rows, whole, rows)) if len(plain[0]) == 2 else None
    if name in ('"tt.reduce"', '"tt.scan"'):
        axis = _number(text, "axis")
        source = tuple(i if i != axis else None for i in plain[0])
        result = source if name == '"tt.scan"' else tuple(i for i in source if i is not None)
        n = len(operands)
        return Rule((source,) * n, (result,) * len(results), (source,) * n + (result,) * (len(printed) - n))
    if name == "tt.reshape" and "allow_reorder" not in text:
        source, result = _reshaped(*printed)
        return Rule((source,), (result,), (source, result))
    if name == "tt.join":
        return Rule((plain[0],) * 2, ((*plain[0], None),), (plain[0], (*plain[0], None)))
    if name == "tt.split":
        source = (*plain[0][:-1], None)
        return Rule((source,), (source[:-1],) * len(results), (source, source[:-1]))
    if name == "tt.descriptor_load":
        return Rule((), (plain[0],), ((None,) * len(printed[0]), plain[0]))
    if name == COPY_LOAD:
        return Rule((), (plain[0],), (plain[0],))
    if name in BOXED_WRITES:
        lead = len(printed[0]) - len(plain[0])  # a box may have leading dimensions of one that the tile has not
        box = (*(None,) * lead, *plain[0])
        return Rule((plain[0],), (), (box, plain[0]))
    return None


def tensor_operands(operation: IrOperation, shapes: Shapes) -> list[str]:
    """Its operands with a shape, in the order they are printed; a descriptor is none of them."""
    return [v for v in operand_list(operation) if v in shapes]


def effect(operation: IrOperation) -> str:
    """The operation's effect besides its results: "" nothing, so that it may be repeated or dropped; "store"; "once"
    where there must be one of it but it may be split; "other" where splitting the block's threads would
    change its meaning."""
    name, text = operation.name, "".join(operation.tokens)
    if name in STORES:
        return "store"
    if name in ATOMICS or name in RING_LOADS or (name == "tt.load" and "isVolatile=true" in text):
        return "once"
    if name in ("tt.extern_elementwise", "tt.elementwise_inline_asm"):
        return "" if "pure=true" in text else "other"
    if name in ("tt.call", "ttg.barrier", "ttg.local_barrier", "ttg.local_store") or "async" in name:
        return "other"
    if name == "ttng.warp_group_dot" or name.strip('"').startswith(tuple(_ONE_VALUE)):
        return ""
    return "other"


def _same(operands: int, results: int, printed: int, axes: Axes) -> Rule:
    return Rule((axes,) * operands, (axes,) * results, (axes,) * printed)


def _reshaped(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[Axes, Axes]:
    """In row-major order two dimensions are one where they are of one size and as much lies before them."""
    old = {(math.prod(before[:i]), size): i for i, size in enumerate(before) if size > 1}
    new = tuple(old.get((math.prod(after[:i]), size)) for i, size in enumerate(after))
    return tuple(i if i in new else None for i in range(len(before))), new


def _number(text: str, name: str) -> int:
    match = re.search(rf"\b{name}=(\d+)", text)
    assert match is not None, text
    return int(match.group(1))
