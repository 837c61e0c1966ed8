"""The attention kernel's compiled code, played in numpy: right results under any interleaving of its partitions, no
races, nothing read or written beside the tensors; and a kernel that is broken in one place is noticed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", reason="compiling needs triton")

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import played_attention
from broken_kernels import broken_kernel
from played_attention import played

from warpplan.kernels.attention_fwd import gluon
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.attention_fwd.space import AttentionConfig, violations
from warpplan.kernels.compiler.inspection.player.tiles.faults import KernelFault
from warpplan.planner.values.device import H200

SMALL = AttentionConfig(64, 2, 64, 64, 2)
CONFIGS = (
    SMALL,
    replace(SMALL, lookahead=False),
    replace(SMALL, pingpong=True, depth=3),
    replace(SMALL, q_in_registers=True),
    replace(SMALL, q_in_registers=True, staging="q", lookahead=False),
    replace(SMALL, staging="q", consumers=3, pingpong=True),
    replace(SMALL, consumers=1, rows=128),
    AttentionConfig(64, 3, 64, 128, 2),
    AttentionConfig(128, 2, 64, 128, 2),
    AttentionConfig(128, 2, 64, 128, 3, pingpong=True, staging="q"),
    AttentionConfig(256, 2, 64, 64, 2, staging="q"),
    AttentionConfig(256, 1, 64, 64, 2, lookahead=False, staging="q"),
)


def masks(shape: AttentionShape) -> list[AttentionShape]:
    """``shape`` with every kind of mask."""
    bands = ((False, None), (True, None), (True, 0), (True, 70), (False, 33))
    return [replace(shape, causal=causal, window=window) for causal, window in bands]


def check(config: AttentionConfig, shape: AttentionShape, **options) -> None:
    played(config, shape, **options).require_right(options.get("element", "bf16"))


@pytest.mark.parametrize("q_length", [1, 63, 64, 65, 127, 131, 257])
@pytest.mark.parametrize("k_length", [1, 63, 64, 65, 191])
def test_lengths_and_masks(q_length, k_length):
    for shape in masks(AttentionShape(1, 1, q_length, 64, 1, k_length)):
        check(SMALL, shape, seed=q_length)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_every_scheme(config):
    assert not violations(config, "bfloat16", H200)
    shape = AttentionShape(1, 2, config.tile_rows + 67, config.head_dim, 1, 2 * config.columns + 11)
    for seed, masked in enumerate(masks(shape)):
        check(config, masked, seed=seed, programs=1 + seed % 3)
    check(config, replace(shape, q_length=1, k_length=1), seed=9)
    check(config, replace(shape, q_length=2 * config.tile_rows, k_length=config.columns, causal=True), seed=10)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("group", [1, 4, 100])
def test_heads_that_share_keys_in_any_order_of_units(kv_heads, group):
    shape = AttentionShape(2, 6, 130, 64, kv_heads, 77, causal=True)
    check(replace(SMALL, head_group=group), shape, programs=5)
    check(replace(SMALL, head_group=group, persistent=False), shape, by_token=True)


@pytest.mark.parametrize("seed", range(8))
def test_any_interleaving(seed):
    check(replace(SMALL, pingpong=True), AttentionShape(1, 3, 200, 64, 1, 300, True), seed=seed, programs=2)


def test_every_run_gives_the_same_bits():
    shape = AttentionShape(1, 2, 200, 64, 1, 300, True, 90)
    first, second = (played(SMALL, shape, programs=p) for p in (1, 3))
    assert np.array_equal(first.out, second.out)
    assert np.array_equal(first.lse, second.lse)


def test_float16_and_another_scale():
    shape = AttentionShape(1, 2, 100, 64, 2, 150, True)
    check(SMALL, shape, element="fp16")
    check(SMALL, shape, scale=0.71)


def test_rows_that_see_no_key_are_zero():
    found = played(SMALL, AttentionShape(1, 1, 150, 64, 1, 40, True))
    assert not found.out[0, 0, :110].any()
    assert np.isneginf(found.lse[0, 0, :110]).all()
    assert np.isfinite(found.lse[0, 0, 110:]).all()
    found.require_right("bf16")


def check_all(shapes: tuple[AttentionShape, ...], element: str = "bf16") -> None:
    for seed, shape in enumerate(shapes):
        check(SMALL, shape, seed=seed, programs=1, element=element)


EIGHT_BIT = (
    SMALL,
    replace(SMALL, lookahead=False),
    replace(SMALL, pingpong=True, depth=3),
    replace(SMALL, q_in_registers=True),
    replace(SMALL, rows=128),
    AttentionConfig(64, 3, 64, 128, 2),
    AttentionConfig(128, 2, 64, 128, 2),
    AttentionConfig(128, 2, 64, 128, 3, pingpong=True),
    AttentionConfig(256, 2, 64, 64, 2, q_in_registers=True),
    AttentionConfig(256, 2, 64, 128, 2, lookahead=False),
)


@pytest.mark.parametrize("q_length", [1, 131])
@pytest.mark.parametrize("k_length", [1, 64, 95, 191])
def test_lengths_and_masks_in_8_bits(q_length, k_length):
    """Where all weights are alike and exact, so are keys that are seen in another's stead."""
    for shape in masks(AttentionShape(1, 2, q_length, 64, 1, k_length)):
        played(SMALL, shape, element="fp8e4nv", seed=k_length, alike=True).require_exact()
        check(SMALL, shape, element="fp8e4nv", seed=q_length)


@pytest.mark.slow
@pytest.mark.parametrize("config", EIGHT_BIT, ids=repr)
def test_every_scheme_in_8_bits(config):
    assert not violations(config, "float8_e4m3fn", H200)
    shape = AttentionShape(2, 2, config.tile_rows + 67, config.head_dim, 1, 2 * config.columns + 11)
    for seed, masked in enumerate(masks(shape)):
        check(config, masked, seed=seed, programs=1 + seed % 3, element="fp8e4nv")
        played(config, masked, seed=seed, element="fp8e4nv", alike=True).require_exact()


@pytest.mark.parametrize("seed", range(2))
def test_any_interleaving_in_8_bits(seed):
    shape = AttentionShape(2, 4, 200, 64, 2, 300, True)
    check(replace(SMALL, pingpong=True), shape, seed=seed, programs=3, element="fp8e4nv", by_token=True)


def test_rows_that_see_no_key_are_zero_in_8_bits():
    found = played(SMALL, AttentionShape(1, 1, 150, 64, 1, 40, True), element="fp8e4nv")
    assert not found.out[0, 0, :110].any()
    assert np.isneginf(found.lse[0, 0, :110]).all()
    found.require_right("fp8e4nv")


# What breaks: the source's text, its replacement.
MUTATIONS = {
    "the last block's missing keys are seen": ("found = key + BLOCK.columns > tile.k_length", "found = False"),
    "a causal mask is one off": ("c <= (r + extents.right)", "c < (r + extents.right)"),
    "a window is one off": ("c >= (r - extents.left)", "c > (r - extents.left)"),
    "blocks before the window begin late": (
        "gl.maximum(row + shift - extents.left, 0)",
        "gl.maximum(row + shift - extents.left + 1, 0)",
    ),
    "blocks end early": ("last_row + shift + extents.right + 1", "last_row + shift + extents.right"),
    "the output is not rescaled": ("        acc = rescale(acc, alpha)\n        weights", "        weights"),
    "sums are not rescaled": ("row_sum * alpha + ", "row_sum + "),
    # (An early release of K alone is harmless: its slot is filled after a later V, which waits for this product too.)
    "V is let go before it is read": (
        "        acc = warpgroup_mma_wait(num_outstanding=0, deps=[pending])\n        mbarrier.arrive("
        "rings.v_empty.index(previous), count=1)\n        acc = rescale",
        "        mbarrier.arrive(rings.v_empty.index(previous), count=1)\n        "
        "acc = warpgroup_mma_wait(num_outstanding=0, deps=[pending])\n        acc = rescale",
    ),
    "V is not waited for": ("    wait_full(rings.v_full, index, BLOCK.depth)\n", ""),
    "Q is let go before its last product": (
        "        if BLOCK.lookahead:",
        "        release_queries(queries, BLOCK)\n        if BLOCK.lookahead:",
    ),
    "heads share the wrong keys": ("tile.head // extents.sharers", "tile.head % extents.sharers"),
    "the result is stored before it is fenced": (
        "    staging.store(acc.to(staging.dtype))\n    fence_async_shared()\n",
        "    staging.store(acc.to(staging.dtype))\n",
    ),
    "the staging is overwritten while it is read": (
        "        tma_store_wait(0)\n    thread_barrier()",
        "    thread_barrier()",
    ),
}  # fmt: skip
SUFFERING = (
    AttentionShape(1, 4, 200, 64, 2, 333, True, 90),
    AttentionShape(1, 4, 200, 64, 2, 333),
    AttentionShape(1, 4, 70, 64, 2, 64, True, 3),
    AttentionShape(1, 1, 1, 64, 1, 65, True),
)


# The same for 8 bits.
EIGHT_BIT_MUTATIONS = {
    "a window begins where TMA cannot": ("first = first // KEY_GROUP * KEY_GROUP", "first = first"),
    "V has the scale of another head": ("key_head * scales.v_head", "tile.head * scales.v_head"),
    "the scale of K is left out": ("scale * q_scale * k_scale", "scale * q_scale"),
    "the log-sum-exp is that of larger weights": (
        "        block_max -= WEIGHT_BITS\n",
        "        row_max -= WEIGHT_BITS\n",
    ),
}


def broken(old, new, folder):
    return broken_kernel(gluon, ["attention_fwd_kernel"], old, new, folder, [played_attention.compiled])


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_kernel_is_noticed(name, tmp_path):
    with broken(*MUTATIONS[name], tmp_path), pytest.raises((AssertionError, KernelFault)):
        check_all(SUFFERING)


@pytest.mark.slow
@pytest.mark.parametrize("name", EIGHT_BIT_MUTATIONS)
def test_a_broken_kernel_is_noticed_in_8_bits(name, tmp_path):
    with broken(*EIGHT_BIT_MUTATIONS[name], tmp_path), pytest.raises((AssertionError, KernelFault)):
        check_all(SUFFERING, element="fp8e4nv")


def test_keys_of_v_in_another_order_are_noticed(monkeypatch):
    """The order that the pass gives them is that of the weights, and no other is."""
    shape = AttentionShape(1, 1, 64, 64, 1, 64)
    laid_out = played_attention._laid_out

    def shuffled(buffers, *arguments):
        made = laid_out(buffers, *arguments)
        buffers["vt"] = buffers["vt"].reshape(-1, 2, 4, 2).transpose(0, 2, 1, 3).reshape(-1).copy()
        return made

    check(SMALL, shape, element="fp8e4nv")
    monkeypatch.setattr(played_attention, "_laid_out", shuffled)
    with pytest.raises(AssertionError):
        check(SMALL, shape, element="fp8e4nv")


def test_larger_weights_keep_their_tails(tmp_path):
    """One key has nearly all of the weight, and many others together have more than a rounding error of it."""
    shape = AttentionShape(1, 1, 64, 64, 1, 512)
    scaled = played(SMALL, shape, element="fp8e4nv", scale=0.6)
    with broken("WEIGHT_BITS = gl.constexpr(8)", "WEIGHT_BITS = gl.constexpr(0)", tmp_path):
        plain = played(SMALL, shape, element="fp8e4nv", scale=0.6)
    scaled.require_right("fp8e4nv")
    errors = [np.linalg.norm(found.out - found.wanted_out) for found in (scaled, plain)]
    assert 1.02 * errors[0] < errors[1]
