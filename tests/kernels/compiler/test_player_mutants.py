"""Every operation of a lowered kernel that synchronises is needed: broken by hand, the player notices."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from mutants import mutants
from played import cut
from played_kernels import finished, product_inputs
from test_player import stored_by_tma

from warpplan.kernels.compiler.inspection.player.played_program import PlayedInputs, play
from warpplan.kernels.compiler.inspection.player.tiles.faults import KernelFault
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy

HARMLESS = "other slot", "no release", "released twice"
"""What may be done to the release after the last iteration, when nobody fills the slot any more, and to the slot that a
producer waits for: it waits for them in order, so a later one is only stricter."""


def survivors(
    text: str, wanted: np.ndarray, inputs: PlayedInputs, launched: int | None, grid: tuple[int, ...]
) -> dict[str, list[str]]:
    """By whether they were noticed, the mutants of ``text``."""
    found: dict[str, list[str]] = {"noticed": [], "alive": []}
    for told, mutant in mutants(text):
        try:
            same = all(
                np.array_equal(play(mutant, inputs, grid, seed, launched).buffers["c"], wanted) for seed in (0, 2)
            )
        except KernelFault:
            same = False
        found["alive" if same else "noticed"].append(told)
    return found


def test_a_product_with_one_operation_broken_is_noticed() -> None:
    inputs, text = product_inputs(0, 6), finished("between", HopperStrategy(1, (3,)))
    wanted = play(cut("between"), inputs, (1,), fences=False).buffers["c"]
    found = survivors(text, wanted, inputs, None, (1,))
    assert len(found["noticed"]) >= 24
    assert [told for told in found["noticed"] if told.endswith("waits less")]
    assert [told for told in found["alive"] if told.split(": ")[1] not in HARMLESS] == []


def test_a_kernel_that_walks_and_stores_by_tma_with_one_operation_broken_is_noticed() -> None:
    changed = (("c", (128, 64)),)
    inputs = stored_by_tma()
    text = finished("early_stored", HopperStrategy(2, (2,), persistent=1), changed)
    wanted = play(cut("early_stored", changed), inputs, (5,), fences=False).buffers["c"]
    found = survivors(text, wanted, inputs, 2, (5,))
    kinds = {told.split(": ")[1] for told in found["noticed"]}
    assert kinds >= {
        "no wait", "other phase", "no release", "released twice", "other bytes", "no fence",
        "no wait for stores", "no copy", "coordinates swapped", "other slot", "count",
    }  # fmt: skip
    assert [told for told in found["alive"] if told.split(": ")[1] not in HARMLESS] == []
