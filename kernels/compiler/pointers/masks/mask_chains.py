"""Chains of masks on a tile: selects between what the one before gave and a constant, and when all let it through.

s = where(keys < L, s, -inf)
s = where(rows >= keys, s, -inf)
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from warpplan.kernels.compiler.analysis.copies.addresses import PURE, PURE_DIALECTS
from warpplan.kernels.compiler.pointers.affine_tiles import NotAffine, TileReader
from warpplan.kernels.compiler.pointers.masks.whole_masks import whole
from warpplan.kernels.compiler.pointers.scalars.polynomials import Polynomial
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.types import find_types, parse_type

SELECT = "arith.select"
LEAST_ELEMENTS = 2048
"""Of a tile that is masked behind a branch: 16 for each of 128 threads, as many instructions as the branch and its
condition take. Chosen by hand."""


@dataclass(frozen=True)
class MaskChain:
    """The ``selects`` of a tile called ``passed``, which they give as it is where each of ``conditions`` is above 0;
    ``inside`` are they and what only they read, in order."""

    selects: tuple[IrOperation, ...]
    passed: str
    conditions: frozenset[Polynomial]
    inside: tuple[IrOperation, ...]

    def falls(self, counter: str) -> bool:
        """Whether no condition gets nearer to holding as ``counter`` goes up, so that a loop that goes on until then
        ends soon after the masks have begun to hide something."""
        terms = [term for condition in self.conditions for term in condition.terms]
        return not any(c > 0 and counter in monomial for monomial, c in terms)


def mask_chains(region: Region, tiles: TileReader) -> list[MaskChain]:
    """The chains that stand directly in ``region``, of which it is known when they let everything through."""
    found: dict[str, MaskChain] = {}
    for operation in region.operations:
        masking = _masking(operation, tiles)
        if masking is None:
            continue
        passed, conditions = masking
        former = found.pop(passed) if passed in found and _readers(region, passed) == 1 else None
        if former is None:
            found[operation.result] = MaskChain((operation,), passed, conditions, ())
        else:
            selects = (*former.selects, operation)
            found[operation.result] = MaskChain(selects, former.passed, former.conditions | conditions, ())
    return [
        MaskChain(chain.selects, chain.passed, chain.conditions, _inside(region, chain))
        for chain in found.values()
        if chain.conditions
    ]


def _masking(operation: IrOperation, tiles: TileReader) -> tuple[str, frozenset[Polynomial]] | None:
    """The tile that ``operation``, a select, gives as it is where each of some numbers is above 0; ``None`` for
    anything else, and where those numbers are not known."""
    if operation.name != SELECT:
        return None
    kinds = find_types(operation.signature)
    kind = parse_type(kinds[-1]) if kinds else None
    if kind is None or math.prod(kind.shape) < LEAST_ELEMENTS:
        return None
    mask, then, otherwise = operation.operands
    for outcome, tile, other in ((True, then, otherwise), (False, otherwise, then)):
        if _is_constant(tiles, tile) or not _is_constant(tiles, other):
            continue
        try:
            return tile, whole(tiles, mask, outcome)
        except NotAffine:
            return None
    return None


def _is_constant(tiles: TileReader, name: str) -> bool:
    made = tiles.scalars.defined.get(name)
    return made is not None and made.operation.name == "arith.constant"


def _inside(region: Region, chain: MaskChain) -> tuple[IrOperation, ...]:
    inside = {id(op) for op in chain.selects}
    needed = {name for op in chain.selects for name in op.operands} - {chain.passed}
    outside = [inner for op in region.operations if id(op) not in inside for inner in op.walk()]
    read = Counter(name for op in outside for name in op.operands)
    for op in reversed(region.operations):
        if id(op) in inside or not needed.intersection(op.defined) or chain.passed in op.defined or not _is_pure(op):
            continue
        if not any(read[name] for name in op.defined):
            inside.add(id(op))
            needed.update(op.operands)
            read.subtract(name for inner in op.walk() for name in inner.operands)
    return tuple(op for op in region.operations if id(op) in inside)


def _is_pure(operation: IrOperation) -> bool:
    pure = operation.name in PURE or operation.name.startswith(PURE_DIALECTS)
    return pure and operation.name != "tt.load" and not operation.regions


def _readers(region: Region, name: str) -> int:
    return sum(inner.operands.count(name) for op in region.operations for inner in op.walk())
