"""What two plays of a kernel wrote, compared: to the bit, or within roundings.

A rounding is the distance of neighbouring values, in the coarsest float type that the kernel rounds to, at the largest
value of the tensor: a sum whose terms are added in another order, then rounded, differs by few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from warpplan.kernels.compiler.inspection.player.tiles.element_types import (
    MANTISSA,
    ElementType,
    decoded,
    element_type,
    unit_in_last_place,
)
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyCode, read_types

MOST_ROUNDINGS = 4.0
"""Beyond that many two results differ. Doubled, an error of one in 2⁵ of the largest value would pass in bf16."""


@dataclass(frozen=True)
class Compared:
    """``equal``: to the bit, also what was not written. ``roundings`` is the largest difference of a float,
    ``differs`` names a tensor, an element and both values where it is too large."""

    equal: bool
    roundings: float = 0.0
    differs: str = ""

    def __str__(self) -> str:
        if self.equal:
            return "equal"
        return f"differs: {self.differs}" if self.differs else f"within {max(1, round(self.roundings))} roundings"


def compare(
    wanted: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    elements: Mapping[str, str],
    coarsest: ElementType,
) -> Compared:
    """``wanted`` and ``found`` are buffers of bytes; ``elements`` names each one's element type as TTGIR prints it."""
    roundings, equal = 0.0, True
    for name, before in wanted.items():
        after = found[name]
        if np.array_equal(before, after):
            continue
        equal = False
        kind = element_type(elements[name])
        a, b = (decoded(data.view(kind.stored), kind).astype(np.float64) for data in (before, after))
        differ = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        off = np.zeros_like(a)
        off[differ] = np.abs(a[differ] - b[differ])
        largest = float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a)))
        grain = coarsest if kind.is_float and MANTISSA[coarsest.name] < MANTISSA[kind.name] else kind
        unit = unit_in_last_place(largest, grain)
        count = np.where(np.isfinite(off), off / unit if unit else np.where(off > 0, np.inf, 0.0), np.inf)
        worst = int(np.argmax(count))
        roundings = max(roundings, float(count[worst]))
        if count[worst] > (MOST_ROUNDINGS if kind.is_float else 0.0):
            told = f"{name}[{worst}] is {b[worst]:.6g}, not {a[worst]:.6g}, and {int(differ.sum())} of {a.size} differ"
            return Compared(equal=False, roundings=roundings, differs=told)
    return Compared(equal, roundings)


def coarsest_rounding(code: ReadyCode) -> ElementType:
    """The float type with the fewest digits that the kernel rounds a value to."""
    found = {"f32"}
    for operation in code.function.walk():
        if operation.name in ("arith.truncf", "tt.fp_to_fp"):
            found.add(read_types(operation.signature)[-1].element)
    return element_type(min(found, key=lambda name: MANTISSA[name]))
