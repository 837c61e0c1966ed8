"""Mask guards: a tile is masked behind a branch, in the iterations in which a mask hides something.

A loop over keys up to the diagonal masks every block of scores, of which it hides part of the last ones only:

    s = where(rows >= start + keys, s, -inf)      ──>      if start + BLOCK - 1 > first row: s = where(…)

Whether a mask lets everything through is told by scalars (:mod:`~..pointers.masks.whole_masks`), computed in 64 bits.
Each select then gives what it is given, so that what is computed stays the same to the bit.
"""

from __future__ import annotations

from warpplan.kernels.compiler.lowering.hopper.load_rings import WALK
from warpplan.kernels.compiler.pointers.affine_tiles import TileReader
from warpplan.kernels.compiler.pointers.masks.mask_chains import SELECT, MaskChain, mask_chains
from warpplan.kernels.compiler.pointers.scalars.scalar_values import ScalarReader
from warpplan.kernels.compiler.pointers.scalars.scalar_writer import ScalarWriter
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.names import with_suffix
from warpplan.kernels.compiler.ttgir.types import find_types


def with_mask_guards(function: IrOperation) -> IrOperation:
    """``function``, whose names are unique, with the masks in its counted loops guarded."""
    tiles = TileReader(ScalarReader(function))
    return _guarded(function, tiles, in_loop=False)


def _guarded(operation: IrOperation, tiles: TileReader, *, in_loop: bool) -> IrOperation:
    """A copy of ``operation`` with the masks of its regions guarded, where they are of a loop."""
    if operation.name not in ("tt.func", "scf.for", "scf.if"):
        return operation
    in_loop = in_loop or (operation.name == "scf.for" and WALK not in operation.attributes)
    changed = IrOperation(operation.name, operation.results, list(operation.parts), operation.location)
    for i, part in enumerate(operation.parts):
        if isinstance(part, Region):
            chains = mask_chains(part, tiles) if in_loop else []
            region = Region([_guarded(inner, tiles, in_loop=in_loop) for inner in part.operations], part.label)
            for chain in chains:
                region = _behind_a_branch(region, chain, tiles)
            changed.parts[i] = region
    return changed


def _behind_a_branch(region: Region, chain: MaskChain, tiles: TileReader) -> Region:
    """``region`` with ``chain`` in a branch that is taken unless it lets everything through."""
    last, inside = chain.selects[-1], {id(op) for op in chain.inside}
    where, kind = last.location, find_types(last.signature)[-1]
    inner = with_suffix(last.result, "_masked")
    *masked, final = chain.inside
    assert final is last, "what a chain reads stands before its last select"
    masked.append(IrOperation(SELECT, (inner,), last.parts, where))
    scalars, everything = _whole(chain, tiles)
    branch = control.Branch(
        everything, [(kind, last.result)], Region([control.yield_of([(chain.passed, kind)], where)]),
        Region([*masked, control.yield_of([(inner, kind)], where)]), {}, where,
    )  # fmt: skip
    made, _ = control.write_branch(branch, last.result)
    out: list[IrOperation] = []
    for operation in region.operations:
        if operation is last:
            out += [*scalars, made]
        elif id(operation) not in inside:
            out.append(operation)
    return Region(out, region.label)


def _whole(chain: MaskChain, tiles: TileReader) -> tuple[list[IrOperation], str]:
    """What computes whether ``chain`` lets everything through, and the name of that."""
    last = chain.selects[-1]
    writer = ScalarWriter(tiles.scalars, with_suffix(last.result, "_whole"), last.location)
    none = writer.constant(0, "i64")
    first, *others = (
        writer.op(f"$ = arith.cmpi sgt, {writer.wide(condition)}, {none} : i64")
        for condition in sorted(chain.conditions, key=lambda condition: condition.terms)
    )
    for other in others:
        first = writer.op(f"$ = arith.andi {first}, {other} : i1")
    return writer.out, first
