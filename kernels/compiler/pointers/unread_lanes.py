"""Rows or columns of a loaded tile that reach nothing but rows or columns that no store writes.

A tile whose rows wrap (``% M``) holds other rows beyond the last one. That they may as well be zeros takes following
them: a row of the left operand of a product is that row of its result, elementwise arithmetic keeps it, and a store
masked by the same bound leaves it out.
"""

from __future__ import annotations

from warpplan.kernels.compiler.analysis.axes import rule, tensor_operands
from warpplan.kernels.compiler.pointers.affine_tiles import Caveat, NotAffine, TileReader
from warpplan.kernels.compiler.pointers.tile_masks import implied_bounds
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.printed_shapes import operand_list

_LOOPS = ("scf.for", "scf.while", "scf.if")
_WRITES = {"tt.store": 2, "tt.atomic_rmw": 2}
"""Position of the mask among the operands; what is stored stands before it."""


class Users:
    """Who uses each value of a kernel, and where a loop or branch hands it."""

    def __init__(self, function: IrOperation) -> None:
        self.readers: dict[str, list[IrOperation]] = {}
        self.handed: dict[str, list[str]] = {}
        for operation in function.walk():
            if operation.name == "scf.for":
                loop = control.read_loop(operation)
                for (inside, initial, _, outside), back in zip(loop.carried, loop.yielded, strict=False):
                    for source in (initial, back):
                        self.handed.setdefault(source, []).extend((inside, outside))
            elif operation.name == "scf.if":
                branch = control.read_branch(operation)
                for region in (branch.then, branch.otherwise):
                    for (_, outside), value in zip(branch.results, control.yielded(region), strict=False):
                        self.handed.setdefault(value, []).append(outside)
            elif operation.name == "scf.while":
                repeat = control.read_while(operation)
                for (inside, initial, _), back in zip(repeat.carried, control.yielded(repeat.after), strict=False):
                    for source in (initial, back):
                        self.handed.setdefault(source, []).append(inside)
                for (inside, _, outside), value in zip(repeat.handed, repeat.condition.operands[1:], strict=True):
                    self.handed.setdefault(value, []).extend((inside, outside))
            if operation.name not in ("tt.func", "scf.yield", *_LOOPS):
                for name in dict.fromkeys(operand_list(operation)):
                    self.readers.setdefault(name, []).append(operation)


def require_unread(tiles: TileReader, users: Users, name: str, caveat: Caveat) -> None:
    """Raise :class:`NotAffine` with the operation where the positions of the tile ``name`` from ``caveat.limit`` on
    could matter."""
    seen: set[tuple[str, int]] = set()
    waiting = [(name, caveat.dim)]
    while waiting:
        value, dim = waiting.pop()
        if (value, dim) in seen:
            continue
        seen.add((value, dim))
        waiting += [(other, dim) for other in users.handed.get(value, ())]
        for operation in users.readers.get(value, ()):
            if operation.name in _WRITES:
                _require_masked(tiles, operation, value, Caveat(dim, caveat.limit))
                if not operation.results:
                    continue
            waiting += _followed(tiles, operation, value, dim)


def _followed(tiles: TileReader, operation: IrOperation, value: str, dim: int) -> list[tuple[str, int]]:
    """The results of ``operation`` in which the positions of ``value`` along ``dim`` are, and along which dimension."""
    refusal = NotAffine("what its rows or columns beyond the bound hold could reach memory through it", operation)
    if operation.name == "tt.dot":
        left, right, start = operation.operands[:3]
        if (value == left and dim == 1) or (value == right and dim == 0):
            raise refusal
        return [(operation.result, dim)] if value in (left, right, start) else []
    shapes = {n: s for n in (*operand_list(operation), *operation.defined) if (s := tiles.shape(n))}
    known = rule(operation, shapes)
    if known is None or not operation.results:
        raise refusal
    found = []
    for operand, axes in zip(tensor_operands(operation, shapes), known.operands, strict=False):
        if operand != value:
            continue
        axis = axes[dim]
        for result, indexed in zip(operation.defined, known.results, strict=False):
            if axis is None or axis not in indexed:
                raise refusal
            found.append((result, indexed.index(axis)))
    return found


def _require_masked(tiles: TileReader, operation: IrOperation, value: str, caveat: Caveat) -> None:
    position = _WRITES[operation.name]
    operands = operation.operands
    if operands[1] != value or value in (operands[0], *operands[position:]):
        raise NotAffine("what its rows or columns beyond the bound hold steers it", operation)
    if len(operands) <= position or caveat.limit not in implied_bounds(tiles, operands[position]).below[caveat.dim]:
        raise NotAffine("it stores the rows or columns that wrap around, too", operation)
