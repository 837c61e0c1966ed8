"""Which (configuration, strategy) pairs of a list are worth what: pruned by bounds, ranked, chosen for the GPU.

Pure functions of what the front end, the children and the tuner's cache say: the same on every rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from warpplan.kernels.compiler.launching.autotuned.tuner_calls import KnownTimings
from warpplan.kernels.compiler.strategy.protocol import Strategy
from warpplan.kernels.compiler.strategy.recorded import strategy_from_json
from warpplan.kernels.triton_types import Json

CANNOT_WIN = 2.0
"""A configuration whose bound is this many times the least one is not compiled: kernels reach half of their bound and
more. Chosen by hand; doubled, more configurations are compiled that lose."""
ATTAINED = 0.6
"""Share of its bound that a configuration is taken to reach whose time nothing predicts: none of its loops loads
through TMA. Chosen by hand."""
WORTH_TRYING = 0.8
"""Predicted gain over the last of :data:`LEAST_UNPLANNED` configurations as they are below which a strategy is not
tried: as for one kernel."""
MOST_PLANNED = 5
"""Strategies tried on the GPU for one list at most: as many as for one kernel. Chosen by hand."""
MOST_OF_TILE = 3
"""Of these, strategies of one tile at most, where others are worth trying: predictions err more between tiles than
within one. Chosen by hand; doubled, all that are tried of an int8 GEMM's list of three tiles are of one."""
MOST_UNPLANNED = 6
"""Configurations timed as they are where no cache says which one wins. Each costs a compile on one of all cores and a
tenth of a second. Chosen by hand."""
LEAST_UNPLANNED = 3
"""Configurations timed as they are at least: the first may not run. Chosen by hand."""
FAR_OFF = 2.0
"""A further configuration predicted to take this many times as long as the first, both as they are, is not timed.
Chosen by hand."""


@dataclass(frozen=True)
class Candidate:
    """``scheme`` for configuration number ``config`` of the pruned list, ``None`` for the kernel as it is."""

    config: int
    scheme: Strategy | None
    predicted_us: float


def within_bounds(bounds_us: Sequence[float | None], known: KnownTimings) -> list[int]:
    """The configurations that can win by their bounds, least bound first; ``None`` for those that do not compile."""
    there = [(bound, index) for index, bound in enumerate(bounds_us) if bound is not None]
    positive = [bound for bound, _ in there if bound > 0]
    # A time that was measured says more than any bound.
    limit = min(time for time in known.median_us if time is not None) if known.complete else 0.0
    limit = limit or CANNOT_WIN * min(positive, default=0.0)
    return [index for bound, index in sorted(there) if not positive or bound <= limit or index == known.winner]


def ranked(
    results: Mapping[int, dict[str, Json]], bounds_us: Sequence[float | None], known: KnownTimings
) -> tuple[Candidate, ...]:
    """Every (configuration, strategy) of ``results``, the children's by configuration, least predicted time first.

    Where the time of a configuration as it is is known, those of its strategies are scaled by it.
    """
    found: list[Candidate] = []
    for config, result in results.items():
        if "strategies" not in result or known.of(config) == float("inf"):
            continue
        alone = next((us for scheme, us in result["strategies"] if scheme is None), None)
        bound = bounds_us[config] or 0.0
        predicted = alone if alone is not None else bound / ATTAINED
        timed = known.of(config)
        scale = 1.0 if timed is None or not predicted else timed / predicted
        found.append(Candidate(config, None, predicted * scale))
        for scheme, us in result["strategies"]:
            if scheme is not None and us is not None:
                found.append(Candidate(config, strategy_from_json(scheme, "a child's answer"), us * scale))
    return tuple(sorted(found, key=_order))


def _order(candidate: Candidate) -> tuple[object, ...]:
    scheme = candidate.scheme
    return round(candidate.predicted_us, 3), () if scheme is None else scheme.complexity, candidate.config


def to_try(
    candidates: Sequence[Candidate], alike: Sequence[Hashable], known: KnownTimings
) -> tuple[list[Candidate], list[Candidate], list[Candidate]]:
    """The first few planned, and one with TMA stores beside them in the second place; those as they are; then the
    planned ones, in order, that replace those of the first few that do not compile. ``alike`` is equal for
    configurations that one strategy makes the same kernel of: they differ in warps or stages alone."""
    unplanned = [c for c in candidates if c.scheme is None]
    if known.winner is not None:
        unplanned = [c for c in unplanned if c.config == known.winner]
    near = sum(c.predicted_us <= FAR_OFF * unplanned[0].predicted_us for c in unplanned)
    unplanned = unplanned[: min(MOST_UNPLANNED, max(LEAST_UNPLANNED, near))]
    sure = unplanned[:LEAST_UNPLANNED]
    limit = sure[-1].predicted_us / WORTH_TRYING if sure else float("inf")
    planned: dict[object, Candidate] = {}
    for candidate in candidates:
        if candidate.scheme is not None and candidate.predicted_us <= limit:
            planned.setdefault((alike[candidate.config], candidate.scheme), candidate)
    ordered = _diverse([c for c in planned.values() if not _stores_by_tma(c)], alike)
    storing = list(filter(_stores_by_tma, planned.values()))[:1]
    return [*ordered[:1], *storing, *ordered[1:MOST_PLANNED]], unplanned, ordered[MOST_PLANNED:]


def _stores_by_tma(candidate: Candidate) -> bool:
    return candidate.scheme is not None and candidate.scheme.stores_by_tma


def _diverse(candidates: list[Candidate], alike: Sequence[Hashable]) -> list[Candidate]:
    """In the order given, but the best of each tile and family before the second of any, for those that differ in depth
    alone are measured alike; and of each tile no more than :data:`MOST_OF_TILE` before the others'."""
    tiles = [alike[c.config] for c in candidates]
    families = [(tile, c.scheme and c.scheme.family) for tile, c in zip(tiles, candidates, strict=True)]
    seconds = _counts_before(families)
    order = sorted(range(len(candidates)), key=lambda i: (seconds[i], i))
    of_tile = dict(zip(order, _counts_before([tiles[i] for i in order]), strict=True))
    return [candidates[i] for i in sorted(order, key=lambda i: of_tile[i] >= MOST_OF_TILE)]


def _counts_before(items: Sequence[Hashable]) -> list[int]:
    """How many of the items before each are equal to it."""
    seen: Counter[Hashable] = Counter()
    found = []
    for item in items:
        found.append(seen[item])
        seen[item] += 1
    return found
