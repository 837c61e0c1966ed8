"""When a tile's mask lets everything through, or nothing: conditions on scalars.

mask[i, j] = start + i · steps[0] + j · steps[1] > 0 for each of its comparisons is true of the whole tile where that is
positive at the corner at which it is least: where the steps that go down have ended, and the others not begun.
"""

from __future__ import annotations

import re

from warpplan.kernels.compiler.analysis.value_flow import PLAIN
from warpplan.kernels.compiler.pointers.affine_tiles import AffineTile, NotAffine, TileReader
from warpplan.kernels.compiler.pointers.scalars.polynomials import Polynomial
from warpplan.kernels.compiler.pointers.scalars.scalar_values import ONE
from warpplan.kernels.compiler.ttgir.ir import IrOperation

NOT = {"slt": "sge", "sge": "slt", "sgt": "sle", "sle": "sgt"}
"""The comparison that is true where another one is not."""
_SAME = frozenset({"tt.broadcast", "tt.expand_dims", "tt.trans", "ttg.convert_layout", "tt.splat"})


def whole(tiles: TileReader, mask: str, outcome: bool = True) -> frozenset[Polynomial]:
    """Numbers such that all of the tile ``mask`` is ``outcome`` where each of them is above 0. Raises
    :class:`NotAffine` where the mask is not made of comparisons of positions with each other and with scalars."""
    made = tiles.scalars.defined.get(mask)
    if made is None or made.kind != PLAIN:
        raise NotAffine("its mask does not come from its indices alone", None if made is None else made.operation)
    operation = made.operation
    if operation.name in _SAME:
        return whole(tiles, made.sources[0], outcome)
    if operation.name == ("arith.andi" if outcome else "arith.ori"):
        left, right = (whole(tiles, source, outcome) for source in made.sources)
        return left | right
    if operation.name == "arith.xori" and _is_true(tiles, made.sources[1]):
        return whole(tiles, made.sources[0], not outcome)
    if operation.name == "arith.cmpi":
        compared, bound = map(tiles.read, made.sources)
        least = _least(operation, compared, bound, outcome)
        if least.value is None:
            return frozenset({least})
        if least.value > 0:
            return frozenset()
    raise NotAffine("its mask is no comparison of indices that can hold for a whole tile", operation)


def _least(operation: IrOperation, left: AffineTile, right: AffineTile, outcome: bool) -> Polynomial:
    """The least of what the comparison asks to be above 0."""
    found = re.match(r"\w+", operation.tokens[0])
    predicate = found[0] if found else ""
    if predicate not in NOT:
        raise NotAffine(f"its mask compares by {predicate}", operation)
    predicate = predicate if outcome else NOT[predicate]
    if predicate in ("sgt", "sge"):
        left, right = right, left
    if left.base or right.base or left.caveats or right.caveats:
        raise NotAffine("its mask compares pointers or wrapped indices", operation)
    least = right.start - left.start + (ONE if predicate in ("sle", "sge") else Polynomial())
    for size, mine, theirs in zip(left.shape, left.steps, right.steps, strict=True):
        step = (theirs - mine).value
        if step is None:
            raise NotAffine("its mask goes by steps that are no constants", operation)
        least += Polynomial.constant(min(0, step * (size - 1)))
    return least


def _is_true(tiles: TileReader, name: str) -> bool:
    made = tiles.scalars.defined.get(name)
    return made is not None and made.operation.name == "arith.constant" and "true" in "".join(made.operation.tokens)
