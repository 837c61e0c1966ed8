"""Attention backward as the planner sees it: shapes with options parsed, candidates ranked, loops planned."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from warpplan.kernels import registry
from warpplan.kernels.attention_bwd.candidates import candidates, structures
from warpplan.kernels.attention_bwd.graph import (
    loop_graph,
    plan_candidate,
    reduction_cost,
    sustained_ii,
    sustained_query_ii,
)
from warpplan.kernels.attention_bwd.kernel import ATTENTION_BWD, AttentionBwd, masked_shape
from warpplan.kernels.attention_bwd.space import HEAD_DIMS, AttentionBwdConfig, tuning
from warpplan.planner.check.plan_check import check
from warpplan.planner.errors import Infeasible, InvalidConfig, InvalidShape, MissingCosts
from warpplan.planner.values.costs import CostEntry, CostTable
from warpplan.planner.values.device import B200, H200
from warpplan.service.cli.app import main

BACKWARD = AttentionBwd()
LONG = (4, 16, 4096, 128)
GOOD = {"B": 2, "H": 8, "L": 100, "D": 64}
WIDE = AttentionBwdConfig(128, 128, 64, 2)


def test_registry():
    assert registry.kernel("attention_bwd").declaration is ATTENTION_BWD


@pytest.mark.parametrize("example", ATTENTION_BWD.examples, ids=str)
def test_examples_are_shapes_and_have_plans(profile, example):
    assert BACKWARD.parse_shape(ATTENTION_BWD.named(example), "bfloat16") == example
    assert BACKWARD.rank(example, "bfloat16", H200, profile, limit=1)


def test_one_computation_has_one_shape():
    plain = BACKWARD.parse_shape(GOOD, "bfloat16")
    assert plain == (2, 8, 100, 64)
    said = {"mask": "full", "kv_heads": 8, "kv_length": "100", "window": "all", "deterministic": "no"}
    assert BACKWARD.parse_shape(GOOD | said, "bfloat16") == plain
    asked = BACKWARD.parse_shape(GOOD | {"mask": "causal", "kv_heads": "2", "deterministic": "yes"}, "float16")
    assert asked == (2, 8, 100, 64, "mask=causal", "kv_heads=2", "deterministic=yes")
    packed = BACKWARD.parse_shape(GOOD | {"sizes": [100, 7], "deterministic": "yes"}, "float16")
    assert packed == (2, 8, 100, 64, "sizes=100,7", "deterministic=yes")
    assert masked_shape(packed).sizes == (100, 7)
    assert masked_shape(asked).kv_heads == 2


BAD = {
    "no head": ({**GOOD, "H": 0}, "H", "H=0 is too small"),
    "missing": ({"B": 1, "H": 8, "L": 8}, "D", "attention_bwd needs D: give it as D=SIZE"),
    "head size": ({**GOOD, "D": 96}, "D", "D=96 is none of 64, 128"),
    "heads": ({**GOOD, "kv_heads": 3}, "kv_heads", "kv_heads=3 does not divide H=8"),
    "deterministic": ({**GOOD, "deterministic": "maybe"}, "deterministic", "expected no, yes"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_shapes_name_what_is_wrong(name):
    given, field, text = BAD[name]
    with pytest.raises(InvalidShape) as caught:
        BACKWARD.parse_shape(given, "bfloat16")
    assert caught.value.field == field
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [(), ("mask=causal",), ("mask=causal", "window=511"), ("window=200",), ("mask=causal", "sizes=equal")],
    ids=str,
)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_candidate_is_ranked_once_best_first(profile, head_dim, options):
    for sizes in ((1, 1, 1, head_dim), (2, 8, 500, head_dim), (4, 16, 4096, head_dim)):
        shape = (*sizes, *options)
        ranked = BACKWARD.ranked(shape, "bfloat16", H200, profile)
        assert sorted(c for c, _ in ranked) == sorted(candidates(masked_shape(shape), "bfloat16", H200))
        times = [prediction.time_us for _, prediction in ranked]
        assert times[0] >= 0.9 * BACKWARD.floor_us(shape, "bfloat16", H200, profile)
        assert all(a <= b + 2e-6 * times[0] for a, b in itertools.pairwise(times))


def test_a_deterministic_plan_has_no_reductions_and_takes_longer(profile):
    fast, same = (BACKWARD.rank((*LONG, *more), "bfloat16", H200, profile)[0] for more in ((), ("deterministic=yes",)))
    assert dict(fast.config.kwargs)["DQ"] == "reduce"
    assert dict(same.config.kwargs)["DQ"] == "separate"
    assert 1.1 < same.prediction.time_us / fast.prediction.time_us < 1.6


def test_longer_sequences_take_longer_and_masks_save(profile):
    def best(length: int, *options: str) -> float:
        return BACKWARD.rank((2, 16, length, 128, *options), "bfloat16", H200, profile)[0].prediction.time_us

    times = [best(length) for length in (64, 500, 2048, 8192)]
    assert times == sorted(times)
    assert 0.5 < best(8192, "mask=causal") / best(8192) < 0.62


def test_a_reduction_is_priced_as_measured_once_it_is(profile):
    size = WIDE.reduced_bytes
    before = CostTable(tuple(e for e in profile.costs.entries if e.kind != "tma_reduce"))
    assert reduction_cost(before, size) == before.lookup("tma_store", size)
    assert reduction_cost(profile.costs, size) == profile.costs.lookup("tma_reduce", size)
    dear = CostEntry("tma_reduce", (("bytes", size),), before.lookup("tma_store", 2 * size))
    assert reduction_cost(CostTable((*before.entries, dear)), size) == dear.cost


def test_missing_costs_are_named(profile):
    entries = tuple(e for e in profile.costs.entries if e.kind != "exp2")
    with pytest.raises(MissingCosts, match="no measured cost for exp2"):
        BACKWARD.rank(LONG, "bfloat16", H200, replace(profile, costs=CostTable(entries)))


def test_what_has_no_plan_says_so(profile):
    with pytest.raises(Infeasible, match="attention_bwd runs on Hopper alone"):
        BACKWARD.rank(LONG, "bfloat16", B200, profile)
    with pytest.raises(InvalidConfig, match="invalid attention_bwd configuration: depth 3"):
        BACKWARD.plan(tuning(replace(WIDE, depth=3)), "bfloat16", H200, profile)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_structure_has_an_optimal_plan_that_passes_the_checker(profile, head_dim):
    for config in structures(head_dim, "bfloat16", H200):
        outcome = plan_candidate(config, "bfloat16", H200, profile.costs)
        graph = loop_graph(config, "bfloat16", H200, profile.costs)
        assert outcome.status == "optimal"
        assert check(outcome.plan, graph) == ()
        # Five products, or four and three; an SM multiplies 2,048 pairs of 16 bits a cycle.
        product = config.keys * config.rows * head_dim / 2048
        assert outcome.plan.schedule.ii_cycles >= 0.99 * (5 if config.dq == "reduce" else 4) * product
        assert sustained_ii(config, "bfloat16", H200, profile.costs) >= outcome.plan.schedule.ii_cycles
        if config.dq == "separate":
            assert sustained_query_ii(config, "bfloat16", H200, profile.costs) >= 0.99 * 3 * product


def test_every_structure_is_at_hand_without_a_solver(profile, monkeypatch):
    monkeypatch.setattr("warpplan.planner.solve.solve", None)
    for dtype, head_dim, packed in itertools.product(ATTENTION_BWD.dtypes, HEAD_DIMS, (False, True)):
        for config in structures(head_dim, dtype, H200, packed):
            assert plan_candidate(config, dtype, H200, profile.costs).plan is not None
    for example in ATTENTION_BWD.examples:
        assert BACKWARD.rank(example, "bfloat16", H200, profile, limit=1)


def test_an_explanation_has_unlike_structures_and_their_loops(profile):
    race = BACKWARD.race(LONG, "bfloat16", H200, profile)
    assert len(set(race.names)) == len(race.names) == 5
    loop = BACKWARD.loop(race.configs[0], "bfloat16", H200, profile)
    assert loop.outcome.plan is not None
    assert loop.epilogue_cycles > 0


def test_the_command_line_answers(profile, capsys):
    assert main(["plan", "attention_bwd", "B=1", "H=8", "L=2048", "D=128", "mask=causal", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    shape = (1, 8, 2048, 128, "mask=causal")
    (best,) = BACKWARD.rank(shape, "bfloat16", H200, profile, limit=1)
    assert answer["config"] == best.config.as_dict()
