"""Sensitivity of a choice: what the next best candidate would need, and which measured number would change the winner.

The ranked candidates are the best of unlike block structures. They are predicted again on a profile with one number
changed; only their loops are solved again, so that one prediction takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from warpplan.planner.predict.time_model import DeviceWork, Prediction, Rates, predictions, terms
from warpplan.planner.values.costs import CostEntry, CostTable, OperationCost, Quantiles
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.profile import Profile, Rate
from warpplan.planner.values.tuning import TuningConfig

Candidate = TypeVar("Candidate")
Floats = NDArray[np.float64]
Columns = Mapping[str, float]
"""Columns of :class:`DeviceWork` that follow from measured costs, for one candidate."""
MEASURED_COLUMNS = ("ii_cycles", "prologue_cycles", "epilogue_cycles", "drain_cycles", "dram_latency_cycles")
Lookup = tuple[str, tuple[tuple[str, str], ...], int]
"""Kind, texts by name, size: what a cost was looked up by."""
Progress = Callable[[int, int], bool]
"""Told what is done and what there is to do; False ends the work there."""

REACH = 2.0
"""A measured number is doubted by at most this factor, up or down."""
RESOLUTION = 0.005
"""Bisection ends at this difference of logarithms: half a percent. Chosen by hand."""
LEAST = 0.01
"""The smallest factor tried on a quantity: below a hundredth of it, no need is reported. Chosen by hand."""
QUANTITIES: Mapping[str, tuple[str, ...]] = {
    "initiation interval": ("ii_cycles",),
    "bytes loaded": ("load_bytes", "loaded_bytes"),
    "DRAM traffic": ("dram_bytes",),
    "FLOP executed": ("executed_flops",),
    "DRAM latency to hide": ("dram_latency_cycles",),
    "prologue and epilogue": ("prologue_cycles", "epilogue_cycles", "drain_cycles", "plain_elements"),
    "iterations of the busiest block": ("rounds", "trips"),
}
"""What a alternative may need less of, as the columns of its :class:`DeviceWork`."""


@dataclass(frozen=True, eq=False)
class RankedCandidates:
    """Candidates of unlike block structures, best first, with the constants and measurements they were predicted by.

    ``work`` has a row for each of ``configs``; ``loop(i, costs)`` gives the columns of row i that follow from ``costs``
    (its loop solved again); ``profile`` is the measured one.
    """

    names: tuple[str, ...]
    configs: tuple[TuningConfig, ...]
    work: DeviceWork
    dtype: str
    profile: Profile
    constants: Mapping[str, float]
    loop: Callable[[int, CostTable], Columns]

    def predictions(self) -> tuple[Prediction, ...]:
        parts, time_us = terms(self.work, Rates.of(self.profile, self.dtype), self.constants)
        return predictions(self.work, parts, time_us, np.arange(len(self.names)))

    def times(self, work: DeviceWork, profile: Profile) -> Floats:
        """Predicted µs a row."""
        return terms(work, Rates.of(profile, self.dtype), self.constants)[1]


def measured_columns(work: DeviceWork) -> Columns:
    """Those of the one candidate that ``work`` is of."""
    return {name: float(getattr(work, name)[0]) for name in MEASURED_COLUMNS}


def compared(
    configs: tuple[Candidate, ...],
    ask: Callable[[tuple[Candidate, ...], CostTable], DeviceWork],
    name_of: Callable[[Candidate], str],
    tuned: Callable[[Candidate], TuningConfig],
    constants_of: Callable[[tuple[str, ...]], Mapping[str, float]],
    dtype: str,
    profile: Profile,
) -> RankedCandidates:
    """``configs``, one of each block structure and best first, as what an explanation compares. ``ask`` gives the work
    of some of them under costs, ``constants_of`` the constants that structures are predicted with."""

    def loop(row: int, costs: CostTable) -> Columns:
        return measured_columns(ask((configs[row],), costs))

    names, as_tuned = tuple(map(name_of, configs)), tuple(map(tuned, configs))
    work = ask(configs, profile.costs)
    return RankedCandidates(names, as_tuned, work, dtype, profile, constants_of(work.structures), loop)


@dataclass(frozen=True)
class RankedLoop:
    """A candidate's main loop with its plan, and the cycles of the epilogue that follows it (not in the graph)."""

    graph: DependenceGraph
    outcome: Outcome
    epilogue_cycles: int


@dataclass(frozen=True)
class Need:
    """The alternative wins once its ``quantity`` is at most ``factor`` of what it is; ``None``: not by a hundredth."""

    quantity: str
    factor: float | None


def needs(ranked: RankedCandidates, alternative: int = 1) -> tuple[Need, ...]:
    """What the ``alternative`` would need less of to be as fast as the best, each alone; the smallest change first."""
    target = ranked.times(ranked.work, ranked.profile)[0]

    def wins(columns: tuple[str, ...], factor: float) -> bool:
        less = replace(ranked.work, **{c: getattr(ranked.work, c) * factor for c in columns})
        return bool(ranked.times(less, ranked.profile)[alternative] <= target)

    found = []
    for quantity, columns in QUANTITIES.items():
        if not any(getattr(ranked.work, column)[alternative] for column in columns):
            continue
        low, high = LEAST, 1.0
        if not wins(columns, low):
            found.append(Need(quantity, None))
            continue
        while high - low > RESOLUTION / 10:
            middle = (low + high) / 2
            low, high = (middle, high) if wins(columns, middle) else (low, middle)
        found.append(Need(quantity, low))
    return tuple(sorted(found, key=lambda need: (-(need.factor or 0.0), need.quantity)))


@dataclass(frozen=True)
class Flip:
    """Were ``measured`` (median ``value``) ``factor`` times what it is, ``winner`` would be chosen.

    ``spread`` is the measured p90 over p50: a ``factor`` within it is within what the measurement itself leaves open.
    """

    measured: str
    value: float
    factor: float
    winner: str
    spread: float

    @property
    def within_spread(self) -> bool:
        return abs(log(self.factor)) <= log(self.spread)


@dataclass(frozen=True)
class Flips:
    """``flips`` by the size of the change; ``examined`` of ``numbers`` measured numbers were examined."""

    flips: tuple[Flip, ...]
    examined: int
    numbers: int


def flips(ranked: RankedCandidates, *, progress: Progress | None = None) -> Flips:
    """The smallest change of each measured number, within a factor of :data:`REACH`, that another candidate wins by.

    The number's whole effect is taken into account: the loops it enters are solved again. Between the smallest and the
    largest change tried the crossing is found by bisection, to half a percent.
    """
    noted = [_NotedCosts(ranked.profile.costs.entries) for _ in ranked.names]
    base = [ranked.loop(i, costs) for i, costs in enumerate(noted)]
    numbers = list(_numbers(ranked.profile, [n.looked_up for n in noted]))
    found: list[Flip] = []
    examined = 0
    for number in numbers:
        if progress is not None and not progress(examined, len(numbers)):
            break
        examined += 1
        crossing = _crossing(ranked, base, number)
        if crossing is not None:
            found.append(crossing)
    found.sort(key=lambda flip: (abs(log(flip.factor)), flip.measured))
    return Flips(tuple(found), examined, len(numbers))


@dataclass(frozen=True)
class _Number:
    """A measured number: what it is called, how to change it, and whose loops it enters."""

    name: str
    value: float
    spread: float
    at: Callable[[float], Profile]
    rows: frozenset[int]


def _crossing(ranked: RankedCandidates, base: Sequence[Columns], number: _Number) -> Flip | None:
    def winner(exponent: float) -> int:
        profile = number.at(exp(exponent))
        rows = [ranked.loop(i, profile.costs) if i in number.rows else columns for i, columns in enumerate(base)]
        solved: dict[str, Any] = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        work = replace(ranked.work, **solved)
        return int(np.argmin(ranked.times(work, profile)))

    best: tuple[float, int] | None = None
    for end in (-log(REACH), log(REACH)):
        first = winner(end)
        if first == 0 or (best is not None and abs(best[0]) <= RESOLUTION):
            continue
        same, other = 0.0, end
        while abs(other - same) > RESOLUTION:
            middle = (same + other) / 2
            found = winner(middle)
            if found == 0:
                same = middle
            else:
                other, first = middle, found
        if best is None or abs(other) < abs(best[0]):
            best = (other, first)
    if best is None:
        return None
    return Flip(number.name, number.value, exp(best[0]), ranked.names[best[1]], number.spread)


def _numbers(profile: Profile, asked: Sequence[set[Lookup]]) -> Iterator[_Number]:
    """The costs that some loop looked up, and the device's ceilings."""
    known = set(map(_key, profile.costs.entries))
    for index, entry in enumerate(profile.costs.entries):
        rows = frozenset(i for i, lookups in enumerate(asked) if _answers(entry, lookups, known))
        for name in ("latency", "occupancy", "issue") if rows else ():
            measured: Quantiles | None = getattr(entry.cost, name)
            if measured is not None and measured.p50 > 0:
                spread = max(1.0, measured.p90 / measured.p50)
                at = _CostScaled(profile, index, name)
                yield _Number(f"{name} of {entry.label}", measured.p50, spread, at, rows)
    for index, (name, rate) in enumerate(profile.ceilings):
        spread = max(rate.p90 / rate.p50, rate.p50 / rate.p10) if rate.p10 > 0 else 1.0
        yield _Number(name, rate.p50, max(1.0, spread), _RateScaled(profile, index), frozenset())


def _key(entry: CostEntry) -> Lookup:
    texts = tuple((name, value) for name, value in entry.parameters if isinstance(value, str))
    return entry.kind, texts, next((value for _, value in entry.parameters if isinstance(value, int)), 0)


def _answers(entry: CostEntry, lookups: set[Lookup], measured: set[Lookup]) -> bool:
    """Whether a lookup was answered by ``entry``: of its own size, or of one that lies between the measured ones."""
    key = _key(entry)
    return any(asked == key or (asked[:2] == key[:2] and asked not in measured) for asked in lookups)


@dataclass(frozen=True)
class _CostScaled:
    profile: Profile
    index: int
    name: str

    def __call__(self, factor: float) -> Profile:
        entries = list(self.profile.costs.entries)
        entry = entries[self.index]
        q: Quantiles = getattr(entry.cost, self.name)
        cost = {self.name: Quantiles(q.p50 * factor, q.p90 * factor, q.count)}
        entries[self.index] = replace(entry, cost=replace(entry.cost, **cost))
        return replace(self.profile, costs=CostTable(tuple(entries)))


@dataclass(frozen=True)
class _RateScaled:
    profile: Profile
    index: int

    def __call__(self, factor: float) -> Profile:
        ceilings = list(self.profile.ceilings)
        name, rate = ceilings[self.index]
        ceilings[self.index] = (name, Rate(rate.p50 * factor, rate.p10 * factor, rate.p90 * factor, rate.count))
        return replace(self.profile, ceilings=tuple(ceilings))


@dataclass(frozen=True)
class _NotedCosts(CostTable):
    """A cost table that records which costs were looked up."""

    looked_up: set[Lookup] = field(default_factory=set, compare=False)

    def lookup(self, kind: str, size: int = 0, **text: str) -> OperationCost:
        self.looked_up.add((kind, tuple(sorted(text.items())), size))
        return super().lookup(kind, size, **text)
