"""Fit the constants of the time model to measured times of training shapes.

Two steps. Least squares on log(predicted / measured) with a soft-L1 loss gives the physical constants; then each block
structure keeps what its own measurements still disagree by, shrunk towards 0 where there are few of them. Errors near
the best time of a shape weigh most: that is where the ranking decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from warpplan.planner.predict.time_model import (
    FAMILY_DEFAULTS,
    GLOBAL_DEFAULTS,
    DeviceWork,
    Rates,
    constant_names,
    terms,
)
from warpplan.planner.values.profile import Calibration

Floats = NDArray[np.float64]

BOUNDS: Mapping[str, tuple[float, float]] = {
    "block_norm": (1.2, 20.0),
    "power_norm": (1.2, 20.0),
    "memory_norm": (1.2, 20.0),
    "launch_scale": (0.0, 12.0),
    "l2_scale": (0.1, 3.0),
    "dram_scale": (0.9, 1.3),
    "dram_ramp_us": (0.0, 4.0),
    "power_scale": (0.5, 2.0),
    "energy_l2": (0.0, 2.0),
    "energy_dram": (0.0, 2.0),
    "latency_scale": (0.0, 3.0),
    "transfer_scale": (0.0, 3.0),
    "crooked_scale": (0.0, 8.0),
    "refill_scale": (0.0, 4.0),
    "drain_scale": (0.0, 4.0),
    "prologue_scale": (0.0, 4.0),
    "split_us": (0.0, 10.0),
    "split_scale": (0.0, 10.0),
    "tensor_scale": (0.95, 1.4),
    "iteration_cycles": (0.0, 500.0),
    "unit_cycles": (0.0, 4000.0),
    "exposed": (0.0, 4.0),
    "start_cycles": (0.0, 5000.0),
    "plain_cycles": (0.0, 200.0),
}
NEAR_BEST = 5.0
"""Weights fall as (best / time) to this power."""
SHRINKAGE = 1.0
"""A structure's residual counts as if one further measurement had shown none."""


@dataclass(frozen=True, eq=False)
class Measured:
    """One shape's candidates and their measured times in µs, in the same order."""

    shape: tuple[int, ...]
    work: DeviceWork
    time_us: Floats


def fit(kernel: str, measured: Sequence[Measured], rates: Rates, source: str) -> Calibration:
    """The calibration of ``kernel`` from ``measured``, which must all have the same families and structures.

    Raises ``ValueError`` where nothing was measured.
    """
    if not measured:
        raise ValueError("no measured shapes to fit")
    names = constant_names(measured[0].work.families)
    defaults = {**GLOBAL_DEFAULTS, **FAMILY_DEFAULTS}
    scale = np.array([_scale(n) for n in names])
    start = np.array([defaults[n.split(".")[0]] for n in names])
    low = np.array([BOUNDS[n.split(".")[0]][0] for n in names])
    high = np.array([BOUNDS[n.split(".")[0]][1] for n in names])
    start = np.clip(start, low + 1e-3 * (high - low), high - 1e-3 * (high - low))
    weights = [_weights(m.time_us) for m in measured]

    def residuals(x: Floats) -> Floats:
        constants = dict(zip(names, map(float, x), strict=True))
        return np.concatenate([
            np.sqrt(w) * (np.log(terms(m.work, rates, constants)[1]) - np.log(m.time_us))
            for m, w in zip(measured, weights, strict=True)
        ])  # fmt: skip

    solved = least_squares(residuals, start, bounds=(low, high), x_scale=scale, loss="soft_l1", f_scale=0.05)
    constants = dict(zip(names, map(float, solved.x), strict=True))
    constants |= _structure_residuals(measured, weights, rates, constants)
    rounded = tuple(sorted((name, float(f"{value:.6g}")) for name, value in constants.items()))
    return Calibration(kernel, rounded, tuple(m.shape for m in measured), source)


def _scale(name: str) -> float:
    low, high = BOUNDS[name.split(".")[0]]
    return (high - low) / 4


def _weights(time_us: Floats) -> Floats:
    weights = (time_us.min() / time_us) ** NEAR_BEST
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def _structure_residuals(
    measured: Sequence[Measured], weights: Sequence[Floats], rates: Rates, constants: Mapping[str, float]
) -> dict[str, float]:
    structures = measured[0].work.structures
    total, mass = np.zeros(len(structures)), np.zeros(len(structures))
    for m, w in zip(measured, weights, strict=True):
        error = np.log(m.time_us) - np.log(terms(m.work, rates, constants)[1])
        relative = w / w.max()
        np.add.at(total, m.work.structure, relative * np.clip(error, -0.3, 0.3))
        np.add.at(mass, m.work.structure, relative)
    return {
        f"structure.{name}": float(t / (n + SHRINKAGE))
        for name, t, n in zip(structures, total, mass, strict=True)
        if n > 0
    }
