"""The race of GEMM configurations against the whole ranking, on the recorded profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from warpplan.kernels.gemm.explain import loop, race
from warpplan.kernels.gemm.kernel import Gemm
from warpplan.kernels.gemm.space import config_of
from warpplan.planner.predict.alternatives import QUANTITIES, RankedCandidates, flips, needs
from warpplan.planner.values.device import H200
from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded

SHAPE, DTYPE = (1024, 1024, 4096), "bfloat16"


@pytest.fixture(scope="module")
def profile() -> Profile:
    return embedded(H200.name)


@pytest.fixture(scope="module")
def contest(profile: Profile) -> RankedCandidates:
    return race(SHAPE, DTYPE, H200, profile, contenders=4)


def test_the_race_is_the_ranking(profile: Profile, contest: RankedCandidates) -> None:
    ranked = Gemm().rank(SHAPE, DTYPE, H200, profile, limit=1000)
    predicted = {r.config: r.prediction for r in ranked}
    assert contest.configs[0] == ranked[0].config
    assert [predicted[c] for c in contest.configs] == list(contest.predictions())
    assert len(set(contest.names)) == len(contest.names) == 4
    times = [p.time_us for p in contest.predictions()]
    assert times == sorted(times)


def test_unchanged_costs_give_the_columns_back(profile: Profile, contest: RankedCandidates) -> None:
    for row in range(len(contest.names)):
        for column, value in contest.loop(row, profile.costs).items():
            assert getattr(contest.work, column)[row] == value


def test_what_the_next_best_needs_is_enough_and_no_more(profile: Profile, contest: RankedCandidates) -> None:
    target = contest.predictions()[0].time_us
    found = needs(contest)
    assert any(need.factor is not None for need in found)
    for need in found:
        for factor, wins in ((need.factor, True), (need.factor and need.factor + 0.002, False), (0.011, True)):
            if need.factor is None and factor is not None:
                wins = False
            if factor is None or factor >= 1:
                continue
            less = {c: getattr(contest.work, c) * factor for c in QUANTITIES[need.quantity]}
            assert (contest.times(replace(contest.work, **less), profile)[1] <= target) == wins, need


def test_a_flip_flips_the_ranking(profile: Profile, contest: RankedCandidates) -> None:
    """The measured number that decides, changed in the profile, and everything solved and predicted anew."""
    found = flips(contest)
    assert found.examined == found.numbers > 10
    assert [abs(np.log(f.factor)) for f in found.flips] == sorted(abs(np.log(f.factor)) for f in found.flips)
    cost = next(f for f in found.flips if " of " in f.measured)
    name, label = cost.measured.split(" of ", 1)
    for exponent, changes in ((0.9, False), (1.1, True)):
        changed = _scaled(profile, name, label, cost.factor**exponent)
        configs = [config_of(config) for config in contest.configs]
        mine = [p.time_us for p in Gemm().predicted(configs, SHAPE, DTYPE, H200, changed)]
        assert (int(np.argmin(mine)) != 0) == changes, cost
        if changes:
            assert mine[contest.names.index(cost.winner)] < mine[0]


def test_the_work_can_be_ended(contest: RankedCandidates) -> None:
    found = flips(contest, progress=lambda done, total: done < 3)
    assert (found.examined, found.numbers > 3) == (3, True)


def test_the_loop_is_that_of_the_plan(profile: Profile, contest: RankedCandidates) -> None:
    config = contest.configs[0]
    found = loop(config, DTYPE, H200, profile)
    expected = Gemm().plan(config, DTYPE, H200, profile)
    assert found.outcome.plan == expected.plan
    assert found.graph.name == found.outcome.plan.graph
    assert found.epilogue_cycles == round(float(contest.work.epilogue_cycles[0]))


def _scaled(profile: Profile, name: str, label: str, factor: float) -> Profile:
    def changed(cost):
        q = getattr(cost, name)
        return replace(cost, **{name: replace(q, p50=q.p50 * factor, p90=q.p90 * factor)})

    entries = tuple(replace(e, cost=changed(e.cost)) if e.label == label else e for e in profile.costs.entries)
    assert entries != profile.costs.entries
    return replace(profile, costs=replace(profile.costs, entries=entries))
