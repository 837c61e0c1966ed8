"""Kernels at the cut with what a block of them is run with, and the comparison of a lowered one with the kernel."""

from __future__ import annotations

from functools import cache
from typing import Any

import lowered_kernels as kernels
import numpy as np
from interpreter import BUFFER, Descriptor, run_together
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from zoo import ZOO, source

from warpplan.kernels.compiler import pipeline
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyCode
from warpplan.kernels.compiler.lowering.hopper.specialize import specialize
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.ttgir import parsing

HOPPER = GPUTarget("cuda", 90, 32)
ROWS, DEPTH = 128, 448
TILE = {"BM": 128, "BN": 64, "BK": 64}
TYPES = {"a": (128, 64), "b": (64, 64), "q": (128, 64), "k": (64, 64), "v": (64, 64)}


def cut(name: str, changed: tuple[tuple[str, Any], ...] = ()) -> str:
    """The TTGIR at the cut of a kernel of ``lowered_kernels``; ``changed`` are other types or constants."""
    return cut_module(name, changed).text


@cache
def cut_module(name: str, changed: tuple[tuple[str, Any], ...] = ()) -> pipeline.CutModule:
    """The same with the options of the compile."""
    return pipeline.cut(own_source(name, changed), HOPPER, {"num_warps": 4})


def own_source(name: str, changed: tuple[tuple[str, Any], ...] = ()) -> ASTSource:
    """What Triton compiles for it."""
    kernel = getattr(kernels, name)
    names = [parameter.name for parameter in kernel.params]
    constants = {n: v for n, v in {**TILE, "STEP": 1, **dict(changed)}.items() if n in names and n.isupper()}
    boxes = {n: f"tensordesc<bf16[{','.join(map(str, box))}]>" for n, box in {**TYPES, **dict(changed)}.items()
             if isinstance(box, tuple)}  # fmt: skip
    pointers = {"c_ptr": "*fp32", "d_ptr": "*fp32", "flag": "*i32", "a_ptr": "*bf16", "b_ptr": "*bf16", "table": "*i64"}
    types = {**boxes, **pointers, **{n: text for n, text in changed if isinstance(text, str)}}
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in names}
    aligned = {(names.index(n),): [["tt.divisibility", 16]] for n in names if types.get(n, "").startswith("*")}
    return ASTSource(kernel, signature, {(names.index(n),): v for n, v in constants.items()}, aligned)


@cache
def zoo_cut(name: str, **constants: Any) -> str:
    """The same of a kernel of the zoo."""
    return pipeline.cut(source(name, **constants), HOPPER, {**ZOO[name].options, "num_warps": 4}).text


def tensors(*shapes: tuple[int, int]) -> tuple[list[Descriptor], list[np.ndarray]]:
    """Buffers of random quarters, and descriptors of them."""
    draw = np.random.default_rng(len(shapes))
    data = [draw.integers(-4, 5, rows * columns) / 4.0 for rows, columns in shapes]
    made = [Descriptor(i * BUFFER, shape, (shape[1], 1)) for i, shape in enumerate(shapes)]
    return made, data


def same(
    text: str, scheme: HopperStrategy, values: dict[str, Any], buffers: list[np.ndarray],
    grid: tuple[int, ...] = (1, 1, 1), launched: int = 0, seeds: int = 2, only: tuple[int, ...] = (),
    original: str = "",
) -> str:  # fmt: skip
    """Assert that what the lowered programs of a grid store together is what the kernel's store; the lowered text.

    ``launched`` programs walk over the grid where ``scheme`` is persistent; otherwise the program ``only`` is run, or
    all of the grid. ``original`` is the kernel's text where ``text`` has TMA loads for its pointer loads already.
    """
    programs = [only] if only else [p[::-1] for p in np.ndindex(*grid[::-1])]
    wanted = run_together(ReadyCode(parsing.parse(original or text)), values, buffers, programs, grid)
    lowered = specialize(text, scheme)
    planned = ReadyCode(parsing.parse(lowered))
    if scheme.persistent:
        values = values | {f"wp_grid_{axis}": n for axis, n in zip("xyz", grid, strict=True)}
        programs, grid = [(i, 0, 0) for i in range(launched)], (launched, 1, 1)
    for seed in range(seeds):
        where, what = run_together(planned, values, buffers, programs, grid, seed)
        np.testing.assert_array_equal(where, wanted[0])
        np.testing.assert_allclose(what, wanted[1], rtol=1e-9, atol=1e-9)
    return lowered
