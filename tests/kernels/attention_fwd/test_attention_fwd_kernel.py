"""Attention forward as the planner sees it: shapes with options parsed, candidates ranked, loops planned."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.kernels import registry
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.attention_fwd.candidates import candidates, structures
from warpplan.kernels.attention_fwd.graph import loop_graph, plan_candidate, sustained_ii
from warpplan.kernels.attention_fwd.kernel import ATTENTION_FWD, AttentionFwd, attention_shape
from warpplan.kernels.attention_fwd.space import HEAD_DIMS, AttentionConfig, tuning
from warpplan.kernels.attention_fwd.work import work
from warpplan.planner.check.plan_check import check
from warpplan.planner.errors import Infeasible, InvalidConfig, InvalidShape, MissingCosts, UnknownName
from warpplan.planner.values.costs import CostTable, Quantiles
from warpplan.planner.values.device import B200, H200
from warpplan.planner.values.profile import Rate
from warpplan.service.cli.app import main

ATTENTION = AttentionFwd()
FP8 = "float8_e4m3fn"
LONG = (4, 16, 4096, 128)
GOOD = {"B": 2, "H": 8, "L": 100, "D": 64}

# Shapes


def test_registry():
    assert registry.kernel("attention_fwd").declaration is ATTENTION_FWD
    assert ATTENTION_FWD.dimensions == ("B", "H", "L", "D")


@pytest.mark.parametrize("example", ATTENTION_FWD.examples, ids=str)
def test_examples_are_shapes_and_have_plans(profile, example):
    assert ATTENTION.parse_shape(ATTENTION_FWD.named(example), "bfloat16") == example
    assert ATTENTION.rank(example, "bfloat16", H200, profile, limit=1)


def test_one_computation_has_one_shape():
    plain = ATTENTION.parse_shape(GOOD, "bfloat16")
    assert plain == (2, 8, 100, 64)
    said = {"mask": "full", "kv_heads": 8, "kv_length": "100", "window": "all"}
    assert ATTENTION.parse_shape(GOOD | said, "bfloat16") == plain
    asked = ATTENTION.parse_shape(GOOD | {"mask": "causal", "kv_heads": "2", "window": [0]}, "float16")
    assert asked == (2, 8, 100, 64, "mask=causal", "kv_heads=2", "window=0")
    assert attention_shape(asked) == AttentionShape(2, 8, 100, 64, 2, 100, True, 0)


BAD = {
    "no head": ({**GOOD, "H": 0}, "H", "H=0 is too small"),
    "negative": ({**GOOD, "L": -1}, "L", "L=-1 is too small"),
    "missing": ({"B": 1, "H": 8, "L": 8}, "D", "attention_fwd needs D: give it as D=SIZE"),
    "head size": ({**GOOD, "D": 96}, "D", "D=96 is none of 64, 128, 256: pad the heads"),
    "heads": ({**GOOD, "kv_heads": 3}, "kv_heads", "kv_heads=3 does not divide H=8"),
    "more key heads": ({**GOOD, "kv_heads": 16}, "kv_heads", "kv_heads=16 does not divide H=8"),
    "no key": ({**GOOD, "kv_length": 0}, "kv_length", "kv_length=0: expected one number from 1 to 1048576"),
    "two numbers": ({**GOOD, "window": "1,2"}, "window", "window=1,2: expected one number from 0"),
    "mask": ({**GOOD, "mask": "lower"}, "mask", "expected full, causal"),
    "too few sequences": (
        {**GOOD, "sizes": "100"},
        "sizes",
        "sizes has 1 numbers, the largest 100: expected B=2 numbers",
    ),
    "no longest sequence": ({**GOOD, "sizes": "99,98"}, "sizes", "the largest 99: expected B=2 numbers and L=100"),
    "too long": ({**GOOD, "L": 1 << 21}, "L", "L=2097152 is too large"),
    "too many rows": ({**GOOD, "B": 65536, "L": 1 << 20}, "rows of Q", "at most 2147483648"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_shapes_name_what_is_wrong(name):
    given_, field, text = BAD[name]
    with pytest.raises(InvalidShape) as caught:
        ATTENTION.parse_shape(given_, "bfloat16")
    assert caught.value.field == field
    assert text in str(caught.value)


@given(
    st.integers(1, 60), st.integers(1, 60), st.booleans(), st.one_of(st.none(), st.integers(0, 70)),
    st.sampled_from([1, 8, 13]), st.sampled_from([1, 4, 16]),
)  # fmt: skip
def test_pairs_and_blocks_count_the_mask(q_length, k_length, causal, window, rows, columns):
    """Against the mask written out; blocks begin at the first key that a tile sees."""
    shape = AttentionShape(1, 1, q_length, 64, 1, k_length, causal, window)
    position, key = np.arange(k_length - q_length, k_length)[:, None], np.arange(k_length)[None, :]
    seen = np.ones((q_length, k_length), bool)
    if causal:
        seen &= key <= position
    if window is not None:
        seen &= abs(key - position) <= window
    assert shape.pairs == seen.sum()
    for tile, blocks in enumerate(shape.blocks(rows, columns).tolist()):
        found = np.flatnonzero(seen[tile * rows : (tile + 1) * rows].any(0))
        assert blocks == (-(-(found[-1] + 1 - found[0]) // columns) if found.size else 1)


def test_packed_sequences_ask_for_what_each_of_them_does():
    sizes = (100, 0, 37, 100)
    asked = ATTENTION.parse_shape({"B": 4, "H": 8, "L": 100, "D": 64, "mask": "causal", "sizes": sizes}, "bfloat16")
    assert asked == (4, 8, 100, 64, "mask=causal", "sizes=100,0,37,100")
    shape = attention_shape(asked)
    alone = [AttentionShape(1, 8, size, 64, 8, size, True) for size in sizes if size]
    assert shape.flops == sum(one.flops for one in alone)
    assert shape.moved_bytes(2) == sum(one.moved_bytes(2) for one in alone)
    assert shape.q_rows == sum(sizes)
    equal = attention_shape(ATTENTION.parse_shape(GOOD | {"sizes": "equal"}, "bfloat16"))
    assert equal.sequences == ((2, AttentionShape(1, 8, 100, 64, 8, 100)),)
    more = attention_shape(ATTENTION.parse_shape(GOOD | {"sizes": "100,7", "kv_length": 130}, "bfloat16"))
    assert [one.k_length for _, one in more.sequences] == [130, 37]


# Ranking


@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 9000), st.sampled_from(HEAD_DIMS),
    st.booleans(), st.one_of(st.just("all"), st.integers(0, 3000)),
)  # fmt: skip
@settings(deadline=None, max_examples=25)
def test_every_candidate_is_ranked_once_best_first(profile, batch, kv_heads, sharers, length, head_dim, causal, window):
    given_ = {"B": batch, "H": kv_heads * sharers, "L": length, "D": head_dim, "kv_heads": kv_heads, "window": window}
    shape = ATTENTION.parse_shape(given_ | {"mask": "causal" if causal else "full"}, "bfloat16")
    ranked = ATTENTION.ranked(shape, "bfloat16", H200, profile)
    configs = [config for config, _ in ranked]
    assert sorted(configs) == sorted(candidates(attention_shape(shape), "bfloat16", H200))
    times = [prediction.time_us for _, prediction in ranked]
    assert times[0] > 0
    assert all(a <= b + 2e-6 * times[0] for a, b in itertools.pairwise(times))
    assert times[0] >= 0.9 * ATTENTION.floor_us(shape, "bfloat16", H200, profile)


@pytest.mark.parametrize("options", [(), ("mask=causal",), ("mask=causal", "window=511"), ("window=200",)], ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_longer_sequences_take_longer(profile, head_dim, options):
    def best(length: int) -> float:
        return ATTENTION.rank((2, 8, length, head_dim, *options), "bfloat16", H200, profile)[0].prediction.time_us

    lengths = (64, 500, 1000, 2048, 5000, 8192, 20_000)
    times = [best(length) for length in lengths]
    assert times == sorted(times)
    assert times[-1] > 5 * times[1]


def test_what_the_mask_hides_is_not_computed(profile):
    def best(*options: str) -> float:
        return ATTENTION.rank((1, 16, 16384, 128, *options), "bfloat16", H200, profile)[0].prediction.time_us

    full, causal, window = best(), best("mask=causal"), best("mask=causal", "window=1023")
    assert 0.5 < causal / full < 0.6
    assert window < 0.2 * causal


def test_the_busiest_program_is_that_of_the_longest_first_order(profile):
    """Blocks of keys of the busiest of 132 programs, counted one by one."""
    shape = AttentionShape(2, 8, 5000, 128, 2, 5000, True)
    configs = [replace(AttentionConfig(128, 2, 64, 128, 2), head_group=group) for group in (1, 3, 16)]
    made = work(configs, shape, "bfloat16", H200, profile)
    blocks = shape.blocks(128, 128)
    for config, trips in zip(configs, made.trips.tolist(), strict=True):
        order = []
        for first in range(0, 16, config.head_group):
            heads = min(config.head_group, 16 - first)
            order += [b for b in blocks[::-1].tolist() for _ in range(heads)]
        assert trips == max(sum(order[program::132]) for program in range(132))


@pytest.mark.parametrize("sizes", ["equal", "5000,5000", "5000,17", "0,5000"])
def test_the_busiest_program_of_packed_sequences(profile, sizes):
    """Units count through a sequence's bands of heads, tile by tile, then through the next sequence's."""
    shape = attention_shape((2, 8, 5000, 128, "mask=causal", f"sizes={sizes}"))
    configs = [replace(AttentionConfig(128, 2, 64, 128, 2, packed=True), head_group=group) for group in (1, 3, 8)]
    made = work(configs, shape, "bfloat16", H200, profile)
    for config, trips in zip(configs, made.trips.tolist(), strict=True):
        order = []
        for size in shape.sizes:
            blocks = AttentionShape(1, 8, size, 128, 8, size, True).blocks(128, 128) if size else np.zeros(0, int)
            for first in range(0, 8, config.head_group):
                heads = min(config.head_group, 8 - first)
                order += [b for b in blocks[::-1].tolist() for _ in range(heads)]
        assert trips == max(sum(order[program::132]) for program in range(132))


def test_packed_sequences_of_one_length_take_what_a_batch_does(profile):
    """But for the two structures that packing leaves no registers."""
    for options in ((), ("mask=causal",), ("window=300",)):
        shape = (4, 16, 4096, 128, *options)
        plain, packed = (ATTENTION.rank((*shape, *s), "bfloat16", H200, profile)[0] for s in ((), ("sizes=equal",)))
        assert packed.prediction.time_us == pytest.approx(plain.prediction.time_us, rel=0.02)
        assert "PACKED" not in dict(plain.config.kwargs)
        assert dict(packed.config.kwargs)["PACKED"] is True


def test_unknown_names(profile):
    for call in (
        lambda: ATTENTION.rank(LONG, "float32", H200, profile),
        lambda: ATTENTION.parse_shape(GOOD, "float32"),
    ):
        with pytest.raises(UnknownName, match="unknown dtype 'float32': expected one of bfloat16, float16"):
            call()


def test_missing_costs_are_named(profile):
    entries = tuple(e for e in profile.costs.entries if e.kind != "exp2")
    with pytest.raises(MissingCosts, match="no measured cost for exp2"):
        ATTENTION.rank(LONG, "bfloat16", H200, replace(profile, costs=CostTable(entries)))


def test_a_device_without_wgmma_has_no_plan(profile):
    with pytest.raises(Infeasible, match="attention_fwd runs on Hopper alone"):
        ATTENTION.rank(LONG, "bfloat16", B200, profile)


# Plans


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_plans_are_optimal_and_pass_the_checker(profile, head_dim):
    for config in structures(head_dim, "bfloat16", H200)[::4]:
        outcome = ATTENTION.plan(tuning(config), "bfloat16", H200, profile)
        assert outcome.status == "optimal"
        assert outcome.plan is not None
        assert check(outcome.plan, loop_graph(config, "bfloat16", H200, profile.costs)) == ()
        assert outcome.plan.partitions[-1].name == "producer"
        assert len(outcome.plan.partitions) == 1 + config.consumers
        found = outcome.optimality
        assert found.bound_cycles <= found.free_ii_cycles <= found.served_ii_cycles


def test_products_issued_together_hide_the_softmax(profile):
    """A consumer alone gains by its own lookahead; two with serial products hide each other's softmax in part."""
    ahead, serial = AttentionConfig(128, 1, 64, 128, 2), AttentionConfig(128, 1, 64, 128, 2, lookahead=False)
    products = 2 * 8 * 64
    one = {c: sustained_ii(c, "bfloat16", H200, profile.costs) for c in (ahead, serial)}
    two = {c: sustained_ii(replace(c, consumers=2), "bfloat16", H200, profile.costs) for c in (ahead, serial)}
    assert products < one[ahead] < one[serial] - 500
    assert 2 * products <= two[ahead] < two[serial] < 2 * one[serial]


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_plans_in_fp8_are_optimal_and_pass_the_checker(profile, head_dim):
    for config in structures(head_dim, FP8, H200)[::6]:
        outcome = ATTENTION.plan(tuning(config), FP8, H200, profile)
        assert outcome.status == "optimal"
        assert check(outcome.plan, loop_graph(config, FP8, H200, profile.costs)) == ()
        assert outcome.plan.smem_bytes <= config.smem_bytes(1)


def test_products_in_fp8_take_half_as_long_and_the_softmax_the_same(profile):
    config = AttentionConfig(128, 2, 64, 128, 2)
    wide, narrow = (
        {op.id: op for op in loop_graph(config, dtype, H200, profile.costs).ops} for dtype in ("bfloat16", FP8)
    )
    for name in ("qk0", "pv0"):
        assert narrow[name].occupancy == pytest.approx(wide[name].occupancy / 2, rel=0.01)
    assert all(narrow[name] == wide[name] for name in ("max0", "exp0", "sum0"))
    assert narrow["load_k"].buffer_bytes == wide["load_k"].buffer_bytes // 2
    assert narrow["convert0"].registers == wide["convert0"].registers // 2 == 16
    # A quarter of a move for each weight.
    moved = profile.costs.lookup("elementwise", 64 * 128 + 64 * 128 // 4).latency.p50
    assert narrow["rescale0"].latency == round(moved)


def test_packing_is_timed_by_its_own_probe_once_a_profile_has_it(profile):
    config = AttentionConfig(128, 2, 64, 128, 2)
    converted = [e for e in profile.costs.entries if e.kind == "convert_fp8"]
    packed = [
        replace(
            e, kind="pack_fp8", cost=replace(e.cost, latency=Quantiles(7.0, 7.0, 9), occupancy=Quantiles(7.0, 7.0, 9))
        )
        for e in converted
    ]
    known = [e for e in profile.costs.entries if e.kind != "pack_fp8"]
    costs = CostTable((*known, *packed))
    assert [op.latency for op in loop_graph(config, FP8, H200, costs).ops if op.id == "convert0"] == [7]


def test_the_pass_over_v_is_within_the_predicted_time(profile):
    """As a copy of V takes, or as long as was measured; 16-bit kernels have none."""
    configs = (AttentionConfig(128, 2, 64, 128, 2),)
    shape = attention_shape((4, 16, 4096, 128, "kv_heads=4"))
    assert not work(configs, shape, "bfloat16", H200, profile).fix_up_cycles.any()
    ceilings = dict(profile.ceilings)
    moved = 2 * 4 * 4 * 4096 * 128
    for rate, more in (
        (ceilings["copy_bytes_per_s"].p50, ()),
        (1e12, (("value_pass_bytes_per_s", Rate(1e12, 1e12, 1e12, 9)),)),
    ):
        seconds = moved / rate + ceilings["launch_us"].p50 * 1e-6
        known = replace(profile, ceilings=(*profile.ceilings, *more))
        (cycles,) = work(configs, shape, FP8, H200, known).fix_up_cycles
        assert cycles == pytest.approx(seconds * ceilings["clock_hz_idle"].p50)
    with pytest.raises(MissingCosts, match="ceiling copy_bytes_per_s"):
        work(
            configs,
            shape,
            FP8,
            H200,
            replace(
                profile, ceilings=tuple((name, rate) for name, rate in profile.ceilings if name != "copy_bytes_per_s")
            ),
        )


def test_a_window_in_fp8_begins_at_a_step_of_keys(profile):
    shape = attention_shape((1, 2, 1000, 64, "mask=causal", "window=100"))
    assert shape.blocks(128, 64, 16).sum() >= shape.blocks(128, 64).sum()
    # Rows 128 to 255 see the keys from 28 on: 16 to 255 are four blocks.
    assert shape.blocks(128, 64, 16).tolist()[1] == 4


def test_fp8_gains_most_where_the_products_take_longest(profile):
    """With heads of 64 the exponentials take as long as the products in fp8 do."""
    gains = []
    for head_dim in HEAD_DIMS:
        wide, narrow = (
            ATTENTION.rank((2, 16, 8192, head_dim), dtype, H200, profile)[0].prediction.time_us
            for dtype in ("bfloat16", FP8)
        )
        gains.append(wide / narrow)
    assert 1.0 < gains[0] < gains[1] < gains[2]


def test_packed_sequences_have_no_fp8():
    with pytest.raises(InvalidShape, match="sizes with float8_e4m3fn: packed sequences are of bfloat16 or float16"):
        ATTENTION.parse_shape(GOOD | {"sizes": "equal"}, FP8)


def test_a_ranked_plan_solves_to_the_plan_of_its_configuration(profile):
    for ranked in ATTENTION.rank(LONG, "bfloat16", H200, profile, limit=3):
        planned = ATTENTION.plan(ranked.config, "bfloat16", H200, profile)
        assert replace(ranked.solve(), seconds=0.0) == replace(planned, seconds=0.0)


def test_a_configuration_that_cannot_run_has_no_plan(profile):
    with pytest.raises(InvalidConfig, match="invalid attention_fwd configuration: 264192 bytes of shared memory"):
        ATTENTION.plan(tuning(AttentionConfig(128, 2, 64, 128, 3)), "bfloat16", H200, profile)


def test_an_explanation_has_unlike_structures_and_their_loops(profile):
    race = ATTENTION.race(LONG, "bfloat16", H200, profile)
    assert len(set(race.names)) == len(race.names) == 5
    ranked = ATTENTION.rank(LONG, "bfloat16", H200, profile, limit=1)
    assert race.configs[0] == ranked[0].config
    assert race.predictions()[0] == ranked[0].prediction
    loop = ATTENTION.loop(race.configs[0], "bfloat16", H200, profile)
    assert loop.outcome.plan is not None
    assert loop.epilogue_cycles > 0
    assert race.loop(0, profile.costs)["ii_cycles"] >= loop.outcome.plan.schedule.ii_cycles


def test_calibration_asks_for_the_work_of_valid_configurations(profile):
    good, bad = tuning(AttentionConfig(128, 2, 64, 128, 2)), tuning(AttentionConfig(128, 2, 64, 128, 3))
    rows, (made,) = ATTENTION.device_works([bad, good], [LONG], "bfloat16", H200, profile)
    assert rows == {good: 0}
    assert made.flops == attention_shape(LONG).flops


def test_every_structure_is_at_hand_without_a_solver(profile, monkeypatch):
    monkeypatch.setattr("warpplan.planner.solve.solve", None)
    for dtype, head_dim in itertools.product(ATTENTION_FWD.dtypes, HEAD_DIMS):
        for config in structures(head_dim, dtype, H200):
            assert plan_candidate(config, dtype, H200, profile.costs).plan is not None


@pytest.mark.parametrize("dtype", ["bfloat16", FP8])
def test_the_command_line_answers(profile, capsys, dtype):
    sizes = ["B=1", "H=32", "L=8192", "D=128", "mask=causal", "kv_heads=8", "window=1023"]
    assert main(["plan", "attention_fwd", *sizes, "--dtype", dtype, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    shape = (1, 32, 8192, 128, "mask=causal", "kv_heads=8", "window=1023")
    (best,) = ATTENTION.rank(shape, dtype, H200, profile, limit=1)
    assert answer["kernel"] == "attention_fwd"
    assert answer["shape"] == ATTENTION_FWD.named(shape)
    assert answer["config"] == best.config.as_dict()
    assert answer["predicted"]["time_us"] == pytest.approx(best.prediction.time_us)
