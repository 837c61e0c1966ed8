"""The GEMM as the planner sees it: shapes parsed, candidates ranked, loops planned, costs missing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.kernels import registry
from warpplan.kernels.declaration import MAX_ELEMENTS
from warpplan.kernels.gemm.candidates import candidates, planned_structures, structures, tabulate
from warpplan.kernels.gemm.graph import loop_graph
from warpplan.kernels.gemm.kernel import EARLY_BESIDE_US, EARLY_US, Gemm
from warpplan.kernels.gemm.space import SCHEMES, GemmConfig, Shape, config_of, tuning, violations
from warpplan.kernels.gemm.work import SLOTS_AT_ONCE, SUMS_AT_ONCE, solve_table, structure, work
from warpplan.planner.check.plan_check import check
from warpplan.planner.errors import Infeasible, InvalidConfig, InvalidShape, MissingCosts, UnknownName
from warpplan.planner.predict.time_model import DeviceWork
from warpplan.planner.values.costs import CostEntry, CostTable, OperationCost, Quantiles
from warpplan.planner.values.device import B200, H200
from warpplan.planner.values.profile import Profile
from warpplan.profiler.recalibrate import with_calibration

GEMM = Gemm()
SQUARE = (4096, 4096, 4096)


def without(profile: Profile, *kinds: str) -> Profile:
    return replace(profile, costs=CostTable(tuple(e for e in profile.costs.entries if e.kind not in kinds)))


# Shapes


def test_registry():
    assert registry.names()[0] == registry.DEFAULT == "gemm"
    assert registry.kernel("gemm").declaration.dimensions == ("M", "N", "K")
    with pytest.raises(UnknownName, match="unknown kernel 'gemv': expected one of gemm"):
        registry.kernel("gemv")


@pytest.mark.parametrize("sizes", [{"K": 64, "M": 1, "N": 3}, {"M": "1", "N": " 3 ", "K": "064"}])
def test_sizes_come_back_in_order(sizes):
    assert GEMM.parse_shape(sizes, "bfloat16") == (1, 3, 64)


@given(st.integers(1, 10**6), st.integers(1, 2000), st.integers(1, 250))
def test_every_size_that_tma_can_address_is_accepted(m, n, k):
    assert GEMM.parse_shape({"M": m, "N": str(n), "K": 8 * k}, "float16") == (m, n, 8 * k)


GOOD = {"M": 64, "N": 64, "K": 64}
BAD = {
    "missing": ({"M": 64, "N": 64}, "K", "gemm needs K: give it as K=SIZE"),
    "none": ({**GOOD, "N": None}, "N", "gemm needs N"),
    "nothing": ({}, "M", "gemm needs M"),
    "unknown": ({**GOOD, "L": 1}, "L", "gemm has no dimension or option 'L': expected M, N, K, layout"),
    "lower case": ({"m": 64, "N": 64, "K": 64}, "m", "gemm has no dimension or option 'm'"),
    "zero": ({**GOOD, "M": 0}, "M", "M=0 is too small: expected 1 or more"),
    "negative": ({**GOOD, "N": -3}, "N", "N=-3 is too small"),
    "negative text": ({**GOOD, "N": "-3"}, "N", "N=-3 is too small"),
    "fraction": ({**GOOD, "M": "12.5"}, "M", "M='12.5' is not a whole number"),
    "exponent": ({**GOOD, "M": "1e3"}, "M", "M='1e3' is not a whole number"),
    "float": ({**GOOD, "M": 64.0}, "M", "M=64.0 is not a whole number"),
    "truth": ({**GOOD, "M": True}, "M", "M=True is not a whole number"),
    "empty": ({**GOOD, "M": ""}, "M", "M='' is not a whole number"),
    "underscored": ({**GOOD, "M": "1_000"}, "M", "M='1_000' is not a whole number"),
    "other digits": ({**GOOD, "M": "٤"}, "M", "is not a whole number"),
    "list": ({**GOOD, "M": [64]}, "M", "M=[64] is not a whole number"),
    "huge": ({**GOOD, "M": 2**31 + 1}, "M", "M=2147483649 is too large: expected 2147483648 or less"),
    "huge text": ({**GOOD, "M": "9" * 19}, "M", "is too large"),
    "unaligned K": ({**GOOD, "K": 4097}, "K", "pad K to 4104"),
    "tiny K": ({**GOOD, "K": 1}, "K", "pad K to 8"),
    "unknown layout": ({**GOOD, "layout": "nnt"}, "layout", "layout='nnt' is unknown: expected nt, nn, tn, tt"),
    "unaligned M": ({**GOOD, "M": 65, "layout": "tt"}, "M", "M=65 makes bfloat16 rows of 130 bytes in A"),
    "unaligned N": ({**GOOD, "N": 65, "layout": "nn"}, "N", "N=65 makes bfloat16 rows of 130 bytes in B"),
    "unaligned K of B": ({**GOOD, "K": 65, "layout": "tt"}, "K", "K=65 makes bfloat16 rows of 130 bytes in B"),
    "too many elements of A": ({"M": 65536, "N": 1, "K": 65536}, "A", "A of 65536 x 65536 has 4294967296 elements"),
    "too many elements of B": ({"M": 1, "N": 65536, "K": 65536}, "B", "at most 2147483648"),
    "too many elements of C": ({"M": 65536, "N": 65536, "K": 8}, "C", "C of 65536 x 65536"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_shapes_name_what_is_wrong(name):
    sizes, field, text = BAD[name]
    with pytest.raises(InvalidShape) as caught:
        GEMM.parse_shape(sizes, "bfloat16")
    assert caught.value.field == field
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.integers(1, 40_000).filter(lambda k: k % 8))
def test_the_padding_that_is_proposed_is_the_next_that_works(k):
    with pytest.raises(InvalidShape, match="pad K to") as caught:
        GEMM.parse_shape({"M": 1, "N": 1, "K": k}, "bfloat16")
    padded = int(str(caught.value).rsplit(" ", 1)[1])
    assert GEMM.parse_shape({"M": 1, "N": 1, "K": padded}, "bfloat16") == (1, 1, padded)
    assert k < padded < k + 8


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 5000), st.sampled_from(("nt", "nn", "tn", "tt")))
def test_the_contiguous_dimensions_alone_must_be_whole_16_bytes(m, n, k, layout):
    contiguous = (k if layout[0] == "n" else m, k if layout[1] == "t" else n)
    given = {"M": m, "N": n, "K": k, "layout": layout}
    if any(size % 8 for size in contiguous):
        with pytest.raises(InvalidShape, match="TMA needs a multiple of 16 bytes"):
            GEMM.parse_shape(given, "bfloat16")
    else:
        options = () if layout == "nt" else (f"layout={layout}",)
        assert GEMM.parse_shape(given, "bfloat16") == (m, n, k, *options)


def test_the_largest_matrix_is_accepted():
    shape = {"M": MAX_ELEMENTS // 8, "N": 8, "K": 8}
    assert GEMM.parse_shape(shape, "bfloat16") == (MAX_ELEMENTS // 8, 8, 8)


# Ranking


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 2000).map(lambda k: 8 * k))
@settings(deadline=None, max_examples=30)
def test_every_candidate_is_ranked_once_best_first(profile, m, n, k):
    shape = (m, n, k)
    ranked = GEMM.ranked(shape, "bfloat16", H200, profile)
    assert sorted(alone(ranked)) == sorted(measured_candidates(shape, profile))
    times = [prediction.time_us for _, prediction in ranked]
    assert times[0] > 0
    # Ties are resolved at one part in a million of the best time.
    assert all(a <= b + 2e-6 * times[0] for a, b in itertools.pairwise(times))
    for _, prediction in ranked[:3]:
        assert prediction.tflops == pytest.approx(2 * m * n * k / prediction.time_us * 1e-6)
        assert prediction.bound_by == max(prediction.parts, key=lambda p: p[1])[0]


def test_short_launches_of_specialised_kernels_let_the_next_begin_early(profile):
    """Exactly those that gain by it, by the model, and are short; longer where all CTAs of the next find room."""
    seen = set()
    for shape in ((128, 256, 128), (512, 1024, 1024), (330, 2048, 2048), (1, 16, 5120), (64, 4096, 4096), SQUARE):
        ranked = GEMM.ranked(shape, "bfloat16", H200, profile)
        waiting = GEMM.predicted(alone(ranked), shape, "bfloat16", H200, profile)
        able = [replace(config, launch_dependents=config.specialized) for config, _ in ranked]
        launching = GEMM.predicted(able, shape, "bfloat16", H200, profile)
        for (config, prediction), waits, launches in zip(ranked, waiting, launching, strict=True):
            tiles = config.tiles(shape) * config.split_k
            beside = not (config.split_tail or config.stream_k) and 2 * tiles <= config.resident(H200.sm_count)
            short = waits.time_us < (EARLY_BESIDE_US if beside else EARLY_US)
            gains = launches.time_us < waits.time_us
            assert config.launch_dependents == (config.specialized and short and gains)
            assert prediction.time_us == pytest.approx((launches if config.launch_dependents else waits).time_us)
            assert config_of(tuning(config)) == config
            seen.add((config.launch_dependents, beside, waits.time_us < EARLY_US, gains))
    # Early with and without room, for longer than 9 us with room, and never where short plans would lose by it.
    assert {(True, True, True, True), (True, False, True, True), (True, True, False, True)} <= seen
    assert (False, False, True, False) in seen


def work_of(profile: Profile, shape: Shape, layout: str, *configs: GemmConfig) -> DeviceWork:
    device_table = tabulate(configs, [0] * len(configs), H200)
    return work(solve_table("bfloat16", H200, profile.costs, device_table), "bfloat16", H200, shape, layout)[0]


def test_partial_sums_are_loaded_as_the_device_code_loads_them(profile):
    narrow = GemmConfig("single", 64, 16, 128, 4, 5, ctas_per_sm=2, swap=True)
    configs = [
        replace(narrow, block_n=n, block_k=64, ctas_per_sm=1, split_k=splits)
        for n, splits in ((16, 8), (16, 10), (32, 5), (32, 6), (64, 3), (64, 8), (128, 4))
    ]
    wide = GemmConfig("cooperative", 128, 256, 64, 4, 4, epilogue_split=2, split_k=3)
    found = work_of(profile, (4096, 4096, 8192), "nt", *configs, wide, replace(narrow, split_k=1))
    # 64x16 by 128 threads: 8 sums a thread and slot, 8 slots at once. 64x256 a consumer: two chunks of 64 sums.
    assert found.reduction_trips.tolist() == [1, 2, 1, 2, 1, 4, 3, 4, 0]


def test_as_many_partial_sums_at_once_as_the_device_code_says():
    stream_k = pytest.importorskip("warpplan.kernels.device.stream_k")
    assert (stream_k.SUMS_AT_ONCE.value, stream_k.SLOTS_AT_ONCE.value) == (SUMS_AT_ONCE, SLOTS_AT_ONCE)


def test_boxes_of_32_columns_fill_half_a_line_where_the_matrix_lies_by_columns(profile):
    wide = [GemmConfig("cooperative", 128, n, 64, 4, 3, epilogue_split=n // 32) for n in (96, 160, 192, 256)]
    swapped = [replace(config, swap=True) for config in wide]
    small = GemmConfig("single", 64, 16, 64, 4, 8, swap=True)
    parts = [32 / (128 + 96), 32 / (128 + 160), 0, 0]
    shape = (4096, 4096, 4096)
    assert work_of(profile, shape, "nt", *wide, *swapped, small).narrow.tolist() == [0] * 9
    assert work_of(profile, shape, "nn", *wide, *swapped).narrow.tolist() == pytest.approx([*parts, *[0] * 4])
    assert work_of(profile, shape, "tt", *wide, *swapped).narrow.tolist() == pytest.approx([*[0] * 4, *parts])
    assert work_of(profile, shape, "tn", *wide, *swapped, small).narrow.tolist() == pytest.approx(
        [*parts, *parts, 48 / (64 + 16)]
    )


def test_large_matrices_of_few_columns_have_tiles_of_few_columns(profile):
    """A tile far smaller than 128 by 128 is not too small where the matrix is as narrow; what ranks first is of the
    same kind as for less rows, and no size is refused."""
    for columns in (16, 32):
        for rows in (2**17, 151_936, 2**20):
            (config, _), *_ = GEMM.ranked((columns, rows, 512), "bfloat16", H200, profile)
            assert config.swap
            assert config.block_n == columns
            assert GEMM.ranked((rows, columns, 512), "bfloat16", H200, profile)


def test_a_short_k_is_multiplied_with_zeros_in_every_type(profile):
    for dtype, k in (("bfloat16", 8), ("float8_e4m3fn", 16), ("float8_e4m3fn", 64)):
        assert GEMM.ranked((16, 16, k), dtype, H200, profile)


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_every_layout_is_planned_and_explained(profile, layout):
    shape = (*SQUARE, f"layout={layout}")
    ranked = GEMM.ranked(shape, "bfloat16", H200, profile)

    def alike(found):
        """But for boxes that are 32 columns wide where they lie by columns."""
        return [(config, prediction) for config, prediction in found if not config.has_narrow_chunks]

    assert alike(ranked) == alike(GEMM.ranked(SQUARE, "bfloat16", H200, profile))
    assert {c for c, _ in ranked} == {c for c, _ in GEMM.ranked(SQUARE, "bfloat16", H200, profile)}
    assert GEMM.predicted([ranked[0][0]], shape, "bfloat16", H200, profile) == (ranked[0][1],)
    assert GEMM.race(shape, "bfloat16", H200, profile).configs[0] == tuning(ranked[0][0])
    assert GEMM.floor_us(shape, "bfloat16", H200, profile) == GEMM.floor_us(SQUARE, "bfloat16", H200, profile)
    assert GEMM.plan(tuning(ranked[0][0]), "bfloat16", H200, profile, shape).plan is not None


def test_rows_of_no_whole_cache_lines_count_as_they_are_stored(profile):
    """N=4104 makes unaligned rows only where B is stored [K, N], and K=4104 only where K is contiguous."""
    config = [GemmConfig("cooperative", 128, 256, 64, 4, 4, epilogue_split=4, staging="ring")]

    def time(shape, layout):
        return GEMM.predicted(config, (*shape, f"layout={layout}"), "bfloat16", H200, profile)[0].time_us

    assert time((4096, 4104, 4096), "nn") > time((4096, 4104, 4096), "tt")
    assert time((4096, 4096, 4104), "tn") < time((4096, 4096, 4104), "tt")


@pytest.mark.parametrize("limit", [1, 3, 8, 10_000])
def test_limit(profile, limit):
    everything = GEMM.ranked(SQUARE, "bfloat16", H200, profile)
    ranked = GEMM.rank(SQUARE, "bfloat16", H200, profile, limit=limit)
    assert [(config_of(r.config), r.prediction) for r in ranked] == everything[:limit]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes_are_a_filter(profile, scheme):
    everything = GEMM.ranked(SQUARE, "bfloat16", H200, profile)
    ranked = GEMM.ranked(SQUARE, "bfloat16", H200, profile, schemes=(scheme,))
    assert ranked
    assert ranked == [(c, p) for c, p in everything if c.scheme == scheme]


def test_several_schemes(profile):
    ranked = GEMM.ranked(SQUARE, "bfloat16", H200, profile, limit=500, schemes=("single", "pingpong"))
    assert {config.scheme for config, _ in ranked} == {"single", "pingpong"}


def test_a_ranked_plan_solves_its_own_candidate(profile):
    for ranked in GEMM.rank(SQUARE, "bfloat16", H200, profile, limit=3):
        planned = GEMM.plan(ranked.config, "bfloat16", H200, profile)
        assert replace(ranked.solve(), seconds=0.0) == replace(planned, seconds=0.0)


def test_unknown_names(profile):
    with pytest.raises(UnknownName, match="unknown scheme 'magic': expected one of pipelined, single"):
        GEMM.ranked(SQUARE, "bfloat16", H200, profile, schemes=("single", "magic"))
    for call in (
        lambda: GEMM.rank(SQUARE, "float8", H200, profile),
        lambda: GEMM.parse_shape(GOOD, "float8"),
        lambda: GEMM.plan(tuning(structures("bfloat16", H200)[0]), "float8", H200, profile),
    ):
        with pytest.raises(UnknownName, match="unknown dtype 'float8': expected one of bfloat16, float16"):
            call()


def test_both_dtypes_are_ranked(profile):
    bf16 = GEMM.rank(SQUARE, "bfloat16", H200, profile, limit=500)
    fp16 = GEMM.rank(SQUARE, "float16", H200, profile, limit=500)
    assert sorted(r.config.kwargs for r in bf16) == sorted(r.config.kwargs for r in fp16)


def test_ranking_is_repeatable_from_an_equal_profile(profile):
    """The solved loops are kept under the profile: an equal one must give the same answer, an unequal one its own."""
    again = replace(profile, costs=CostTable(tuple(profile.costs.entries)))
    assert GEMM.rank(SQUARE, "bfloat16", H200, again) == GEMM.rank(SQUARE, "bfloat16", H200, profile)
    slowed = {name: replace(rate, p50=rate.p50 / 2) for name, rate in profile.ceilings if name == "clock_hz_idle"}
    slower = replace(profile, ceilings=tuple((name, slowed.get(name, rate)) for name, rate in profile.ceilings))
    assert (
        GEMM.rank(SQUARE, "bfloat16", H200, slower)[0].prediction.time_us
        > GEMM.rank(SQUARE, "bfloat16", H200, profile)[0].prediction.time_us
    )


def test_a_profile_without_calibration_still_ranks(profile):
    bare = replace(profile, calibrations=())
    assert len(GEMM.ranked(SQUARE, "bfloat16", H200, bare)) == len(measured_candidates(SQUARE, bare))


def alone(ranked):
    """The ranked configurations, none of which lets the next launch begin early."""
    return [replace(config, launch_dependents=False) for config, _ in ranked]


def measured_candidates(shape, profile):
    """Those that the profile has the costs of: a stream's fix-up may not have been measured."""
    found = candidates(shape, "bfloat16", H200, profile.costs)
    return [c for c in found if not c.stream_k or "fix_up" in profile.costs.kinds()]


def with_fix_up(profile, cycles):
    """The profile as if partial sums of any tile took ``cycles``."""
    entries = tuple(e for e in profile.costs.entries if e.kind != "fix_up")
    latency = OperationCost(latency=Quantiles(cycles, cycles, 1))
    return replace(profile, costs=CostTable((*entries, CostEntry("fix_up", (("elements", 16384),), latency))))


def test_streams_are_ranked_once_their_fix_up_is_measured(profile):
    """Nothing else changes, and a dearer fix-up makes them slower by as many cycles for each neighbour's sums."""
    shape = (600, 4096, 8192)
    bare = GEMM.ranked(shape, "bfloat16", H200, without(profile, "fix_up"))
    assert not any(c.stream_k for c, _ in bare)
    cheap, dear = (GEMM.ranked(shape, "bfloat16", H200, with_fix_up(profile, c)) for c in (0.0, 1000.0))
    assert [r for r in cheap if not r[0].stream_k] == bare == [r for r in dear if not r[0].stream_k]
    before, after = ({c: p.time_us for c, p in ranked if c.stream_k} for ranked in (cheap, dear))
    assert (
        before.keys() == after.keys() == {c for c in candidates(shape, "bfloat16", H200, profile.costs) if c.stream_k}
    )
    assert all(after[c] > before[c] for c in before)


def test_a_stream_is_not_predicted_without_its_fix_up(profile):
    config = GemmConfig("single", 128, 128, 64, 8, 4, stream_k=True)
    with pytest.raises(MissingCosts) as caught:
        GEMM.predicted([config], (600, 4096, 8192), "bfloat16", H200, without(profile, "fix_up"))
    assert caught.value.operations == ("fix_up",)
    (prediction,) = GEMM.predicted([config], (600, 4096, 8192), "bfloat16", H200, with_fix_up(profile, 1000.0))
    assert prediction.time_us > 0


def test_a_stream_balances_what_whole_tiles_leave_idle(profile):
    """160 tiles on 132 SMs: two rounds whole, 1.21 of them streamed. Without a tail there is nothing to stream, and
    operands that L2 does not hold are read again."""
    tiles = GemmConfig("single", 128, 128, 64, 8, 4)
    free = with_fix_up(profile, 0.0)
    whole, stream = GEMM.predicted(
        [tiles, replace(tiles, stream_k=True)], (128 * 10, 128 * 16, 3072), "bfloat16", H200, free
    )
    tensor = [dict(p.parts)["tensor"] for p in (whole, stream)]
    assert tensor[1] == pytest.approx(tensor[0] * -(-160 * 48 // 132) / 96)
    assert stream.time_us < whole.time_us
    again = GEMM.predicted([tiles, replace(tiles, stream_k=True)], (128 * 10, 128 * 16, 16384), "bfloat16", H200, free)
    assert dict(again[1].parts)["dram"] > 2 * dict(again[0].parts)["dram"]
    full = candidates((128 * 11, 128 * 12, 16384), "bfloat16", H200)
    assert not any(c.stream_k for c in full if (c.block_m, c.block_n, c.ctas_per_sm) == (128, 128, 1))


def with_multicast(profile, cycles=600.0, occupancy=100.0):
    """The profile as if a copy into both CTAs of a cluster took ``cycles``, whatever its size."""
    load = OperationCost(*(Quantiles(c, c, 1) for c in (cycles, occupancy, 30.0)))
    added = [CostEntry("tma_multicast", (("bytes", 16384), ("source", s)), load) for s in ("l2", "dram")]
    added.append(CostEntry("handoff", (("scope", "cluster"),), OperationCost(latency=Quantiles(400.0, 400.0, 1))))
    return replace(profile, costs=CostTable((*profile.costs.entries, *added)))


def test_clusters_are_ranked_once_their_copies_are_measured(profile):
    """Nothing else changes; what a cluster reads from L2 is less by half of B, orders of many rows aside."""
    shape = (4096, 4096, 4096)
    gemm = profile.calibration("gemm")
    constants = tuple((name, value) for name, value in gemm.constants if name != "order_l2")
    profile = with_calibration(profile, replace(gemm, constants=constants))
    bare = GEMM.ranked(shape, "bfloat16", H200, profile)
    assert not any(c.cluster > 1 for c, _ in bare)
    found = GEMM.ranked(shape, "bfloat16", H200, with_multicast(profile))
    # The best time says what ties, and clusters may change it.
    assert {c: p for c, p in found if c.cluster == 1} == dict(bare)
    clusters = [r for r in found if r[0].cluster == 2]
    assert clusters
    for config, prediction in clusters:
        alone = replace(config, cluster=1, block_m=config.block_m // 2)
        (other,) = GEMM.predicted([alone], shape, "bfloat16", H200, profile)
        share = (config.cta_rows + config.block_n / 2) / (config.cta_rows + config.block_n)
        assert dict(prediction.parts)["l2"] == pytest.approx(share * dict(other.parts)["l2"], rel=0.02)


def test_a_cluster_is_not_predicted_without_its_costs(profile):
    config = GemmConfig("single", 256, 128, 64, 8, 4, cluster=2)
    with pytest.raises(MissingCosts, match="tma_multicast"):
        GEMM.predicted([config], SQUARE, "bfloat16", H200, profile)


def with_pairs(profile, cycles=96.0):
    """The profile as if a K step of 64 rows by two accumulators took ``cycles``."""
    step = OperationCost(occupancy=Quantiles(cycles, cycles, 1))
    pairs = [CostEntry("wgmma_pair", (("a", "shared"), ("dtype", "bfloat16"), ("n", 192)), step)]
    return replace(profile, costs=CostTable((*without(profile, "wgmma_pair").costs.entries, *pairs)))


def test_wide_tiles_are_ranked_once_their_products_are_measured(profile):
    """Nothing else changes, and what they propose is valid, may split K, and is a launch and back."""
    for shape in ((4096, 4096, 4096), (1267, 4096, 4096), (100, 8192, 8192)):
        bare = GEMM.ranked(shape, "bfloat16", H200, without(profile, "wgmma_pair"))
        assert not any(c.wide for c, _ in bare)
        found = GEMM.ranked(shape, "bfloat16", H200, with_pairs(profile))
        assert [r for r in found if not r[0].wide] == bare
        wide = [config for config, _ in found if config.wide]
        assert wide
        for config in wide:
            assert violations(config, "bfloat16", H200, shape) == ()
            assert config_of(tuning(config)) == config
        assert {c.block_m for c in wide} >= ({64} if shape[0] == 100 else {128, 192, 256})
        assert not any(c.split != "none" for c in wide if c.accumulator_registers > 128)


def test_a_wide_tiles_products_take_what_a_pair_takes(profile):
    config = GemmConfig("cooperative", 192, 192, 64, 4, 4, epilogue_split=3)
    with pytest.raises(MissingCosts, match="wgmma_pair"):
        GEMM.predicted([config], SQUARE, "bfloat16", H200, without(profile, "wgmma_pair"))
    tensor = [
        dict(GEMM.predicted([config], SQUARE, "bfloat16", H200, with_pairs(profile, cycles))[0].parts)["tensor"]
        for cycles in (96.0, 192.0)
    ]
    assert 1.6 * tensor[0] < tensor[1] < 2 * tensor[0]


def test_a_clusters_plan_is_a_launch_and_back(profile):
    for config, _ in GEMM.ranked((4096, 4096, 4096), "bfloat16", H200, with_multicast(profile)):
        if config.cluster == 2:
            assert tuning(config).num_ctas == 2
            assert config_of(tuning(config)) == config


def test_what_the_space_proposes_is_predicted_alike_when_asked_for(profile):
    ranked = GEMM.ranked(SQUARE, "bfloat16", H200, profile)
    alone = GEMM.predicted([c for c, _ in ranked], SQUARE, "bfloat16", H200, profile)
    assert list(alone) == [p for _, p in ranked]


def test_what_the_space_does_not_propose_is_predicted_too(profile):
    """A ring of two slots leaves every load's latency exposed; the next slots hide it. Beyond, more slots do not help,
    and what was measured may say that they hurt."""
    depths = [GemmConfig("single", 128, 128, 64, 8, d) for d in (2, 3, 4, 5)]
    times = [p.time_us for p in GEMM.predicted(depths, SQUARE, "bfloat16", H200, profile)]
    assert times[0] > 1.2 * times[1] > 1.2 * max(times[2:])


def test_what_cannot_run_is_not_predicted(profile):
    good = GemmConfig("single", 128, 128, 64, 8, 4)
    with pytest.raises(InvalidConfig, match="bytes of shared memory exceed"):
        GEMM.predicted([good, replace(good, depth=9)], SQUARE, "bfloat16", H200, profile)
    with pytest.raises(MissingCosts, match=r"no measured cost for handoff\("):
        GEMM.predicted([good], SQUARE, "bfloat16", H200, without(profile, "handoff"))


def test_a_structure_that_was_never_measured_has_its_relatives_residual(profile):
    """Another ring of the same block: what the model misses there is taken to be what it misses here."""
    known, unknown = (GemmConfig("single", 128, 128, 64, 8, d) for d in (6, 4))
    names = [f"structure.{structure(c)}" for c in (known, unknown)]

    def times(*constants: tuple[str, float]) -> list[float]:
        calibration = profile.calibration("gemm")
        others = tuple(c for c in calibration.constants if not c[0].startswith("structure."))
        changed = replace(profile, calibrations=(replace(calibration, constants=(*others, *constants)),))
        found = GEMM.predicted([known, unknown], SQUARE, "bfloat16", H200, changed)
        return [p.time_us for p in found]

    plain, slowed = times(), times((names[0], 0.1))
    assert slowed[0] > 1.05 * plain[0]
    assert slowed[1] / plain[1] == pytest.approx(slowed[0] / plain[0], rel=1e-3)
    apart = times((names[0], 0.1), (names[1], 0.0))
    assert apart == pytest.approx([slowed[0], plain[1]])
    assert times(("structure.single8-128x256x64-d3e1own", 0.1)) == plain


def test_nothing_fits(profile):
    with pytest.raises(
        Infeasible, match="no gemm configuration of scheme pipelined fits M=64 N=16 K=64 on NVIDIA H200"
    ):
        GEMM.ranked((64, 16, 64), "bfloat16", H200, profile, schemes=("pipelined",))


# Plans


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shape", [SQUARE, (128, 4096, 8192), (300, 5000, 520)], ids=str)
def test_the_plan_of_the_best_candidate_of_each_scheme_is_right(profile, scheme, shape):
    config, _ = GEMM.ranked(shape, "bfloat16", H200, profile, limit=1, schemes=(scheme,))[0]
    outcome = GEMM.plan(tuning(config), "bfloat16", H200, profile)
    assert outcome.plan is not None
    assert outcome.status == "optimal"
    graph = loop_graph(config, "bfloat16", H200, profile.costs)
    assert check(outcome.plan, graph) == ()
    assert outcome.plan.schedule.ii_cycles >= outcome.bound
    assert len(outcome.plan.partitions) == (config.consumers + 1 if config.specialized else 1)
    assert {c.depth for c in outcome.plan.channels} <= {config.depth}
    assert outcome.plan.smem_bytes <= config.smem_bytes(2)


def test_every_structure_has_a_plan_that_the_checker_passes(profile):
    for config in planned_structures("bfloat16", H200, profile.costs):
        outcome = GEMM.plan(tuning(config), "bfloat16", H200, profile)
        assert outcome.plan is not None
        assert check(outcome.plan, loop_graph(config, "bfloat16", H200, profile.costs)) == ()


def test_a_configuration_that_cannot_run_has_no_plan(profile):
    deep = tuning(GemmConfig("single", 128, 128, 64, 8, 9))
    with pytest.raises(InvalidConfig, match="invalid gemm configuration: 329728 bytes of shared memory exceed"):
        GEMM.plan(deep, "bfloat16", H200, profile)
    with pytest.raises(InvalidConfig, match="device NVIDIA B200: the kernel needs wgmma"):
        GEMM.plan(tuning(GemmConfig("single", 128, 128, 64, 8, 4)), "bfloat16", B200, profile)


# Costs that were never measured


def test_what_can_be_planned_without_handoffs_is(profile):
    partial = without(profile, "handoff")
    whole = GEMM.ranked(SQUARE, "bfloat16", H200, profile)
    assert GEMM.ranked(SQUARE, "bfloat16", H200, partial) == [(c, p) for c, p in whole if c.scheme == "pipelined"]
    for config in candidates(SQUARE, "bfloat16", H200):
        if config.scheme != "pipelined":
            with pytest.raises(MissingCosts, match=r"no measured cost for handoff\("):
                GEMM.plan(tuning(config), "bfloat16", H200, partial)
            break


@pytest.mark.parametrize(("shape", "schemes"), [(SQUARE, ("single", "pingpong")), ((4096, 16, 4096), None)])
def test_missing_costs_of_everything_that_fits_are_named(profile, shape, schemes):
    with pytest.raises(MissingCosts) as caught:
        GEMM.ranked(shape, "bfloat16", H200, without(profile, "handoff"), schemes=schemes)
    assert sorted(caught.value.operations) == ["handoff(scope=group_to_warp)", "handoff(scope=warp_to_group)"]


def test_what_does_not_fit_is_not_blamed_on_the_profile(profile):
    with pytest.raises(Infeasible, match="no gemm configuration of scheme pipelined fits"):
        GEMM.ranked((64, 16, 64), "bfloat16", H200, without(profile, "handoff"), schemes=("pipelined",))


@pytest.mark.parametrize(
    ("kind", "operations"),
    [
        ("wgmma", ["wgmma(a=shared, dtype=bfloat16)"]),
        ("tma_load", ["tma_load(source=dram)", "tma_load(source=l2)"]),
        ("epilogue_store", ["epilogue_store"]),
        ("tma_store", ["tma_store"]),
    ],
)
def test_costs_that_everything_needs(profile, kind, operations):
    with pytest.raises(MissingCosts, match="warpplan profile --out FILE") as caught:
        GEMM.rank(SQUARE, "bfloat16", H200, without(profile, kind))
    assert sorted(caught.value.operations) == operations


def test_an_empty_profile_names_every_operation_at_once(profile):
    with pytest.raises(MissingCosts) as caught:
        solve_table("bfloat16", H200, CostTable(()))
    named = {operation.split("(")[0] for operation in caught.value.operations}
    assert named == {"wgmma", "tma_load", "tma_store", "epilogue_store", "handoff"}
    assert len(caught.value.operations) == 7


def test_an_unmeasured_part_of_a_cost_is_named(profile):
    entries = tuple(
        replace(e, cost=replace(e.cost, occupancy=None)) if e.kind == "wgmma" else e for e in profile.costs.entries
    )
    with pytest.raises(MissingCosts, match=r"wgmma\(n=\d+, dtype=bfloat16, a=shared\) occupancy"):
        GEMM.rank(SQUARE, "bfloat16", H200, replace(profile, costs=CostTable(entries)))


def test_missing_ceilings_are_named(profile):
    ceilings = tuple((n, r) for n, r in profile.ceilings if n not in ("launch_us", "tensor_flops_bfloat16"))
    with pytest.raises(MissingCosts) as caught:
        GEMM.rank(SQUARE, "bfloat16", H200, replace(profile, ceilings=ceilings))
    assert caught.value.operations == ("ceiling tensor_flops_bfloat16", "ceiling launch_us")


def test_chosen_configurations_are_valid_for_a_spread_of_shapes(profile):
    for shape in [(m, n, k) for m in (1, 7, 64, 300, 5000) for n in (1, 100, 8192) for k in (8, 1000, 16384)]:
        for ranked in GEMM.rank(shape, "bfloat16", H200, profile):
            assert violations(config_of(ranked.config), "bfloat16", H200, shape) == ()
