"""The attention backward kernels' compiled code, played in numpy: right gradients under any interleaving of their
partitions, no races, nothing read or written beside the tensors; and a kernel broken in one place is noticed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", reason="compiling needs triton")

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import played_gradients
from broken_kernels import broken_kernel
from played_gradients import played

from warpplan.kernels.attention_bwd import gluon, tl
from warpplan.kernels.attention_bwd.query_gradients import gluon as query_gradients
from warpplan.kernels.attention_bwd.space import AttentionBwdConfig, deterministic, violations
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.compiler.inspection.player.tiles.faults import KernelFault
from warpplan.planner.values.device import H200

SMALL = AttentionBwdConfig(64, 64, 64, 2)
ALONE = deterministic(SMALL)
CONFIGS = (
    replace(SMALL, ds_in_registers=False, depth=4),
    replace(SMALL, keys=128),
    replace(ALONE, keys=128, depth=4),
    replace(SMALL, keys=128, ds_in_registers=False, persistent=False),
    AttentionBwdConfig(128, 128, 64, 2),
    AttentionBwdConfig(128, 64, 64, 4, ds_in_registers=False),
    deterministic(AttentionBwdConfig(128, 128, 64, 4)),
)
BANDS = ((False, None), (True, None), (True, 0), (True, 70), (False, 33))
"""(causal, window)."""


def masks(shape: AttentionShape) -> list[AttentionShape]:
    """``shape`` with every kind of mask."""
    return [replace(shape, causal=causal, window=window) for causal, window in BANDS]


def check(config: AttentionBwdConfig, shape: AttentionShape, **options) -> None:
    played(config, shape, **options).require_right(options.get("element", "bf16"))


@pytest.mark.parametrize("config", [SMALL, ALONE], ids=["reduce", "separate"])
@pytest.mark.parametrize("q_length", [1, 64, 65, 131])
@pytest.mark.parametrize("k_length", [1, 63, 64, 150])
def test_lengths_and_masks(config, q_length, k_length):
    for shape in masks(AttentionShape(1, 1, q_length, 64, 1, k_length)):
        check(config, shape, seed=q_length)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_every_scheme(config):
    assert not violations(config, "bfloat16", H200)
    shape = AttentionShape(1, 2, 151, config.head_dim, 1, config.keys + 75)
    for seed, masked in enumerate(masks(shape)):
        check(config, masked, seed=seed, programs=1 + seed % 3)
    check(config, replace(shape, q_length=1, k_length=1), seed=9)
    check(config, replace(shape, q_length=64, k_length=config.keys, causal=True), seed=10)


@pytest.mark.parametrize("config", [SMALL, ALONE], ids=["reduce", "separate"])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_heads_that_share_keys_in_any_order_of_units(config, kv_heads):
    shape = AttentionShape(2, 6, 70, 64, kv_heads, 77, causal=True)
    check(replace(config, head_group=4), shape, programs=5)
    check(replace(config, head_group=100, persistent=False), shape, by_token=True)


@pytest.mark.parametrize("seed", range(6))
def test_any_interleaving(seed):
    check(SMALL, AttentionShape(1, 2, 200, 64, 1, 200, True), seed=seed, programs=2)


def test_every_run_gives_the_same_bits_without_reductions():
    shape = AttentionShape(1, 4, 130, 64, 2, 200, True, 90)
    runs = [played(ALONE, shape, programs=p).found for p in (1, 3)]
    for name in ("dq", "dk", "dv"):
        assert np.array_equal(runs[0][name], runs[1][name])
    reduced = [played(SMALL, shape, programs=p).found for p in (1, 3)]
    for name in ("dk", "dv"):
        assert np.array_equal(reduced[0][name], reduced[1][name])
        assert np.array_equal(reduced[0][name], runs[0][name])


@pytest.mark.parametrize("config", [SMALL, ALONE], ids=["reduce", "separate"])
def test_float16_and_another_scale(config):
    shape = AttentionShape(1, 2, 100, 64, 2, 150, True)
    check(config, shape, element="fp16")
    check(config, shape, scale=0.31)


@pytest.mark.parametrize("config", [SMALL, ALONE], ids=["reduce", "separate"])
def test_rows_that_see_no_key_and_keys_that_no_row_sees(config):
    found = played(config, AttentionShape(1, 1, 150, 64, 1, 40, True))
    assert not found.found["dq"][0, 0, :110].any()
    found.require_right("bf16")
    unseen = played(config, AttentionShape(1, 1, 20, 64, 1, 200, True, 30))
    assert not unseen.found["dk"][0, 0, :150].any()
    assert not unseen.found["dv"][0, 0, :150].any()
    unseen.require_right("bf16")


# What breaks: the module, its text, its replacement.
DK_WAIT = "        dk = warpgroup_mma_wait(num_outstanding=1, deps=[dk])\n"
Q_RELEASE = "        mbarrier.arrive(rings.q_empty.index(slot), count=1)\n"
DQ_WAIT = "    dq = warpgroup_mma_wait(num_outstanding=0, deps=[dq])\n"
KEY_RELEASE = "    mbarrier.arrive(rings.empty.index(slot), count=1)\n"
FENCE, READ = "    fence_async_shared()\n", "    tma_store_wait(0)\n"
DS_STORE, DQ_STORE = "        out.ds.store(slopes)\n", "    out.staging.store(dq)\n"
DV_STORE = "    held.v.store(dv.to(held.v.dtype))\n"
STORE_V = "    tma_store(out.dv, key_box(tile, tile.head, BLOCK), as_box(held.v, out.dv))\n"
# Harmless, and not here: missing keys that are seen, whose K and V are zeros, unless their weights overflow; and
# an early release of dO, whose slot is filled after a later Q, which waits for this product too.
MUTATIONS = {
    "a causal mask is one off": (gluon, "BLOCK) - row), FAR)", "BLOCK) - row + 1), FAR)"),
    "a window is one off": (gluon, "low + extents.high, gl", "low + extents.high - 1, gl"),
    "rows begin late": (gluon, "gl.maximum(seen_from, 0)", "gl.maximum(seen_from + 4, 0)"),
    "rows begin where TMA cannot": (gluon, "gl.maximum(seen_from, 0) & -ALIGNED", "gl.maximum(seen_from, 0)"),
    "rows end early": (gluon, "last_key + high + 1", "last_key + high"),
    "slots are counted from each unit": (gluon, "line, row, first + i, out", "line, row, i, out"),
    "the second sharer is left out": (gluon, "range(extents.sharers * tile.blocks)", "range(tile.blocks)"),
    "sharers do not begin anew": (gluon, "                row = begin_again(tile, extents, BLOCK)\n", ""),
    "dK is not scaled": (gluon, "dk * extents.scale", "dk"),
    "delta is not subtracted": (gluon, "dp - delta[None, :]", "dp"),
    "rows are not waited for": (gluon, "    wait_full(full, index, BLOCK.depth)\n", ""),
    "Q is let go before it is read": (gluon, DK_WAIT + Q_RELEASE, Q_RELEASE + DK_WAIT),
    "dQ's bytes are overwritten while they are read": (gluon, "    " + READ + DS_STORE, DS_STORE),
    "dS is not fenced": (gluon, DS_STORE + "    " + FENCE, DS_STORE),
    "dQ is not fenced": (gluon, DQ_STORE + FENCE, DQ_STORE),
    "dK and dV are not fenced": (gluon, DV_STORE + FENCE, DV_STORE),
    "K is loaded while dK leaves through it": (gluon, STORE_V + READ, STORE_V),
    "dQ alone: a causal mask is one off": (query_gradients, "c <= (r + extents.low)", "c < (r + extents.low)"),
    "dQ alone: a window is one off": (query_gradients, "c >= (r - extents.high)", "c > (r - extents.high)"),
    "dQ alone: keys begin late": (query_gradients, "tion - extents.high, 0", "tion - extents.high + 1, 0"),
    "dQ alone: keys end early": (query_gradients, "left) + extents.low", "left) + extents.low - 1"),
    "dQ alone: heads share the wrong keys": (query_gradients, "head // extents.sharers", "head % extents.sharers"),
    "dQ alone: keys are let go before they are read": (query_gradients, DQ_WAIT + KEY_RELEASE, KEY_RELEASE + DQ_WAIT),
    "dQ alone: the result is not fenced": (query_gradients, FENCE, ""),
    "rows without keys are not told": (tl, 'found == float("-inf")', 'found == float("inf")'),
    "sums do not begin at zero": (tl, "tl.zeros([ROWS, D], tl.float32)", "tl.full([ROWS, D], 1.0, tl.float32)"),
    "dQ is not scaled": (tl, "other=0.0) * SCALE", "other=0.0)"),
}  # fmt: skip
KERNELS = {
    gluon: ("key_gradients_kernel",),
    query_gradients: ("query_gradients_kernel",),
    tl: ("row_statistics_kernel", "converted_queries_kernel"),
}
SUFFERING = (
    AttentionShape(1, 4, 200, 64, 2, 210, True, 90),
    AttentionShape(1, 2, 200, 64, 1, 333),
    AttentionShape(1, 2, 70, 64, 1, 40, True, 3),
    AttentionShape(1, 1, 130, 64, 1, 129, True),
    # The last block of a tile has one row, or one key, that the tile sees.
    AttentionShape(1, 1, 200, 64, 1, 200, True, 1),
)


def check_all(configs: tuple[AttentionBwdConfig, ...]) -> None:
    for config in configs:
        for seed, shape in enumerate(SUFFERING):
            check(config, shape, seed=seed, programs=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_kernel_is_noticed(name, tmp_path):
    module, old, new = MUTATIONS[name]
    configs = {gluon: (SMALL,), query_gradients: (ALONE,), tl: (SMALL, ALONE)}[module]
    broken = broken_kernel(module, KERNELS[module], old, new, tmp_path, [played_gradients.compiled])
    with broken, pytest.raises((AssertionError, KernelFault)):
        check_all(configs)
