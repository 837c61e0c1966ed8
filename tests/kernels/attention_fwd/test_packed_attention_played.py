"""Packed sequences of unlike lengths, played in numpy: each right by itself under any interleaving, nothing of a
neighbour read, nothing written beside; and a kernel that is broken in one place is noticed."""

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
import played_attention
from broken_kernels import broken_kernel
from played_attention import played_sequences

from warpplan.kernels.attention_fwd import gluon
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.attention_fwd.space import AttentionConfig, violations
from warpplan.kernels.compiler.inspection.player.tiles.faults import KernelFault
from warpplan.planner.values.device import H200

SMALL = AttentionConfig(64, 2, 64, 64, 2, packed=True)
CONFIGS = (
    SMALL,
    replace(SMALL, lookahead=False, persistent=False),
    replace(SMALL, pingpong=True, depth=3, head_group=2),
    replace(SMALL, q_in_registers=True, staging="q", consumers=3),
    AttentionConfig(128, 2, 64, 128, 2, packed=True),
    AttentionConfig(256, 2, 64, 64, 2, staging="q", packed=True),
)
MASKS = ((False, None), (True, None), (True, 0), (True, 70), (False, 33))
"""(causal, window)."""


def heads(config: AttentionConfig, causal: bool = False, window: int | None = None, h: int = 2, g: int = 1):
    """Heads and mask; the lengths are those of the sequences."""
    return AttentionShape(1, h, 1, config.head_dim, g, 1, causal, window)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_every_scheme(config):
    assert not violations(config, "bfloat16", H200)
    tile, block = config.tile_rows, config.columns
    for seed, mask in enumerate(MASKS):
        q_sizes, k_sizes = (tile + 5, 0, 1, 67, tile), (block + 3, 9, 2 * block, 0, block)
        shape = heads(config, *mask)
        played_sequences(config, q_sizes, k_sizes, shape, seed=seed, programs=1 + seed % 3).require_right()


@given(
    st.lists(st.tuples(st.sampled_from((0, 1, 5, 63, 64, 65, 130, 200)), st.sampled_from((0, 1, 31, 64, 65, 150))),
             min_size=1, max_size=5),
    st.sampled_from(MASKS), st.integers(1, 4), st.booleans(), st.integers(0, 99),
)  # fmt: skip
@settings(deadline=None, max_examples=20)
def test_any_lengths(sizes, mask, programs, persistent, seed):
    if not any(q for q, _ in sizes):
        return
    q_sizes, k_sizes = zip(*sizes, strict=True)
    config = replace(SMALL, persistent=persistent, head_group=1 + seed % 3)
    shape = heads(config, *mask, h=4, g=(1, 2, 4)[seed % 3])
    played_sequences(config, q_sizes, k_sizes, shape, seed=seed, programs=programs).require_right()


def test_more_sequences_than_a_warp_looks_at_together():
    sizes = tuple(1 + i % 7 for i in range(70))
    played_sequences(SMALL, sizes, sizes[::-1], heads(SMALL, True), programs=3).require_right()


@pytest.mark.parametrize("causal", [False, True])
def test_nothing_of_a_neighbour_is_read(causal):
    """NaN in the keys and values of one sequence reaches its own rows alone."""
    found = played_sequences(SMALL, (70, 70, 70), (70, 70, 70), heads(SMALL, causal), broken=(1, 0))
    assert np.isnan(found.out[70:140]).all()
    assert np.isfinite(found.out[:70]).all()
    assert np.isfinite(found.out[140:210]).all()
    found.require_right()


def test_every_run_gives_the_same_bits():
    sizes = (100, 3, 200)
    first, second = (
        played_sequences(SMALL, sizes, sizes, heads(SMALL, True), programs=p, seed=1).out for p in (1, 3)
    )  # fmt: skip
    assert np.array_equal(first, second, equal_nan=True)


def check_all() -> None:
    for causal in (False, True):
        for broken in (None, (1, 0)):
            sizes = (70, 130, 5), (90, 65, 200)
            played_sequences(SMALL, *sizes, heads(SMALL, causal), broken=broken).require_right()


def test_what_the_mutations_are_judged_by_is_right():
    check_all()


MUTATIONS = {
    "keys are read beyond the sequence": (
        "return ragged_box(head, tile.k_first + key, tile.k_first + tile.k_length)",
        "return ragged_box(head, tile.k_first + key, tile.k_first + tile.k_length + 64)",
    ),
    "rows are written beyond the sequence": (
        "return ragged_box(tile.head, tile.q_first + row, tile.q_first + tile.q_length)",
        "return ragged_box(tile.head, tile.q_first + row, tile.q_first + tile.q_length + 64)",
    ),
    "keys begin with another sequence": (
        "gl.load(extents.k_starts + group.index), 0)",
        "gl.load(extents.k_starts), 0)",
    ),
    "the sums of a row go to another sequence": ("* extents.q_length + tile.q_first", "* extents.q_length"),
    "the sums of a neighbour's row are written": ("mask=r < tile.q_length)", "mask=r < BLOCK.rows * 4)"),
    "the mask is aligned upper left": (
        "    shift = k_length - q_length\n",
        "    shift = 0\n",
    ),
}


def broken(old, new, folder):
    return broken_kernel(gluon, ["attention_fwd_kernel"], old, new, folder, [played_attention.compiled])


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_packed_kernel_is_noticed(name, tmp_path):
    with broken(*MUTATIONS[name], tmp_path), pytest.raises((AssertionError, KernelFault)):
        check_all()
