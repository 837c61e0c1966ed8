"""Gradients of packed sequences of unlike lengths, played in numpy: each right by itself under any interleaving,
nothing of a neighbour read, nothing written beside; and kernels that are broken in one place are noticed."""

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
import played_gradients
from broken_kernels import broken_kernel
from played_packed_gradients import played_sequences

from warpplan.kernels.attention_bwd import gluon, tl
from warpplan.kernels.attention_bwd.query_gradients import gluon as query_gradients
from warpplan.kernels.attention_bwd.space import AttentionBwdConfig, deterministic, violations
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.compiler.inspection.player.tiles.faults import KernelFault
from warpplan.planner.values.device import H200

SMALL = AttentionBwdConfig(64, 64, 64, 2, packed=True)
ALONE = deterministic(SMALL)
CONFIGS = (
    replace(SMALL, ds_in_registers=False, depth=4, persistent=False),
    replace(SMALL, keys=128),
    replace(ALONE, keys=128, depth=4),
    AttentionBwdConfig(128, 128, 64, 2, packed=True),
    AttentionBwdConfig(128, 128, 64, 2, ds_in_registers=False, persistent=False, packed=True),
    deterministic(AttentionBwdConfig(128, 128, 64, 4, packed=True)),
)
MASKS = ((False, None), (True, None), (True, 0), (True, 70), (False, 33))
"""(causal, window)."""


def heads(config: AttentionBwdConfig, causal: bool = False, window: int | None = None, h: int = 2, g: int = 1):
    """Heads and mask; the lengths are those of the sequences."""
    return AttentionShape(1, h, 1, config.head_dim, g, 1, causal, window)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_every_scheme(config):
    assert not violations(config, "bfloat16", H200)
    tile, block = config.keys, config.rows
    for seed, mask in enumerate(MASKS):
        q_sizes, k_sizes = (block + 5, 0, 1, 67, block), (tile + 3, 9, 2 * tile, 0, tile)
        shape = heads(config, *mask)
        played_sequences(config, q_sizes, k_sizes, shape, seed=seed, programs=1 + seed % 3).require_right("bf16")


@given(
    st.lists(st.tuples(st.sampled_from((0, 1, 5, 63, 64, 65, 130, 200)), st.sampled_from((0, 1, 31, 64, 65, 150))),
             min_size=1, max_size=5),
    st.sampled_from(MASKS), st.integers(1, 4), st.booleans(), st.booleans(), st.integers(0, 99),
)  # fmt: skip
@settings(deadline=None, max_examples=30)
def test_any_lengths(sizes, mask, programs, persistent, reduces, seed):
    q_sizes, k_sizes = zip(*sizes, strict=True)
    if not any(q_sizes) or not any(k_sizes):
        return
    config = replace(SMALL if reduces else ALONE, persistent=persistent, head_group=1 + seed % 3)
    shape = heads(config, *mask, h=4, g=(1, 2, 4)[seed % 3])
    played_sequences(config, q_sizes, k_sizes, shape, seed=seed, programs=programs).require_right("bf16")


@pytest.mark.parametrize("config", [SMALL, ALONE], ids=["reduce", "separate"])
def test_more_sequences_than_a_warp_looks_at_together(config):
    sizes = tuple(1 + i % 7 for i in range(70))
    played_sequences(config, sizes, sizes[::-1], heads(config, True), programs=3).require_right("bf16")


@pytest.mark.parametrize("config", [SMALL, ALONE], ids=["reduce", "separate"])
@pytest.mark.parametrize("causal", [False, True])
def test_nothing_of_a_neighbour_is_read(config, causal):
    """NaN in the values of one sequence reaches the gradients of none but its own."""
    sizes = (70, 70, 70)
    played_sequences(config, sizes, sizes, heads(config, causal), broken=(1, 69)).require_right("bf16")


@pytest.mark.parametrize("config", [SMALL, ALONE], ids=["reduce", "separate"])
def test_float16_and_another_scale(config):
    sizes, shape = (100, 3, 150), heads(config, True, h=4, g=2)
    played_sequences(config, sizes, sizes, shape, element="fp16").require_right("fp16")
    played_sequences(config, sizes, sizes, shape, scale=0.31).require_right("bf16")


def test_every_run_gives_the_same_bits_without_reductions():
    sizes = (100, 3, 200)
    runs = [played_sequences(ALONE, sizes, sizes, heads(ALONE, True), programs=p, seed=1).found for p in (1, 3)]
    for name in ("dq", "dk", "dv"):
        assert np.array_equal(runs[0][name], runs[1][name])


def check_all(config: AttentionBwdConfig) -> None:
    for causal, broken in ((False, None), (True, None), (True, (1, 64))):
        sizes = (70, 130, 5), (90, 65, 200)
        played_sequences(config, *sizes, heads(config, causal), broken=broken).require_right("bf16")


@pytest.mark.parametrize("config", [SMALL, ALONE], ids=["reduce", "separate"])
def test_what_the_mutations_are_judged_by_is_right(config):
    check_all(config)


KEY_BOX = "return ragged_box(head, tile.key, tile.k_end)"
ROW_BOX = "return ragged_box(head, tile.shift + row, tile.q_end)"
DQ_BOX = "ragged_box(tile.head, tile.row, tile.q_end)"
PLACE = "(begin & -ALIGNED) + sequence * GAP\n        inside = (r"
# Harmless, and not here: keys and rows beyond a sequence that have weights, for they are zeros.
MUTATIONS = {
    "keys are read and written beyond the sequence": (gluon, KEY_BOX, KEY_BOX.replace("k_end)", "k_end + 64)")),
    "rows are read beyond the sequence": (gluon, ROW_BOX, ROW_BOX.replace("q_end)", "q_end + 64)")),
    "queries begin with another sequence": (
        gluon, "sequence_rows(extents.q_starts, sequence, ", "sequence_rows(extents.q_starts, 0, "
    ),
    "the mask is aligned upper left": (gluon, "(extents.low + more)", "extents.low"),
    "sequences have no gap": (gluon, "sequence * BLOCK.gap", "0"),
    "a sharer begins with another's end": (gluon, "        return tile.row\n", "        return tile.end\n"),
    "dQ alone: rows are written beyond the sequence": (
        query_gradients, DQ_BOX, DQ_BOX.replace("q_end)", "q_end + 64)")
    ),
    "dQ alone: the mask is aligned upper left": (
        query_gradients, "position = row + k_end - k_first - (q_end - q_first)", "position = row"
    ),
    "dQ alone: statistics are another sequence's": (query_gradients, "+ sequence * BLOCK.gap + row", "+ row"),
    "dQ is taken from another sequence": (tl, PLACE, "begin\n        inside = (r"),
    "rows of no sequence are written": (tl, "(r >= begin) & (r < end)", "(r >= begin) & (r < LENGTH)"),
}  # fmt: skip
KERNELS = {
    gluon: ("key_gradients_kernel",),
    query_gradients: ("query_gradients_kernel",),
    tl: ("row_statistics_kernel", "converted_queries_kernel"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_packed_kernel_is_noticed(name, tmp_path):
    module, old, new = MUTATIONS[name]
    broken = broken_kernel(module, KERNELS[module], old, new, tmp_path, [played_gradients.compiled])
    with broken, pytest.raises((AssertionError, KernelFault)):
        check_all(ALONE if module is query_gradients else SMALL)
