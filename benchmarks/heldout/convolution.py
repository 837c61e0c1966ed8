"""Convolution as implicit GEMM: the loop over filter positions and channels of CUTLASS's
``ImplicitGemmMultistage`` (addresses and padding computed in the loop, cp.async), of its im2col TMA kernels
(``sm90_implicit_gemm_tma_warpspecialized``), of ``ImplicitGemmFpropFusion`` (batch norm and ReLU of the input before it
is multiplied) and of the weight gradient, whose sums for several filter positions share the output's gradient."""

from __future__ import annotations

from random import Random

from loop_costs import STATISTIC, TMA_ALIGNMENT, measured, pointer_access, tensor_memory
from varied_loop import VariedLoop

from warpplan.planner.values.dependence_graph import Architecture, DependenceGraph


def convolution(architecture: Architecture, draw: Random) -> DependenceGraph:
    build = draw.choice((by_pointers, normalised, weight_gradient))
    return build(VariedLoop(architecture, draw), draw)


def by_pointers(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """Each thread keeps its pixels' addresses: they advance by the filter's next position, are compared with the
    image's borders, and what lies outside is filled with zeros."""
    channels = draw.choice((32, 64))
    if loop.hopper:
        sizes = ((64, 1, 1), (128, 1, 2), (128, 2, 1), (128, 2, 2), (64, 3, 2), (64, 1, 3))
    else:
        sizes = ((128, 1, 1), (128, 2, 1), (64, 3, 1), (64, 2, 2))
    n, taps, clones = draw.choice(sizes)
    filters = {t: loop.fill(f"load_w.{t}", n * channels * 2) for t in "abc"[:taps]}
    for i in range(clones):
        products, last = [], f"offset.{'abc'[taps - 1]}{i}"
        before: str | tuple[str, int] = (last, 1)
        for t, weights in filters.items():
            before = loop.tile(f"offset.{t}{i}", "ALU", STATISTIC, before, registers=4)
            inside = loop.tile(f"border.{t}{i}", "ALU", STATISTIC, before, registers=2)
            size = loop.rows * channels * 2
            pixels = loop.tile(f"gather.{t}{i}", "LSU", pointer_access(size), before, inside, buffer_bytes=size,
                               alignment=TMA_ALIGNMENT)  # fmt: skip
            product = loop.product(f"mma.{t}{i}", loop.rows, n, channels, pixels, weights, resident=True)
            products.append(product)
        loop.accumulate(*products)
    name = f"convolution pointers n{n} c{channels} taps{taps} x{clones}"
    return loop.finish(name, 2 + clones, clones, 512 - clones * n)


def normalised(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """im2col TMA; then scale and bias of the channels, ReLU, zeros where the padding is, and from registers or tensor
    memory into the product."""
    channels = 64
    if loop.hopper:
        sizes = ((64, 1, 1), (128, 1, 2), (128, 2, 1), (128, 2, 2), (64, 3, 1), (64, 1, 3))
    else:
        sizes = ((128, 1, 1), (128, 2, 1), (64, 3, 1), (64, 1, 2), (64, 2, 2))
    n, taps, clones = draw.choice(sizes)
    relu = draw.choice((1, 2))
    filters = {t: loop.fill(f"load_w.{t}", n * channels * 2) for t in "abc"[:taps]}
    statistics = loop.row("load_statistics", channels * 8)
    for i in range(clones):
        products, size = [], loop.rows * channels
        for t, weights in filters.items():
            here = loop.read(f"read_x.{t}{i}", size, loop.fill(f"im2col.{t}{i}", size * 2))
            # Two bf16 an instruction.
            normal = loop.passes(f"normal.{t}{i}", size // 2, 1, here, statistics)
            value = loop.passes(f"relu.{t}{i}", size // 2, relu, normal)
            if not loop.hopper:
                value = loop.tile(f"store_x.{t}{i}", "LSU", tensor_memory(size, 2), value, buffer_bytes=size * 2,
                                  memory="tmem")  # fmt: skip
            product = loop.product(f"mma.{t}{i}", loop.rows, n, channels, value, weights, a="register", resident=True)
            products.append(product)
        loop.accumulate(*products)
    name = f"convolution normalised relu{relu} n{n} c{channels} taps{taps} x{clones}"
    return loop.finish(name, 2 + clones, clones, 512 - clones * n)


def weight_gradient(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """One iteration is a block of pixels: their gradient, times the input at each of some filter positions; with the
    bias's gradient, the sum over pixels."""
    pixels = draw.choice((64, 128))
    n, taps, clones = draw.choice(((64, 2, 1), (64, 3, 1), (128, 2, 1), (64, 3, 2), (64, 2, 2)) if loop.hopper
                                  else ((64, 3, 1), (128, 3, 1), (64, 2, 2), (64, 3, 2)))  # fmt: skip
    biased = draw.random() < 0.5
    inputs = {t: loop.fill(f"im2col.{t}", pixels * n * 2) for t in "abc"[:taps]}
    for i in range(clones):
        size = loop.rows * pixels
        dy = loop.fill(f"load_dy{i}", size * 2)
        for t, x in inputs.items():
            loop.accumulate(loop.product(f"dw.{t}{i}", loop.rows, n, pixels, dy, x, resident=True))
        if biased:
            here = loop.read(f"read_dy{i}", size, dy)
            loop.carry(loop.tile(f"db{i}", "ALU", measured("row_sum", size), here, registers=2))
    name = f"convolution weight-gradient{' bias' if biased else ''} n{n} pixels{pixels} taps{taps} x{clones}"
    return loop.finish(name, 2 + clones, clones, 512 - clones * taps * n)
