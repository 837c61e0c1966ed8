"""Products with work before, between or behind them: gated MLPs in one kernel, norms in front of a GEMM, low-rank
adapters, complex numbers, and a Fourier transform by two products."""

from __future__ import annotations

from random import Random

from loop_costs import STATISTIC, STATISTIC_SFU, measured, together
from varied_loop import VariedLoop

from warpplan.planner.values.dependence_graph import Architecture, DependenceGraph


def gated_mlp(architecture: Architecture, draw: Random) -> DependenceGraph:
    """One iteration is a block of hidden columns: both projections of the resident rows, the gate, and the product
    with the block's rows of the last weight, which adds to an accumulator."""
    loop = VariedLoop(architecture, draw)
    hidden, d, clones = draw.choice(((64, 64, 1), (64, 128, 1), (64, 128, 2), (32, 128, 2)) if loop.hopper
                                    else ((64, 64, 1), (64, 128, 1), (128, 64, 1), (64, 64, 2)))  # fmt: skip
    weights = {side: loop.fill(f"load_w.{side}", hidden * d * 2) for side in ("gate", "up", "down")}
    for i in range(clones):
        size = loop.rows * hidden
        gate = loop.fetched(f"mma.gate{i}", loop.rows, hidden, d, weights["gate"])
        up = loop.fetched(f"mma.up{i}", loop.rows, hidden, d, weights["up"])
        curve = loop.exponential(f"exp{i}", size, gate)
        value = loop.passes(f"gated{i}", size, 3, gate, up, curve)
        packed = loop.fed(f"convert{i}", size, value)
        loop.product(f"mma.down{i}", loop.rows, d, hidden, packed, weights["down"], a="register", resident=True)
        loop.accumulate(f"mma.down{i}")
    name = f"gated-mlp hidden{hidden} d{d} x{clones}"
    return loop.finish(name, 3 + clones, clones, 512 - clones * d)


def normed_gemm(architecture: Architecture, draw: Random) -> DependenceGraph:
    """A row's scale and a column's weight go into A on its way to the product, in registers (``direct``) or
    through them and shared memory; with ``squares`` the sum of squares of the rows is gathered beside it."""
    loop = VariedLoop(architecture, draw)
    k = draw.choice((64, 128))
    n, clones = draw.choice(((128, 1), (128, 2), (256, 1), (64, 3)) if loop.hopper else ((128, 1), (64, 2), (256, 1)))
    squares, direct = draw.random() < 0.5, loop.hopper and draw.random() < 0.5
    b = loop.fill("load_b", n * k * 2)
    weight = loop.row("load_weight", 2 * k)
    for i in range(clones):
        size = loop.rows * k
        tile = loop.read(f"read_a{i}", size, loop.fill(f"load_a{i}", size * 2))
        columns = loop.read(f"read_weight{i}", 4 * k, weight)
        scaled = loop.passes(f"scale{i}", size, 2, tile, columns)
        if squares:
            loop.carry(loop.passes(f"squares{i}", size, 2, tile))
        if direct:
            operand, source = loop.fed(f"convert{i}", size, scaled), "register"
        else:
            operand, source = loop.keep(f"keep{i}", size, scaled), "shared"
        loop.product(f"mma{i}", loop.rows, n, k, operand, b, a=source, resident=True)
        loop.accumulate(f"mma{i}")
    name = f"normed-gemm n{n} k{k} x{clones}{' squares' if squares else ''}"
    return loop.finish(name, 2 + clones, clones, 512 - clones * n)


def low_rank(architecture: Architecture, draw: Random) -> DependenceGraph:
    """A product and its low-rank adapter over the same rows; with ``tile`` one iteration is a whole tile, whose
    adapter is added, through registers, in an epilogue that stores it."""
    loop = VariedLoop(architecture, draw)
    rank, k, tile = draw.choice((16, 32, 64)), 64, draw.random() < 0.5
    n, clones = draw.choice(((128, 1), (128, 2), (192, 1)) if loop.hopper else ((128, 1), (64, 2)))
    blocks = draw.choice((1, 2)) if tile else 1
    weights = [loop.fill(f"load_w.{'ab'[j]}", n * k * 2) for j in range(blocks)]
    adapters = [loop.fill(f"load_adapter.{'ab'[j]}", rank * k * 2) for j in range(blocks)]
    for i in range(clones):
        mains, smalls = ([f"{kind}.{'ab'[j]}{i}" for j in range(blocks)] for kind in ("mma", "small"))
        for j in range(blocks):
            x = loop.fill(f"load_x.{'ab'[j]}{i}", loop.rows * k * 2)
            loop.product(mains[j], loop.rows, n, k, x, weights[j], resident=not tile or j > 0)
            loop.product(smalls[j], loop.rows, rank, k, x, adapters[j], resident=not tile or j > 0)
        loop.accumulate(*mains, carried=not tile)
        loop.accumulate(*smalls, carried=not tile)
        if not tile:
            continue
        size = loop.rows * n
        low, value = smalls[-1], mains[-1]
        if not loop.hopper:
            low, value = loop.fetch(f"low{i}", loop.rows * rank, smalls[0]), loop.fetch(f"acc{i}", size, mains[0])
            loop.order(smalls[-1], low)
            loop.order(mains[-1], value)
        packed = loop.keep(f"keep{i}", loop.rows * rank, low)
        expanded = loop.fetched(f"expand{i}", loop.rows, n, rank, packed, loop.fill(f"load_b{i}", rank * n * 2))
        loop.put(f"y{i}", size, loop.passes(f"add{i}", size, 1, value, expanded))
    name = f"low-rank {'tile' if tile else 'loop'} r{rank} n{n} k{k * blocks} x{clones}"
    return loop.finish(name, 3 + clones, clones, 512 if tile else 512 - clones * (n + rank))


def complex_gemm(architecture: Architecture, draw: Random) -> DependenceGraph:
    """Real and imaginary parts apart: four products into two accumulators, or three of sums (Gauss), whose sums are
    made in registers first."""
    loop = VariedLoop(architecture, draw)
    k, gauss = draw.choice((32, 64)), draw.random() < 0.5
    n, clones = draw.choice(((64, 1), (128, 1), (64, 2)))
    b = {part: loop.fill(f"load_b.{part}", n * k * 2) for part in ("real", "imaginary")}
    if gauss:
        b["sum"] = loop.fill("load_b.sum", n * k * 2)
    for i in range(clones):
        size = loop.rows * k
        a = {part: loop.fill(f"load_a.{part}{i}", size * 2) for part in ("real", "imaginary")}
        if gauss:
            parts = [loop.read(f"read.{part}{i}", size, a[part]) for part in ("real", "imaginary")]
            a["sum"] = loop.keep(f"keep{i}", size, loop.passes(f"add{i}", size, 1, *parts, half=True))
            for part in ("real", "imaginary", "sum"):
                loop.product(f"mma.{part}{i}", loop.rows, n, k, a[part], b[part], resident=True)
                loop.accumulate(f"mma.{part}{i}")
            continue
        for pairs in (("rr", "ii"), ("ri", "ir")):
            names = [f"mma.{pair}{i}" for pair in pairs]
            for name, pair in zip(names, pairs, strict=True):
                one, other = ("imaginary" if letter == "i" else "real" for letter in pair)
                loop.product(name, loop.rows, n, k, a[one], b[other], resident=True)
            loop.accumulate(*names)
    name = f"complex-gemm{' gauss' if gauss else ''} n{n} k{k} x{clones}"
    return loop.finish(name, 2 + clones, clones, 512 - clones * n * (3 if gauss else 2))


def fourier(architecture: Architecture, draw: Random) -> DependenceGraph:
    """A tile by a resident matrix, twiddle factors (or their sines and cosines computed) in registers, the second
    product, and the store."""
    loop = VariedLoop(architecture, draw)
    n, clones = draw.choice(((64, 1), (128, 1), (64, 2), (128, 2)) if loop.hopper else ((64, 1), (128, 1), (64, 2)))
    computed, normed = draw.random() < 0.5, draw.random() < 0.5
    for i in range(clones):
        size = loop.rows * n
        value = loop.fetched(f"mma.first{i}", loop.rows, n, 64, loop.fill(f"load_x{i}", loop.rows * 64 * 2))
        if computed:
            curves = together(measured("exp2", size), STATISTIC_SFU)
            factors = loop.tile(f"twiddle{i}", "SFU", curves, registers=size // 128)
        else:
            factors = loop.read(f"read_twiddle{i}", size, loop.fill(f"load_twiddle{i}", size * 2))
        turned = loop.passes(f"turn{i}", size, 3, value, factors)
        kept = loop.keep(f"keep{i}", size, turned)
        spectrum = loop.fetched(f"mma.second{i}", loop.rows, n, n, kept)
        if normed:
            scale = loop.tile(f"norm{i}", "ALU", STATISTIC, registers=1)
            spectrum = loop.passes(f"scale{i}", size, 1, spectrum, scale)
        loop.put(f"y{i}", size, spectrum)
    name = f"fourier n{n}{' computed' if computed else ''} x{clones}"
    return loop.finish(name, 2 + clones, clones)
