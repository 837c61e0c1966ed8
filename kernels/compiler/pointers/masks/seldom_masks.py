"""Masks that hide something in few iterations of their loop, marked in Triton's IR for the planner's costs.

A plan applies such a mask behind a branch (:mod:`~warpplan.kernels.compiler.lowering.mask_guards`). Which those
are is told before layouts are chosen: the marks are attributes, which Triton's passes keep, and change nothing.
"""

from __future__ import annotations

from warpplan.kernels.compiler.analysis.operation_kinds import SELDOM
from warpplan.kernels.compiler.pointers.affine_tiles import TileReader
from warpplan.kernels.compiler.pointers.masks.mask_chains import mask_chains
from warpplan.kernels.compiler.pointers.scalars.scalar_values import ScalarReader
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.functions import replace_function
from warpplan.kernels.compiler.ttgir.names import unique_names
from warpplan.kernels.compiler.ttgir.parsing import parse


def with_seldom_masks(text: str) -> str:
    """Triton's IR ``text`` with a mark on what masks a tile towards the end of a counted loop only; as it is where
    nothing does."""
    if "arith.select" not in text or "scf.for" not in text:
        return text
    module = parse(text)
    function = unique_names(module.function)
    tiles, marked = TileReader(ScalarReader(function)), False
    for operation in function.walk():
        if operation.name == "scf.for":
            loop = control.read_loop(operation)
            for chain in mask_chains(loop.body, tiles):
                for inner in chain.inside if chain.falls(loop.variable) else ():
                    inner.set_attribute(SELDOM, "true")
                    marked = True
    if not marked:
        return text
    replace_function(module, function)
    return str(module)
