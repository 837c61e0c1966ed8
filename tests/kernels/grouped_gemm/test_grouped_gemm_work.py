"""What grouped candidates ask of the device, counted tile by tile and CTA by CTA the obvious way."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.kernels.gemm.work import solve_table
from warpplan.kernels.gemm.work import work as gemm_work
from warpplan.kernels.grouped_gemm.candidates import grid, table
from warpplan.kernels.grouped_gemm.distribution import GroupedShape
from warpplan.kernels.grouped_gemm.space import K_STEP, PRODUCTS
from warpplan.kernels.grouped_gemm.work import busiest_trips, work
from warpplan.planner.values.device import H200

SIZES = st.lists(st.one_of(st.just(0), st.integers(0, 300), st.integers(0, 3000)), min_size=1, max_size=12)
SHAPES = st.builds(
    lambda sizes, n, k, product: GroupedShape(max(1, sum(sizes)), 8 * n, 8 * k, tuple(sizes), product),
    SIZES,
    st.integers(1, 200),
    st.integers(1, 200),
    st.sampled_from(PRODUCTS),
)


@pytest.fixture(scope="module")
def solved(profile):
    """The solved table of each product."""
    tables = {product: table("bfloat16", H200, profile.costs, product, "row") for product in PRODUCTS}
    return {product: solve_table("bfloat16", H200, profile.costs, t) for product, t in tables.items()}


def tiles_of(shape, config):
    """Loop iterations of every tile, in the order in which CTAs take them; of wgrad's last one, the steps that run."""
    step = K_STEP if shape.product == "wgrad" else config.block_k
    for size in shape.sizes:
        rows, columns, depth = {
            "forward": (size, shape.n, shape.k),
            "dgrad": (size, shape.k, shape.n),
            "wgrad": (shape.n, shape.k, size),
        }[shape.product]
        for _ in range(0, rows, config.block_m):
            for _ in range(0, columns, config.block_n):
                yield max(1, len(range(0, depth, step))) * step / config.block_k


@given(SHAPES)
@settings(deadline=None, max_examples=40)
def test_work_is_what_counting_tiles_gives(solved, shape):
    t = solved[shape.product]
    found, g = work(t, "bfloat16", H200, shape)
    for i in range(0, len(t.table.configs), 5):
        config = t.table.configs[i]
        trips = list(tiles_of(shape, config))
        resident = H200.sm_count * config.ctas_per_sm
        by_cta = defaultdict(list)
        for unit, iterations in enumerate(trips):
            by_cta[unit % resident].append(iterations)
        assert g.units[i] == len(trips)
        assert found.executed_flops[i] == 2 * sum(trips) * config.block_m * config.block_n * config.block_k
        assert found.loaded_bytes[i] == sum(trips) * config.slot_bytes(2)
        assert found.trips[i] == max(map(sum, by_cta.values()), default=0)
        assert found.rounds[i] == max(map(len, by_cta.values()), default=1)


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 50)), min_size=1, max_size=30),
    st.integers(1, 264),
)
def test_the_busiest_cta_is_the_one_that_counting_finds(groups, resident):
    load = [0] * resident
    unit = 0
    for units, iterations in groups:
        for _ in range(units):
            load[unit % resident] += iterations
            unit += 1
    units, iterations = (np.array(column, dtype=np.int64) for column in zip(*groups, strict=True))
    assert busiest_trips(units, iterations, resident) == max(load)


@given(st.integers(1, 9000), st.integers(8, 500), st.integers(8, 500))
@settings(deadline=None, max_examples=30)
def test_one_group_is_a_plain_product(solved, m, n, k):
    t = solved["forward"]
    n, k = 8 * n, 8 * k
    grouped, _ = work(t, "bfloat16", H200, GroupedShape(m, n, k, (m,)))
    plain, _ = gemm_work(t, "bfloat16", H200, (m, n, k))
    for name in ("executed_flops", "loaded_bytes", "trips", "rounds", "iterations", "dram_bytes", "active_sms"):
        assert getattr(grouped, name) == pytest.approx(getattr(plain, name)), name


@given(SHAPES)
@settings(deadline=None, max_examples=40)
def test_dram_carries_at_least_what_is_there_once(solved, shape):
    found, _ = work(solved[shape.product], "bfloat16", H200, shape)
    rows, matrices = sum(shape.sizes), sum(size > 0 for size in shape.sizes)
    if shape.product == "wgrad":
        once = rows * (shape.n + shape.k) + shape.groups * shape.n * shape.k
    else:
        once = rows * (shape.n + shape.k) + matrices * shape.n * shape.k
    assert (found.dram_bytes >= 2 * once).all()


def test_empty_groups_cost_nothing_but_wgrads_zeros(solved):
    some = GroupedShape(512, 1536, 1024, (256, 256))
    more = replace(some, sizes=(0, 256, 0, 0, 256, 0))
    for product in PRODUCTS:
        t = solved[product]
        (few, _), (many, _) = (work(t, "bfloat16", H200, replace(s, product=product)) for s in (some, more))
        # Elements of the gradients of the empty groups; each tile of them multiplies one step of zeros.
        zeros = 4 * 1536 * 1024 if product == "wgrad" else 0
        assert many.executed_flops - few.executed_flops == pytest.approx(2 * zeros * K_STEP)
        assert many.dram_bytes - few.dram_bytes == pytest.approx(2 * zeros)


def test_rows_of_no_whole_cache_lines_straddle_two(solved):
    def unaligned(n: int, k: int, product: str = "forward"):
        return work(solved[product], "bfloat16", H200, GroupedShape(768, n, k, (384, 384), product))[0].unaligned

    t = solved["forward"].table
    of_left = t.block_m / (t.block_m + t.block_n)
    assert (unaligned(1032, 1024) == 0).all()
    assert (unaligned(1024, 1032) == 1).all()
    assert unaligned(1032, 1024, "dgrad") == pytest.approx(of_left)
    assert unaligned(1024, 1032, "wgrad") == pytest.approx(1 - of_left)


def test_sizes_in_another_order_are_the_same_work_but_for_who_does_it(solved):
    t = solved["wgrad"]
    a, g = work(t, "bfloat16", H200, GroupedShape(1000, 512, 512, (900, 0, 10, 90), "wgrad"))
    b, _ = work(t, "bfloat16", H200, GroupedShape(1000, 512, 512, (90, 10, 900, 0), "wgrad"))
    assert (a.executed_flops == b.executed_flops).all()
    assert (a.dram_bytes == b.dram_bytes).all()
    assert g.sizes.tolist() == [0, 10, 90, 900]


def test_the_grid_counts_the_tiles_of_the_largest_groups(profile):
    shape = GroupedShape(1000, 512, 512, (900, 0, 10, 90))
    g = grid(table("bfloat16", H200, profile.costs, "forward", "row"), shape)
    assert g.row_tiles.shape == (len(g.valid), 4)
    assert (g.group_tiles == g.row_tiles * g.column_tiles[:, None]).all()
