"""Fit the constants of the time model to measured times of training shapes.

Two steps. Least squares on log(predicted / measured) with a soft-L1 loss gives the physical constants; then each block
structure keeps what its own measurements still disagree by, shrunk towards 0 where there are few of them. Errors near
the best time of a shape weigh most: that is where the ranking decides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

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
    "early_launch_us": (0.0, 1.0),
    "l2_scale": (0.1, 3.0),
    "order_l2": (0.0, 1.0),
    "scatter_l2": (0.0, 2.0),
    "stream_l2": (0.0, 2.0),
    "dram_scale": (0.9, 1.3),
    "dram_ramp_us": (0.0, 4.0),
    "fill_scale": (0.0, 4.0),
    "power_scale": (0.5, 2.0),
    "energy_l2": (0.0, 2.0),
    "energy_dram": (0.0, 2.0),
    "latency_scale": (0.0, 3.0),
    "transfer_scale": (0.0, 3.0),
    "crooked_scale": (0.0, 8.0),
    "narrow_scale": (0.0, 8.0),
    "refill_scale": (0.0, 4.0),
    "drain_scale": (0.0, 4.0),
    "prologue_scale": (0.0, 4.0),
    "split_us": (0.0, 10.0),
    "split_scale": (0.0, 10.0),
    "split_trip_us": (0.0, 4.0),
    "tensor_scale": (0.95, 1.4),
    "iteration_cycles": (0.0, 500.0),
    "unit_cycles": (0.0, 4000.0),
    "exposed": (0.0, 4.0),
    "start_cycles": (0.0, 5000.0),
    "plain_cycles": (0.0, 200.0),
}
OF_THE_CARD = ("order_l2",)
"""Not fitted with a kernel's constants: settled readings of several kernels show it (``benchmarks/settled_fit.py``)."""
NEAR_BEST = 5.0
"""Weights fall as (best / time) to this power."""
SHRINKAGE = 1.0
"""A structure's residual counts as if one further measurement had shown none, or what the prior has."""
PRIOR_PULL = 0.02
"""Of a constant towards the prior's: a quarter of its bounds away costs as much as a shape that is wrong by 2 %. Chosen
on shapes made as in tests/profiler/test_fit.py: doubled, one shape with a third more L2 traffic is half believed."""
STEP = 1e-6
"""Of a constant for its derivative, in quarters of its bounds: the square root of the arithmetic's precision, and some
more for the logarithm."""


@dataclass(frozen=True, eq=False)
class MeasuredShape:
    """One shape's candidates and their measured times in µs, in the same order; a shape as kernels declare it."""

    shape: tuple[int | str, ...]
    work: DeviceWork
    time_us: Floats


def fit(
    kernel: str,
    measured: Sequence[MeasuredShape],
    rates: Rates,
    source: str,
    *,
    prior: Calibration | None = None,
    tolerance: float = 1e-8,
    shrinkage: float = SHRINKAGE,
    held: Collection[str] = (),
) -> Calibration:
    """The calibration of ``kernel`` from ``measured``.

    With ``prior``, a calibration of something alike, the search begins at its constants and is drawn to them (to the
    defaults of those that it lacks), so that few shapes suffice; families and structures that were not measured keep
    its constants and residuals, and other structures the more of them the larger ``shrinkage``. Constants that are
    ``held``, and the card's, stay as ``prior`` has them. The search ends with a step that gains less than ``tolerance``
    of the loss. Raises ``ValueError`` where nothing was measured.
    """
    if not measured:
        raise ValueError("no measured shapes to fit")
    measured = united(measured)
    names = tuple(name for name in fitted_names(measured[0].work.families) if name not in held)
    known = dict(prior.constants) if prior else {}
    fixed = {name: known[name] for name in (*OF_THE_CARD, *held) if name in known}
    defaults = {**GLOBAL_DEFAULTS, **FAMILY_DEFAULTS}
    scale = np.array([_scale(n) for n in names])
    expected = np.array([known.get(n, defaults[n.split(".")[0]]) for n in names])
    low = np.array([BOUNDS[n.split(".")[0]][0] for n in names])
    high = np.array([BOUNDS[n.split(".")[0]][1] for n in names])
    start = np.clip(expected, low + 1e-3 * (high - low), high - 1e-3 * (high - low))
    weights = [_weights(m.time_us) for m in measured]
    # All shapes at once: the arrays of one are too short for numpy.
    rows, measured_log = _joined([m.work for m in measured]), np.log(np.concatenate([m.time_us for m in measured]))
    root = np.sqrt(np.concatenate(weights))
    drawn = PRIOR_PULL * np.full(len(names), prior is not None) / scale

    def logs(x: Floats) -> Floats:
        return np.log(terms(rows, rates, fixed | dict(zip(names, map(float, x), strict=True)))[1])

    def residuals(x: Floats) -> Floats:
        return np.concatenate([root * (logs(x) - measured_log), drawn * (x - expected)])

    steps = STEP * scale

    def jacobian(x: Floats) -> Floats:
        """Forward differences; constants of families with no row in common are changed together."""
        here, found = logs(x), np.zeros((rows.family.size, len(names)))
        h = np.where(x + steps > high, -steps, steps)
        for group in _changed_together(names):
            columns = np.array(group)
            moved = x.copy()
            moved[columns] += h[columns]
            change = root * (logs(moved) - here)
            for column in group:
                _, _, family = names[column].partition(".")
                mine = rows.family == rows.families.index(family) if family else slice(None)
                found[mine, column] = change[mine] / h[column]
        return np.concatenate([found, np.diag(drawn)])

    solved = least_squares(
        residuals, start, jacobian, bounds=(low, high), x_scale=scale, loss="soft_l1", f_scale=0.05,
        ftol=tolerance,
    )  # fmt: skip
    constants = {name: value for name, value in known.items() if not name.startswith("structure.")}
    constants |= dict(zip(names, map(float, solved.x), strict=True))
    constants |= _structure_residuals(measured, weights, rates, constants, known, shrinkage)
    rounded = tuple(sorted((name, float(f"{value:.6g}")) for name, value in constants.items()))
    return Calibration(kernel, rounded, tuple(m.shape for m in measured), source)


def fitted_names(families: tuple[str, ...]) -> tuple[str, ...]:
    """The constants that :func:`fit` learns, of a kernel whose candidates are of these families."""
    return tuple(name for name in constant_names(families) if name not in OF_THE_CARD)


def united(measured: Sequence[MeasuredShape]) -> list[MeasuredShape]:
    """The same shapes with the families and the structures of all of them, sorted by name."""
    families = tuple(sorted({name for m in measured for name in m.work.families}))
    structures = tuple(sorted({name for m in measured for name in m.work.structures}))

    def renumbered(work: DeviceWork) -> DeviceWork:
        of_family = np.array([families.index(name) for name in work.families], dtype=np.int64)
        of_structure = np.array([structures.index(name) for name in work.structures], dtype=np.int64)
        return replace(
            work,
            families=families,
            structures=structures,
            family=of_family[work.family],
            structure=of_structure[work.structure],
        )

    return [replace(m, work=renumbered(m.work)) for m in measured]


def _changed_together(names: Sequence[str]) -> list[list[int]]:
    """The positions of ``names`` in groups: each constant of all families is alone, and a family's goes with those of
    the same name of the others."""
    groups: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        groups.setdefault(name.partition(".")[0], []).append(position)
    return list(groups.values())


def _joined(works: Sequence[DeviceWork]) -> DeviceWork:
    """The rows of ``works``, which have their families and structures in common, one after the other."""
    arrays = [f.name for f in fields(DeviceWork) if isinstance(getattr(works[0], f.name), np.ndarray)]
    joined: dict[str, Any] = {name: np.concatenate([getattr(w, name) for w in works]) for name in arrays}
    return replace(works[0], **joined)


def _scale(name: str) -> float:
    low, high = BOUNDS[name.split(".")[0]]
    return (high - low) / 4


def _weights(time_us: Floats) -> Floats:
    weights = (time_us.min() / time_us) ** NEAR_BEST
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def _structure_residuals(
    measured: Sequence[MeasuredShape],
    weights: Sequence[Floats],
    rates: Rates,
    constants: Mapping[str, float],
    known: Mapping[str, float],
    shrinkage: float,
) -> dict[str, float]:
    """Each structure's mean error in the logarithm, with what the prior knew of it as ``shrinkage`` measurements."""
    structures = [f"structure.{name}" for name in measured[0].work.structures]
    total, mass = np.zeros(len(structures)), np.zeros(len(structures))
    for m, w in zip(measured, weights, strict=True):
        error = np.log(m.time_us) - np.log(terms(m.work, rates, constants)[1])
        relative = w / w.max()
        np.add.at(total, m.work.structure, relative * np.clip(error, -0.3, 0.3))
        np.add.at(mass, m.work.structure, relative)
    kept = {name: value for name, value in known.items() if name.startswith("structure.")}
    return kept | {
        name: float((t + shrinkage * known.get(name, 0.0)) / (n + shrinkage))
        for name, t, n in zip(structures, total, mass, strict=True)
        if n > 0
    }
