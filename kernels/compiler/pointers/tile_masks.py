"""A tile's mask as bounds: the positions along each dimension that it lets through.

mask[i, j] = i < every limit in below[0]  and  i + start ≥ 0 for every start in at_least[0]  and the same of j
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from warpplan.kernels.compiler.pointers.affine_tiles import AffineTile, NotAffine, TileReader
from warpplan.kernels.compiler.pointers.scalars.polynomials import Polynomial
from warpplan.kernels.compiler.pointers.scalars.scalar_values import ONE
from warpplan.kernels.compiler.ttgir.ir import IrOperation

Limits = tuple[frozenset[Polynomial], ...]


@dataclass(frozen=True)
class BoundsMask:
    """``below`` and ``at_least`` have an entry a dimension, each a set, empty where nothing is asked."""

    below: Limits
    lowest: Limits

    @property
    def at_least(self) -> bool:
        """Whether it also asks for positions above something."""
        return any(self.lowest)


def read_mask(tiles: TileReader, name: str) -> BoundsMask:
    """The mask ``name``. Raises :class:`NotAffine` where it is no conjunction of bounds."""
    made = tiles.scalars.defined.get(name)
    shape = tiles.shape(name)
    free: Limits = tuple(frozenset() for _ in shape)
    if made is None or made.kind != "plain" or not shape:
        raise NotAffine("its mask does not come from its indices alone", None if made is None else made.operation)
    operation = made.operation
    if operation.name == "arith.constant" and "dense<true>" in "".join(operation.tokens):
        return BoundsMask(free, free)
    if operation.name == "arith.andi":
        left, right = (read_mask(tiles, source) for source in made.sources)
        return BoundsMask(_both(left.below, right.below), _both(left.lowest, right.lowest))
    if operation.name in ("tt.broadcast", "ttg.convert_layout"):
        return read_mask(tiles, made.sources[0])
    if operation.name == "tt.expand_dims":
        inner, axis = read_mask(tiles, made.sources[0]), int(operation.attributes["axis"].split()[0])
        below, lowest = (
            (*limits[:axis], frozenset[Polynomial](), *limits[axis:]) for limits in (inner.below, inner.lowest)
        )
        return BoundsMask(below, lowest)
    if operation.name == "arith.cmpi":
        return _compared(operation, *map(tiles.read, made.sources))
    if operation.name == "tt.splat":
        raise NotAffine("its mask is a condition of the whole tile", operation)
    raise NotAffine("its mask is no comparison of indices with bounds", operation)


def implied_bounds(tiles: TileReader, name: str) -> BoundsMask:
    """Bounds that whatever the mask ``name`` lets through is in: those of its parts that are bounds."""
    made = tiles.scalars.defined.get(name)
    if made is not None and made.operation.name == "arith.andi":
        left, right = (implied_bounds(tiles, source) for source in made.sources)
        return BoundsMask(_both(left.below, right.below), _both(left.lowest, right.lowest))
    try:
        return read_mask(tiles, name)
    except NotAffine:
        free: Limits = tuple(frozenset() for _ in tiles.shape(name))
        return BoundsMask(free, free)


def _compared(operation: IrOperation, left: AffineTile, right: AffineTile) -> BoundsMask:
    """A comparison as ``difference > 0``."""
    found = re.match(r"\w+", operation.tokens[0])
    predicate = found[0] if found else ""
    if predicate in ("sgt", "sge"):
        left, right = right, left
    elif predicate not in ("slt", "sle"):
        raise NotAffine(f"its mask compares by {predicate}", operation)
    if left.base or right.base or left.caveats or right.caveats:
        raise NotAffine("its mask compares pointers or wrapped indices", operation)
    difference = right.start - left.start + (ONE if predicate in ("sle", "sge") else Polynomial())
    steps = [b - a for a, b in zip(left.steps, right.steps, strict=True)]
    along = [dim for dim, step in enumerate(steps) if step.terms]
    none: frozenset[Polynomial] = frozenset()
    if not along and difference.value is not None and difference.value > 0:
        return BoundsMask((none,) * len(steps), (none,) * len(steps))
    if len(along) != 1 or steps[along[0]].value not in (1, -1):
        raise NotAffine("its mask is no bound of one dimension", operation)
    (dim,) = along
    if steps[dim].value == -1:  # difference - i > 0
        limits = tuple(frozenset({difference}) if i == dim else none for i in range(len(steps)))
        return BoundsMask(limits, (none,) * len(steps))
    starts = tuple(frozenset({difference - ONE}) if i == dim else none for i in range(len(steps)))
    return BoundsMask((none,) * len(steps), starts)


def _both(left: Limits, right: Limits) -> Limits:
    return tuple(a | b for a, b in zip(left, right, strict=True))
