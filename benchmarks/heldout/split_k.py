"""Split-K: the loop over tiles of Stream-K (Osama et al. 2023; CUTLASS's ``sm90_tile_scheduler_stream_k``), where the
block that ends a tile adds the others' partial sums in fixed order (``fix-up``); of Marlin's and Triton's split-K
GEMM, where every block adds its part into fp32 in global memory (``serial``); and of the kernel that sums the parts
afterwards (cuBLAS's ``splitKreduce_kernel``, CUTLASS's ``ReduceSplitK``)."""

from __future__ import annotations

from random import Random

from loop_costs import measured, pointer_access
from varied_loop import VariedLoop

from warpplan.planner.values.dependence_graph import Architecture, DependenceGraph

LETTERS = "abcdef"


def split_k(architecture: Architecture, draw: Random) -> DependenceGraph:
    build = draw.choice((fix_up, serial, reduction))
    return build(VariedLoop(architecture, draw), draw)


def _products(loop: VariedLoop, n: int, blocks: int, clones: int) -> list[str]:
    """A tile's products over its short part of k, unrolled; per clone the name of the sum in registers."""
    b = [loop.fill(f"load_b.{j}", n * 64 * 2) for j in LETTERS[:blocks]]
    sums = []
    for i in range(clones):
        names = [f"mma.{j}{i}" for j in LETTERS[:blocks]]
        for j, product in enumerate(names):
            a = loop.fill(f"load_a.{LETTERS[j]}{i}", loop.rows * 64 * 2)
            loop.product(product, loop.rows, n, 64, a, b[j], resident=j > 0)
        loop.accumulate(*names, carried=False)
        value = names[-1]
        if not loop.hopper:
            value = loop.fetch(f"acc{i}", loop.rows * n, names[0])
            loop.order(names[-1], value)
        sums.append(value)
    return sums


def fix_up(loop: VariedLoop, draw: Random) -> DependenceGraph:
    n, blocks, parts, clones = draw.choice(
        ((64, 2, 2, 1), (128, 2, 1, 2), (64, 3, 2, 2), (128, 3, 1, 1), (64, 4, 1, 2)) if loop.hopper
        else ((64, 2, 1, 1), (64, 3, 2, 1), (64, 2, 1, 2), (128, 2, 1, 1))
    )  # fmt: skip
    biased = draw.random() < 0.5
    for i, value in enumerate(_products(loop, n, blocks, clones)):
        size = loop.rows * n
        for part in LETTERS[:parts]:
            # The other block's flag is waited for; its partial sum, fp32, comes from the L2 cache.
            flag = loop.tile(f"wait_flag.{part}{i}", "LSU", pointer_access(32), warps=1, registers=1)
            partial = loop.fill(f"load_part.{part}{i}", size * 4, flag)
            here = loop.read(f"read_part.{part}{i}", size, partial, element=4)
            value = loop.passes(f"add_part.{part}{i}", size, 1, value, here)
        if biased:
            value = loop.passes(f"bias{i}", size, 1, value, loop.row(f"load_bias{i}", n * 4))
        loop.put(f"out{i}", size, value)
    name = f"split-k fix-up{' bias' if biased else ''} n{n} k{64 * blocks} parts{parts} x{clones}"
    return loop.finish(name, 3 + clones, clones)


def serial(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """Reductions of one block's tiles leave in order: the flag that frees a tile for the next block follows them."""
    n, blocks, clones = draw.choice(
        ((64, 2, 1), (128, 3, 1), (128, 2, 2), (64, 4, 2), (64, 2, 3)) if loop.hopper
        else ((64, 2, 1), (128, 2, 1), (128, 3, 1), (64, 3, 2))
    )  # fmt: skip
    scaled = draw.random() < 0.5
    for i, value in enumerate(_products(loop, n, blocks, clones)):
        size = loop.rows * n
        if scaled:
            value = loop.passes(f"alpha{i}", size, 1, value)
        staged = loop.keep(f"stage{i}", size, value, element=4)
        added = loop.add(f"reduce{i}", "TMA", measured("tma_store", size * 4), staged)
        flag = loop.tile(f"release{i}", "LSU", pointer_access(32, store=True), warps=1)
        loop.order(added, flag)
        loop.order(flag, flag, 1)
    name = f"split-k serial{' alpha' if scaled else ''} n{n} k{64 * blocks} x{clones}"
    return loop.finish(name, 2 + clones, clones)


def reduction(loop: VariedLoop, draw: Random) -> DependenceGraph:
    """A block of the output: the parts, fp32, by pointers or by TMA, added in pairs, scaled, with bias and C."""
    size, parts, clones = draw.choice(((2_048, 4, 1), (4_096, 4, 1), (4_096, 6, 1), (2_048, 4, 2), (2_048, 6, 2)))
    tma, residual = draw.random() < 0.6, draw.random() < 0.5
    if parts * clones == 12:
        tma = residual = False
    for i in range(clones):
        values = []
        for part in LETTERS[:parts]:
            if tma:
                here = loop.read(f"read.{part}{i}", size, loop.fill(f"load.{part}{i}", size * 4), element=4)
            else:
                here = loop.tile(f"load.{part}{i}", "LSU", pointer_access(size * 4), registers=size // 128)
            values.append(here)
        while len(values) > 1:
            # a + b, c + d, then (a + b) + (c + d).
            left, right, *rest = values
            values = [*rest, loop.passes(f"add.{LETTERS[len(values) - 2]}{i}", size, 1, left, right)]
        value = loop.passes(f"scale{i}", size, 1, values[0])
        if residual:
            source = loop.tile(f"load_c{i}", "LSU", pointer_access(size * 2), registers=size // 256)
            value = loop.passes(f"beta{i}", size, 1, value, source)
        if tma:
            loop.put(f"out{i}", size, value)
        else:
            half = loop.tile(f"convert{i}", "ALU", measured("convert", size), value, registers=size // 256)
            loop.tile(f"store{i}", "LSU", pointer_access(size * 2, store=True), half)
    how = f"{'tma' if tma else 'pointers'}{' beta' if residual else ''}"
    return loop.finish(f"split-k reduction {how} {size} parts{parts} x{clones}", 2 + clones, clones)
