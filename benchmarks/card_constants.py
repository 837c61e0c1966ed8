"""What tells a card from an H200 in the time model of GEMMs: few constants, fitted to few settled readings.

A card that has no raw tables has the H200's calibrations. Fits of each kernel to a dozen rows would overfit: these
constants are the card's, and all kernels share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from kernel_tables import SearchedRow
from scipy.optimize import least_squares

from warpplan.kernels.gemm.work import RESIDUAL, relatives
from warpplan.planner.predict.time_model import GLOBAL_DEFAULTS, DeviceWork, Rates, terms
from warpplan.profiler.fit import NEAR_BEST, Floats


@dataclass(frozen=True, eq=False)
class SettledRow:
    """A row that ``bench_power.py`` has read, beside what a time model needs to predict it: the H200's calibration of
    its kernel, by name, with the residuals of its candidates' structures."""

    calibration: str
    constants: Mapping[str, float]
    found: SearchedRow
    work: DeviceWork
    rates: Rates

    @property
    def blocks(self) -> list[str]:
        """Of each candidate the part of its structure's name that differs neither by ring nor by epilogue."""
        return [relatives(self.work.structures[index]) for index in self.work.structure]

    def log_error(self, card: CardConstants) -> Floats:
        """log(predicted / measured) of each candidate."""
        predicted = terms(self.work, self.rates, card.of_structures(card.applied(self.constants)))[1]
        return np.asarray(np.log(predicted / self.found.time_us))

    def regret(self, card: CardConstants) -> float:
        """What the first choice loses to the fastest."""
        time_us = self.found.time_us
        return float(time_us[np.argmin(self.log_error(card) + np.log(time_us))] / time_us.min() - 1)


@dataclass(frozen=True)
class CardConstants:
    """What tells a card from an H200: the L2 traffic of tile orders of many rows; power, of which products and what L2
    brings have other shares; and what blocks of threads differ by (residuals in the logarithm, by their names)."""

    order_l2: float = 0.0
    power_factor: float = 1.0
    energy_l2: float = 0.0
    blocks: Mapping[str, float] = field(default_factory=dict)

    def applied(self, constants: Mapping[str, float]) -> dict[str, float]:
        """An H200's constants, those of structures aside, as this card's."""
        power = constants.get("power_scale", GLOBAL_DEFAULTS["power_scale"]) * self.power_factor
        energy = constants.get("energy_l2", GLOBAL_DEFAULTS["energy_l2"]) + self.energy_l2
        return {**constants, "order_l2": self.order_l2, "power_scale": power, "energy_l2": energy}

    def undone(self, constants: Mapping[str, float]) -> dict[str, float]:
        """The constants that :meth:`applied` and :meth:`of_structures` have made ``constants`` of, but for an
        ``order_l2`` of their own."""
        before = {**constants, "power_scale": constants["power_scale"] / self.power_factor}
        before["energy_l2"] = constants["energy_l2"] - self.energy_l2
        del before["order_l2"]
        return replace(self, blocks={block: -value for block, value in self.blocks.items()}).of_structures(before)

    def of_structures(self, constants: Mapping[str, float]) -> dict[str, float]:
        """``constants`` with the residuals of their structures as this card's."""
        return {
            name: value + self.blocks.get(relatives(name).removeprefix(RESIDUAL), 0.0)
            if name.startswith(RESIDUAL)
            else value
            for name, value in constants.items()
        }


def fitted(rows: Sequence[SettledRow]) -> CardConstants:
    """Those with the least squares of the logarithms, soft as in :mod:`warpplan.profiler.fit`; then the mean of what a
    row's candidates with the same block still differ by from the row's mean, as if one further row had shown none. The
    fastest candidates weigh most."""
    weights = [_near_best(row.found.time_us) for row in rows]

    def residuals(x: Floats) -> Floats:
        card = CardConstants(*map(float, x))
        return np.concatenate([np.sqrt(w) * row.log_error(card) for row, w in zip(rows, weights, strict=True)])

    solved = least_squares(
        residuals, [0.3, 1.0, 0.1], bounds=([0.0, 0.5, 0.0], [1.0, 2.0, 2.0]), x_scale=[0.2, 0.2, 0.2],
        loss="soft_l1", f_scale=0.05,
    )  # fmt: skip
    card = CardConstants(*(round(float(x), 3) for x in solved.x))
    found: dict[str, list[float]] = {}
    for row, weight in zip(rows, weights, strict=True):
        error, blocks = -row.log_error(card), np.array(row.blocks)
        error = error - np.average(error, weights=weight)
        for block in sorted(set(row.blocks)):
            mine = blocks == block
            found.setdefault(block, []).append(float(np.average(error[mine], weights=weight[mine])))
    return replace(card, blocks={b: round(sum(values) / (len(values) + 1), 4) for b, values in found.items()})


def with_power(rows: Sequence[SettledRow], card: CardConstants) -> CardConstants:
    """``card`` with the ``power_factor`` of ``rows`` that were read on another card; what else it has stays."""
    weights = [_near_best(row.found.time_us) for row in rows]

    def residuals(x: Floats) -> Floats:
        there = replace(card, power_factor=float(x[0]))
        return np.concatenate([np.sqrt(w) * row.log_error(there) for row, w in zip(rows, weights, strict=True)])

    solved = least_squares(residuals, [card.power_factor], bounds=([0.5], [2.0]), loss="soft_l1", f_scale=0.05)
    return replace(card, power_factor=round(float(solved.x[0]), 3))


def _near_best(time_us: Floats) -> Floats:
    """Weights that sum to 1."""
    weights = (time_us.min() / time_us) ** NEAR_BEST
    return np.asarray(weights / weights.sum())
