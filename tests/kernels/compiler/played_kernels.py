"""Kernels of ``lowered_kernels`` finished under a strategy, with inputs for the player of finished kernels."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from played import HOPPER, cut_module

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.inspection.player.comparison import Compared, coarsest_rounding, compare
from warpplan.kernels.compiler.inspection.player.played_program import (
    BufferArgument,
    DescribedArgument,
    PlayedArgument,
    PlayedInputs,
    play,
    ready,
)
from warpplan.kernels.compiler.inspection.player.tiles.element_types import element_type, encoded, rounded
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy

assert HOPPER.backend == "cuda"
DEPTH = 336
"""Columns of each operand: five blocks of 64, and a ragged one."""


@cache
def finished(name: str, scheme: HopperStrategy, changed: tuple[tuple[str, Any], ...] = ()) -> str:
    """The kernel lowered by ``scheme``, after Triton's own passes."""
    made = cut_module(name, changed)
    return str(pipeline.finish(scheme.lower(made.text), made.options, made.capability, pipelined=scheme.pipelined))


def tensor(rows: int, columns: int, seed: int, element: str = "bf16") -> np.ndarray:
    """The bytes of normal numbers."""
    kind = element_type(element)
    values = np.random.default_rng(seed).standard_normal((rows, columns))
    return encoded(rounded(values, kind), kind).view(np.uint8).reshape(-1)


def box(name: str, rows: int, columns: int, element: str = "bf16") -> DescribedArgument:
    return DescribedArgument(name, (rows, columns), (columns, 1), element)


def unwritten(count: int) -> np.ndarray:
    return np.full(count, np.nan, np.float32).view(np.uint8)


def product_inputs(*numbers: PlayedArgument, rows: int = 128, depth: int = DEPTH) -> PlayedInputs:
    """A, B, where C goes, and the kernel's numbers."""
    buffers = {"a": tensor(rows, depth, 1), "b": tensor(64, depth, 2), "c": unwritten(rows * 64)}
    return PlayedInputs(buffers, (box("a", rows, depth), box("b", 64, depth), BufferArgument("c"), *numbers))


def compared(
    original: str, text: str, inputs: PlayedInputs, seeds: tuple[int, ...] = (0, 1, 2), grid: tuple[int, ...] = (1,),
    launched: int | None = None,
) -> Compared:  # fmt: skip
    """The worst of the seeds."""
    before, after = ready(original), ready(text)
    wanted = play(before, inputs, grid, fences=False)
    assert any(not np.array_equal(wanted.buffers[name], data) for name, data in inputs.buffers.items())
    elements = {name: "f32" if name in "cd" else "bf16" for name in inputs.buffers}
    found = [play(after, inputs, grid, seed, launched) for seed in seeds]
    grain = coarsest_rounding(before)
    each = [compare(wanted.buffers, one.buffers, elements, grain) for one in found]
    return max(each, key=lambda one: (bool(one.differs), not one.equal, one.roundings))
