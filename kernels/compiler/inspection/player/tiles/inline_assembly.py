"""Inline assembly of PTX on numpy arrays: the few texts that kernels here have, by what they do to registers.

``compute(operation, operands)`` raises :class:`KeyError` for any other text.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from warpplan.kernels.compiler.inspection.player.tiles.element_types import (
    Array,
    decoded,
    element_type,
    encoded,
    rounded,
)
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyOperation

MOVE = "mov.b32 $0, $1;"
TIED = 'constraints = "=r,0"'
"""A result in the registers of the operand: without a text nothing is done to it."""
PACK = (
    "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;"
    " cvt.rn.satfinite.e4m3x2.f32 high, $4, $3; mov.b32 $0, {low, high}; }"
)
"""Four fp32 numbers as e4m3 in one register, the first one in its lowest byte."""
GRID_DEPENDENCY = "griddepcontrol."
"""Of a launch's place among others; one is played by itself."""
_E4M3 = element_type("f8E4M3FN")


def assembled(operation: ReadyOperation, operands: list[Any]) -> Any:
    """What the text of ``operation`` computes."""
    found = re.match(r'\s*"([^"]*)"', operation.text)
    text = "" if found is None else found[1]
    if text == PACK and len(operands) == 4:
        return _packed([encoded(rounded(x, _E4M3), _E4M3).astype(np.uint32) for x in operands])
    if text.startswith(GRID_DEPENDENCY) and not operands:
        return 0
    if not text and TIED in operation.text and operation.types[0].held.name == operation.result.held.name:
        return operands[0]
    if text != MOVE:
        raise KeyError(operation.name)
    moved = operands[0]
    if operation.types[0].held.bits == operation.result.held.bits:
        return moved
    if operation.types[0].held.bits != 32 or operation.result.held.name != _E4M3.name:
        raise KeyError(operation.name)
    return _unpacked(moved, operation)


def _packed(numbers: list[Array]) -> Array:
    joined = sum(number << np.uint32(8 * place) for place, number in enumerate(numbers))
    return np.asarray(joined, np.uint32).view(np.int32)


def _unpacked(copies: Array, operation: ReadyOperation) -> Array:
    """Four copies of a register as the four elements in it. Raises :class:`KeyError` where the layout does not give a
    thread four adjacent elements at a time, or they are no copies."""
    fours = np.ascontiguousarray(copies).reshape(-1, 4)
    if "packed_element = 4 " not in operation.text or "kWidth = 4" not in operation.text or np.ptp(fours, axis=1).any():
        raise KeyError(operation.name)
    return decoded(np.ascontiguousarray(fours[:, 0]).view(np.uint8), _E4M3).reshape(copies.shape)
