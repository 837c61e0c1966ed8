"""The decoding kernels' compiled code, played in numpy: right results for any lengths and splits, nothing read behind a
sequence's keys; and kernels that are broken in one place are noticed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="compiling needs triton")

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import played_decode
from broken_kernels import broken_kernel
from played_decode import played

from warpplan.kernels.attention_decode import gluon, tl
from warpplan.kernels.attention_decode.space import DecodeConfig, violations
from warpplan.kernels.compiler.inspection.player.tiles.faults import KernelFault
from warpplan.planner.values.device import H200

SMALL = DecodeConfig(64, 64, 2, splits=3)
CONFIGS = (
    SMALL,
    replace(SMALL, lookahead=False, splits=1),
    replace(SMALL, splits=9),
    DecodeConfig(64, 128, 3, False, 2),
    DecodeConfig(128, 128, 3, True, 17),
    DecodeConfig(256, 64, 3, True, 2),
)
LENGTHS = (200, 0, 1, 65, 300)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_every_scheme(config):
    assert not violations(config, "bfloat16", H200)
    played(config, LENGTHS).require_right()
    played(config, LENGTHS, heads=8, kv_heads=1, queries=8, seed=1).require_right()
    played(config, LENGTHS, heads=6, kv_heads=3, queries=5, seed=2, by_token=True).require_right()
    played(config, (200, 200), keys=200, told=False, seed=3).require_right()


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=4), st.integers(1, 5), st.sampled_from((1, 2, 16)),
    st.sampled_from((1, 2, 4)), st.booleans(), st.integers(0, 99),
)  # fmt: skip
@settings(deadline=None, max_examples=15)
def test_any_lengths(lengths, splits, queries, sharers, by_token, seed):
    config = replace(SMALL, splits=splits)
    options = {"heads": 2 * sharers, "kv_heads": 2, "queries": queries, "by_token": by_token, "seed": seed}
    played(config, tuple(lengths), **options).require_right()


def test_the_tile_may_be_full():
    played(SMALL, (100,), heads=4, kv_heads=1, queries=16).require_right()


def test_a_length_beyond_the_keys_is_held_within():
    """What the device reads may be anything: nothing outside of K and V is touched."""
    found = played(SMALL, (70, 60), keys=60 + 10)
    found.require_right()


def test_float16():
    played(SMALL, LENGTHS, element="fp16").require_right("fp16")


def test_every_run_gives_the_same_bits():
    first, second = (played(SMALL, LENGTHS, queries=2, seed=4) for _ in range(2))
    assert np.array_equal(first.out, second.out)
    assert np.array_equal(first.lse, second.lse)


MUTATIONS = {
    "keys behind a sequence's are read": (
        gluon, "batch * parts.key_rows, k_length)", "batch * parts.key_rows, parts.keys)",
    ),
    "splits overlap": (gluon, "    first = split * each\n", "    first = split * each // 2\n"),
    "the last block of a split is forgotten": (
        gluon, "gl.cdiv(gl.minimum(each, k_length - first), BLOCK.columns)",
        "(gl.minimum(each, k_length - first) // BLOCK.columns)",
    ),
    "queries are taken head by head": (
        gluon, "r // extents.sharers * tensors.q_query", "r % extents.sharers * tensors.q_query",
    ),
    "heads read each other's rows": (
        gluon, "head = tile.head * extents.sharers + r % extents.sharers\n    first", "head = tile.head + r\n    first",
    ),
    "Q is not fenced": (gluon, "    fence_async_shared()\n", ""),
    "splits are not weighed": (tl, "values * weight[:, None]", "values"),
    "splits are weighed too little": (tl, "weight = tl.exp(its - most)", "weight = tl.exp2(its - most)"),
    "some splits are left out": (tl, "split < SPLITS\n", "split < SPLITS - 1\n"),
    "rows of another head are combined": (tl, "row % SHARERS\n    batch", "row // QUERIES\n    batch"),
}  # fmt: skip


def check_all() -> None:
    played(SMALL, LENGTHS, heads=8, kv_heads=2, queries=3).require_right()
    played(replace(SMALL, splits=1), LENGTHS, heads=4, kv_heads=2, queries=2, by_token=True).require_right()


def test_what_the_mutations_are_judged_by_is_right():
    check_all()


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_decoding_kernel_is_noticed(name, tmp_path):
    module, old, new = MUTATIONS[name]
    kernels = ["attention_decode_kernel" if module is gluon else "combine_splits_kernel"]
    compiled = [played_decode.compiled, played_decode.compiled_combine]
    with broken_kernel(module, kernels, old, new, tmp_path, compiled), pytest.raises((AssertionError, KernelFault)):
        check_all()
