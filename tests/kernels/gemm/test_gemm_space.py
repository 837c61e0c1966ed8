"""The GEMM's configurations: what is proposed can run, what cannot run says why, and K is covered exactly once."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from warpplan.kernels.gemm.candidates import (
    MIN_SPLIT_ITERATIONS,
    SWAP_MAX_ROWS,
    UNTRANSPOSED_ROWS,
    candidates,
    grid,
    planned_structures,
    structures,
    table,
)
from warpplan.kernels.gemm.graph import robust_depth
from warpplan.kernels.gemm.space import (
    BASE_REGISTERS,
    ELEMENT_BYTES,
    LAUNCH_REGISTERS,
    MAX_DEPTH,
    PIPELINED_DEPTH,
    SCHEMES,
    SMEM_OVERHEAD_BYTES,
    SMEM_RESERVED_BYTES,
    GemmConfig,
    config_of,
    require_valid,
    tuning,
    violations,
)
from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.device import B200, H100, H200
from warpplan.planner.values.tuning import TuningConfig

DTYPES = sorted(ELEMENT_BYTES)
SIZES = st.one_of(st.integers(1, 300), st.integers(1, 40_000), st.sampled_from((64, 128, 4096, 8192, 16384)))
SHAPES = st.tuples(SIZES, SIZES, st.one_of(st.integers(1, 64), st.integers(1, 4_000)).map(lambda k: 8 * k))
CONFIGS = st.sampled_from(table("bfloat16", H200).configs)

SINGLE = GemmConfig("single", 128, 128, 64, 8, 4)
COOPERATIVE = GemmConfig("cooperative", 128, 256, 64, 4, 3)
PINGPONG = GemmConfig("pingpong", 64, 256, 64, 4, 4)
PIPELINED = GemmConfig("pipelined", 128, 128, 64, 4, 4)
WIDE = GemmConfig("cooperative", 192, 192, 64, 4, 4, epilogue_split=3)


@pytest.mark.parametrize("device", [H200, H100], ids=lambda d: d.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_structure_is_valid_and_distinct(dtype, device):
    found = structures(dtype, device)
    assert len(set(found)) == len(found)
    assert {c.scheme for c in found} == set(SCHEMES) - ({"pipelined"} if ELEMENT_BYTES[dtype] == 1 else set())
    for config in found:
        assert violations(config, dtype, device) == ()


def test_structures_are_as_deep_as_fits():
    for config in structures("bfloat16", H200):
        deeper = replace(config, depth=config.depth + 1)
        if config.specialized and config.depth < MAX_DEPTH:
            assert violations(deeper, "bfloat16", H200)


def test_an_epilogue_variant_buys_a_deeper_ring():
    by_block: dict[GemmConfig, list[GemmConfig]] = {}
    for config in structures("bfloat16", H200):
        if config.specialized:
            by_block.setdefault(replace(config, depth=2, epilogue_split=1, staging="own"), []).append(config)
    assert any(len(variants) > 1 for variants in by_block.values())
    for variants in by_block.values():
        depths = [c.depth for c in variants]
        assert depths == sorted(set(depths))


@pytest.mark.parametrize("device", [H200, H100], ids=lambda d: d.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_block_is_also_planned_at_its_robust_depth(profile, dtype, device):
    """Where that fits: with the first epilogue in order that then fits."""
    space, planned = structures(dtype, device), planned_structures(dtype, device, profile.costs)
    assert set(space) <= set(planned)
    assert len(set(planned)) == len(planned) <= 1.5 * len(space)
    for base in space:
        depth = robust_depth(base, dtype, device, profile.costs, "dram")
        options = [replace(base, depth=depth, staging=s, epilogue_split=n) for s in ("own", "ring") for n in (1, 2, 4)]
        most = MAX_DEPTH if base.specialized else PIPELINED_DEPTH
        fitting = [c for c in options if depth <= most and not violations(c, dtype, device)]
        assert not fitting or fitting[0] in planned
    for config in planned:
        assert violations(config, dtype, device) == ()


def test_without_costs_there_are_the_deepest_rings_alone():
    assert planned_structures("bfloat16", H200, CostTable(())) == structures("bfloat16", H200)


def test_no_structure_for_a_device_without_wgmma():
    assert structures("bfloat16", B200) == ()
    assert "capability 9.0" in violations(SINGLE, "bfloat16", B200)[0]


@given(SHAPES)
@settings(deadline=None, max_examples=60)
def test_every_candidate_is_valid_for_its_shape_unique_and_in_a_fixed_order(profile, shape):
    found = candidates(shape, "bfloat16", H200, profile.costs)
    assert found
    assert len(set(found)) == len(found)
    assert found == candidates(shape, "bfloat16", H200, profile.costs)
    assert set(candidates(shape, "bfloat16", H200)) <= set(found)
    for config in found:
        assert violations(config, "bfloat16", H200, shape) == ()
        assert config_of(tuning(config)) == config


@given(SHAPES)
@settings(deadline=None, max_examples=60)
def test_candidates_are_worth_considering(shape):
    m, _, k = shape
    for config in candidates(shape, "bfloat16", H200):
        rows, columns, _ = config.computed(shape)
        assert config.block_m <= max(64, 2 * rows)  # no tile of which more than half overhangs
        assert config.block_n <= max(16, 2 * columns)
        assert not config.swap or m <= SWAP_MAX_ROWS or config.block_m == UNTRANSPOSED_ROWS
        assert config.group_m <= -(-rows // config.block_m)
        resident = H200.sm_count * config.ctas_per_sm
        whole = config.whole_tiles(shape, H200.sm_count)
        if config.split_k > 1:
            assert -(-k // config.block_k) // config.split_k >= MIN_SPLIT_ITERATIONS
            split_units = config.units(shape, H200.sm_count) - whole
            assert split_units <= (resident if config.split_tail else 2 * resident)
        if config.split_tail:
            assert whole > 0
        if config.split_tail or config.stream_k:
            assert whole % resident == 0
        if config.stream_k:
            assert config.tiles(shape) % resident > 0
            assert config.units(shape, H200.sm_count) == whole + resident
            streamed = (config.tiles(shape) - whole) * -(-k // config.block_k)
            assert streamed >= MIN_SPLIT_ITERATIONS * resident


@given(SHAPES)
@settings(deadline=None, max_examples=60)
def test_the_table_counts_as_the_configuration_does(shape):
    """Planning lays tiles out for all rows at once, a launch for one configuration: both must agree."""
    t = table("bfloat16", H200)
    g = grid(t, shape)
    for i in range(0, len(t.configs), 7):
        config = t.configs[i]
        assert g.tiles[i] == config.tiles(shape)
        assert g.whole_tiles[i] == config.whole_tiles(shape, H200.sm_count)
        assert (g.rows[i], g.columns[i]) == config.computed(shape)[:2]


@given(
    CONFIGS,
    st.tuples(st.integers(1, 1500), st.integers(1, 1500), st.integers(1, 250).map(lambda k: 8 * k)),
    st.integers(1, 5),
    st.integers(1, 9),
    st.booleans(),
)
@settings(deadline=None, max_examples=200)
def test_units_cover_every_k_block_of_every_tile_once(config, shape, sm_count, split_k, tail):
    split_k = split_k if config.specialized else 1
    config = replace(config, split_k=split_k, split_tail=tail and split_k > 1, stream_k=False)
    assume(not violations(config, "bfloat16", H200, shape))
    rows, columns, k = config.computed(shape)
    k_blocks = -(-k // config.block_k)
    wanted = {
        (row, column, block)
        for row in range(0, rows, config.block_m)
        for column in range(0, columns, config.block_n)
        for block in range(k_blocks)
    }
    row_tiles = -(-rows // config.block_m)
    whole, units = config.whole_tiles(shape, sm_count), config.units(shape, sm_count)
    done: Counter[tuple[int, int, int]] = Counter()
    for unit in range(units):
        splits = 1 if unit < whole else config.split_k
        tile, part = (unit, 0) if unit < whole else (whole + (unit - whole) // splits, (unit - whole) % splits)
        each = -(-k_blocks // splits)
        blocks = range(part * each, min((part + 1) * each, k_blocks))
        assert blocks  # no unit is empty
        origin = tile % row_tiles * config.block_m, tile // row_tiles * config.block_n
        done.update((*origin, block) for block in blocks)
    assert set(done) == wanted
    assert set(done.values()) == {1}


@given(st.integers(1, 64), st.integers(1, 40))
def test_a_split_is_refused_exactly_where_it_leaves_a_part_empty(k_blocks, split_k):
    config = replace(SINGLE, split_k=split_k)
    each = -(-k_blocks // split_k)
    empty = any(part * each >= k_blocks for part in range(split_k))
    found = violations(config, "bfloat16", H200, (128, 128, 64 * k_blocks))
    assert bool(found) == empty
    assert all("leaves splits of K" in f for f in found)


def test_a_stream_takes_a_full_wave_beside_the_tail_and_has_a_k_block_for_each_range():
    stream = replace(SINGLE, stream_k=True)
    shape = (128 * 10, 128 * 10, 4096)  # 100 tiles of 64 K blocks
    assert stream.whole_tiles(shape, 16) == 80
    assert stream.units(shape, 16) == 80 + 16
    assert replace(stream, ctas_per_sm=2).whole_tiles(shape, 16) == 64
    assert (stream.whole_tiles(shape, 64), stream.units(shape, 64)) == (0, 64)
    assert (stream.whole_tiles(shape, 132), stream.units(shape, 132)) == (0, 132)
    assert stream.units((128, 128, 640), 132) == 10
    assert [replace(SINGLE, split_k=2).split, SINGLE.split, stream.split] == ["equal", "none", "stream"]


def test_whole_tiles_of_a_split_tail_are_full_waves():
    tail = replace(SINGLE, split_k=4, split_tail=True)
    shape = (128 * 10, 128 * 10, 4096)  # 100 tiles
    assert tail.whole_tiles(shape, 16) == 96
    assert tail.units(shape, 16) == 96 + 4 * 4
    assert replace(tail, ctas_per_sm=2).whole_tiles(shape, 16) == 96
    assert replace(tail, ctas_per_sm=2).whole_tiles(shape, 132) == 0
    assert replace(tail, split_tail=False).units(shape, 16) == 400
    assert replace(tail, split_tail=False, split_k=1).units(shape, 16) == 100


BAD = {
    "an unknown dtype": (SINGLE, "float8", "dtype float8: expected one of bfloat16, float16"),
    "an unknown scheme": (replace(SINGLE, scheme="magic"), "bfloat16", "scheme magic: expected one of pipelined"),
    "an unknown tile": (replace(SINGLE, block_m=96), "bfloat16", "block_m 96: expected one of 64, 128, 192, 256"),
    "an unknown width": (replace(SINGLE, block_n=24), "bfloat16", "block_n 24: expected one of 16, 32"),
    "an unknown staging": (replace(SINGLE, staging="air"), "bfloat16", "staging air: expected one of own, ring"),
    "no ring": (replace(SINGLE, depth=0), "bfloat16", "depth 0: expected 1 or more"),
    "no tile order": (replace(SINGLE, group_m=0), "bfloat16", "group_m 0: expected 1 or more"),
    "no split": (replace(SINGLE, split_k=-1), "bfloat16", "split_k -1: expected 1 or more"),
    "a shallow ring": (replace(SINGLE, depth=1), "bfloat16", "depth 1: one multiply stays in flight"),
    "wide consumers": (replace(PINGPONG, consumer_warps=8), "bfloat16", "each of several consumers is one warp group"),
    "192 rows alone": (replace(SINGLE, block_m=192, consumer_warps=4), "bfloat16", "192 rows are three"),
    "a tail of nothing": (replace(SINGLE, split_tail=True), "bfloat16", "split_tail without split_k"),
    "rows for idle warps": (replace(SINGLE, block_m=64), "bfloat16", "64 rows for 8 warps"),
    "pipelined splits": (replace(PIPELINED, split_k=2), "bfloat16", "the pipelined scheme has no split-K"),
    "a pipelined stream": (replace(PIPELINED, stream_k=True), "bfloat16", "the pipelined scheme has no split-K, no"),
    "an early launch after one partition": (
        replace(PIPELINED, launch_dependents=True), "bfloat16", "launch_dependents with pipelined: it has no producer",
    ),
    "a stream of splits": (replace(SINGLE, stream_k=True, split_k=2), "bfloat16", "K is split in one of the two ways"),
    "a stream of a CTA a unit": (
        replace(SINGLE, stream_k=True, persistent=False), "bfloat16", "stream_k without persistent: each CTA has one",
    ),
    "a cluster of three": (replace(SINGLE, cluster=3), "bfloat16", "cluster 3: expected one of 1, 2"),
    "a cluster's rows": (replace(SINGLE, cluster=2, block_m=64), "bfloat16", "block_m 64: expected one of 128, 256"),
    "a pipelined cluster": (replace(PIPELINED, cluster=2, block_m=256), "bfloat16", "only a producer of its own"),
    "a cluster that splits K": (
        replace(SINGLE, cluster=2, block_m=256, split_k=2), "bfloat16", "cluster 2 with a split of K",
    ),
    "a cluster's staging": (
        replace(SINGLE, cluster=2, block_m=256, staging="ring"), "bfloat16", "cluster 2 with staging in the ring",
    ),
    "clusters that share an SM": (
        replace(SINGLE, cluster=2, block_m=256, block_n=32, depth=2, ctas_per_sm=2), "bfloat16",
        "cluster 2 with 2 CTAs an SM",
    ),
    "pipelined swaps": (replace(PIPELINED, swap=True), "bfloat16", "the pipelined scheme has no split-K"),
    "registers": (GemmConfig("single", 128, 256, 64, 4, 2), "bfloat16", "256 accumulator registers a thread and"),
    "registers at launch": (
        GemmConfig("single", 64, 256, 64, 4, 2, epilogue_split=2, ctas_per_sm=2), "bfloat16",
        "a wgmma of 256 columns needs 154 registers a thread at launch, and 16 warps an SM leave 128",
    ),
    "wide tiles in halves": (replace(WIDE, epilogue_split=2), "bfloat16", "epilogue_split 2: expected one of 3"),
    "thirds of a tile": (replace(COOPERATIVE, epilogue_split=3), "bfloat16", "epilogue_split 3: expected one of 1, 2"),
    "wide pipelined tiles": (
        replace(WIDE, scheme="pipelined", block_m=128, consumer_warps=8), "bfloat16",
        "block_n 192 of pipelined or promoted products or of clusters",
    ),
    "streams of narrow chunks": (
        replace(WIDE, block_n=160, epilogue_split=5, stream_k=True), "bfloat16",
        "stream_k of 160 columns: partial sums",
    ),
    "wider tiles in thirds": (replace(WIDE, block_n=160), "bfloat16", "epilogue_split 3: expected one of 5"),
    "splits of the largest tiles": (
        replace(WIDE, block_m=256, depth=3, split_k=2), "bfloat16",
        "a split of K with 192 accumulator registers a thread: 128 leave room",
    ),
    "wide tiles in the ring": (replace(WIDE, staging="ring"), "bfloat16", "block_n 192 with staging ring"),
    "narrow chunks": (
        replace(SINGLE, block_n=32, epilogue_split=4), "bfloat16", "epilogue_split 4: chunks of 8 columns, 16 at least",
    ),
    "a chunk beyond its slot": (
        replace(COOPERATIVE, staging="ring"), "bfloat16",
        "an epilogue chunk of 32768 bytes exceeds the 8192 bytes of the ring slot",
    ),
    "shared memory": (replace(SINGLE, depth=9), "bfloat16", "bytes of shared memory exceed the 232448"),
    "half of shared memory": (replace(SINGLE, ctas_per_sm=2), "bfloat16", "bytes of shared memory exceed the 115712"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_run_names_its_violation(name):
    config, dtype, text = BAD[name]
    found = violations(config, dtype, H200)
    assert any(text in f for f in found), found
    with pytest.raises(InvalidConfig, match="invalid gemm configuration: ") as caught:
        require_valid(config, dtype, H200)
    assert found[0] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_good_configurations_pass():
    for config in (SINGLE, COOPERATIVE, PINGPONG, PIPELINED, WIDE):
        require_valid(config, "bfloat16", H200, (4096, 4096, 4096))


# Shared memory, registers, warps: each worked out by hand.


def test_smem_accounting():
    slot = (128 + 256) * 64 * 2
    assert COOPERATIVE.slot_bytes(2) == slot
    assert COOPERATIVE.staging_bytes == 64 * 256 * 2  # one consumer's half of the rows
    assert COOPERATIVE.smem_bytes(2) == 3 * slot + 2 * 64 * 256 * 2 + SMEM_OVERHEAD_BYTES
    ring = replace(COOPERATIVE, epilogue_split=4, staging="ring")
    assert ring.smem_bytes(2) == 3 * slot + SMEM_OVERHEAD_BYTES
    assert ring.staging_bytes == 64 * 256 * 2 // 4 == ring.slot_staging_bytes(2)
    assert PINGPONG.smem_bytes(2) == 4 * (64 + 256) * 64 * 2 + 2 * 64 * 256 * 2 + SMEM_OVERHEAD_BYTES
    assert PIPELINED.smem_bytes(2) == 4 * 256 * 64 * 2 + SMEM_OVERHEAD_BYTES
    shallow = GemmConfig("pipelined", 128, 256, 64, 8, 1)
    assert shallow.smem_bytes(2) == 128 * 256 * 2 + SMEM_OVERHEAD_BYTES  # the tile outgrows the ring


@given(CONFIGS)
def test_what_is_resident_together_fits_an_sm(config):
    assert config.ctas_per_sm * (config.smem_bytes(2) + SMEM_RESERVED_BYTES) <= H200.smem_bytes_per_sm
    assert config.smem_bytes(2) <= H200.smem_bytes_per_block
    threads = 32 * config.total_warps * config.ctas_per_sm
    assert threads <= 32 * H200.warps_per_sm
    if config.specialized:
        assert threads * config.max_registers <= H200.registers_per_sm
        # setmaxnreg moves registers from the producer's warp group to the consumers and never makes any.
        consumers = config.consumers * config.consumer_warps * config.consumer_registers
        assert consumers + 4 * config.producer_registers <= config.total_warps * config.max_registers
        assert config.consumer_registers % 8 == config.producer_registers % 8 == 0  # as setmaxnreg asks
    assert config.accumulator_registers < config.consumer_registers <= H200.registers_per_thread


def test_warps_consumers_and_rows():
    three = GemmConfig("cooperative", 192, 128, 64, 4, 4)
    assert (three.consumers, three.consumer_rows, three.total_warps) == (3, 64, 16)
    assert (COOPERATIVE.consumers, COOPERATIVE.consumer_rows, COOPERATIVE.total_warps) == (2, 64, 12)
    assert (PINGPONG.consumers, PINGPONG.consumer_rows, PINGPONG.total_warps) == (2, 64, 12)
    assert (SINGLE.consumers, SINGLE.consumer_rows, SINGLE.total_warps) == (1, 128, 12)
    assert (PIPELINED.consumers, PIPELINED.consumer_rows, PIPELINED.total_warps) == (1, 128, 4)
    assert COOPERATIVE.accumulator_registers == 128
    assert COOPERATIVE.max_registers == 168


# As Triton's own fields


@given(CONFIGS, st.integers(1, 300), st.booleans())
def test_tuning_round_trip(config, group_m, persistent):
    config = replace(config, group_m=group_m, persistent=persistent)
    encoded = tuning(config)
    assert config_of(encoded) == config
    assert encoded.num_warps == config.consumer_warps
    assert list(encoded.kwargs) == sorted(encoded.kwargs)
    assert encoded.num_stages == (1 if config.specialized else config.depth)


def test_an_early_launch_is_switched_off_by_a_word_or_by_none():
    early = replace(SINGLE, launch_dependents=True)
    assert config_of(tuning(early)) == early
    for off in (False, None):
        assert config_of(changed(early, LAUNCH_DEPENDENTS=off)) == SINGLE


def changed(config: GemmConfig, **fields: object) -> TuningConfig:
    encoded = tuning(config)
    kwargs = {**dict(encoded.kwargs), **fields}
    return replace(encoded, kwargs=tuple((n, v) for n, v in kwargs.items() if v is not None))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"SCHEME": "magic"}, "SCHEME is 'magic', expected one of pipelined, single, cooperative, pingpong"),
        ({"SCHEME": None}, "SCHEME is None"),
        ({"SCHEME": 3}, "SCHEME is 3"),
        ({"BLOCK_M": None}, "BLOCK_M is None, a whole number is needed"),
        ({"BLOCK_N": "128"}, "BLOCK_N is '128', a whole number"),
        ({"BLOCK_K": True}, "BLOCK_K is True, a whole number"),
        ({"DEPTH": None}, "DEPTH is None"),
        ({"SPLIT_K": 1.5}, "SPLIT_K is 1.5"),
    ],
)
def test_fields_of_the_wrong_kind(fields, text):
    with pytest.raises(InvalidConfig, match="gemm configuration: ") as caught:
        config_of(changed(SINGLE, **fields))
    assert text in str(caught.value)
    assert caught.value.field == next(iter(fields))


@pytest.mark.parametrize(("name", "value"), [("CONSUMER_REGISTERS", 200), ("PRODUCER_REGISTERS", 40), ("SWAP", "no")])
def test_a_configuration_that_says_other_than_it_does_is_refused(name: str, value: int | str) -> None:
    good = tuning(GemmConfig("single", 128, 128, 64, 8, 4))
    wrong = replace(good, kwargs=tuple(sorted((dict(good.kwargs) | {name: value}).items())))
    with pytest.raises(InvalidConfig, match=name):
        config_of(wrong)


# Registers, as ptxas reported them


def test_register_constants_are_what_ptxas_reported():
    """``benchmarks/fit_registers.py`` recorded the reports; the constants are the largest of them."""
    recorded = json.loads((Path(__file__).parents[3] / "benchmarks/results/gemm_registers_sm90.json").read_text())
    summary = recorded["summary"]
    assert max(summary["base_pipelined"], summary["base_specialized"]) == BASE_REGISTERS
    assert summary["at_launch"] == LAUNCH_REGISTERS
    assert len(recorded["rows"]) > 40


@pytest.mark.slow
def test_ptxas_refuses_too_few_registers_at_launch():
    pytest.importorskip("triton", reason="compiling needs triton")
    from warpplan.kernels.gemm.compile_gemm import compile_gemm

    config = GemmConfig("single", 64, 256, 64, 4, 2, epilogue_split=2, ctas_per_sm=2)
    with pytest.raises(InvalidConfig) as caught:
        compile_gemm(config, "bfloat16")
    assert f"register target of {256 // 2 + LAUNCH_REGISTERS} or higher" in str(caught.value.__cause__)
