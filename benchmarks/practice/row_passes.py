"""Loops whose warps work long on tiles in registers: a linear layer's loss, an optimiser's step, attention without a
softmax."""

from __future__ import annotations

from random import Random

from loop_costs import STATISTIC, STATISTIC_SFU, measured, together
from varied_loop import VariedLoop

from warpplan.planner.values.dependence_graph import Architecture, DependenceGraph


def linear_loss(architecture: Architecture, draw: Random) -> DependenceGraph:
    """One iteration is a tile of the vocabulary, its short loop over k unrolled: the logits' running maximum and sum of
    exponentials, and the label's logit; with ``bias`` and ``cap`` before them; the rows resident or ``streamed``."""
    loop = VariedLoop(architecture, draw)
    n, blocks, clones = draw.choice(((64, 2, 1), (128, 2, 1), (64, 2, 2), (128, 1, 2)) if loop.hopper
                                    else ((64, 2, 1), (128, 2, 1), (64, 1, 2)))  # fmt: skip
    bias, cap, streamed = draw.random() < 0.5, draw.random() < 0.4, draw.random() < 0.5
    weights = [loop.fill(f"load_w.{'ab'[j]}", n * 64 * 2, source="dram") for j in range(blocks)]
    row = loop.row("load_bias", 4 * n) if bias else None
    for i in range(clones):
        size, names = loop.rows * n, [f"mma.{'ab'[j]}{i}" for j in range(blocks)]
        for j, name in enumerate(names):
            x = [loop.fill(f"load_x.{'ab'[j]}{i}", loop.rows * 64 * 2)] if streamed else []
            loop.product(name, loop.rows, n, 64, *x, weights[j], resident=j > 0)
        loop.accumulate(*names, carried=False)
        logits = names[-1]
        if not loop.hopper:
            logits = loop.fetch(f"logits{i}", size, names[0])
            loop.order(names[-1], logits)
        if row is not None:
            logits = loop.passes(f"biased{i}", size, 1, logits, loop.read(f"read_bias{i}", 2 * n, row))
        if cap:
            logits = loop.passes(f"cap{i}", size, 1, loop.exponential(f"tanh{i}", size, logits))
        maximum = loop.tile(f"max{i}", "ALU", measured("row_max", size), logits, registers=1)
        loop.carry(maximum)
        alpha = loop.tile(f"alpha{i}", "SFU", STATISTIC_SFU, maximum, (maximum, 1), registers=1)
        weight = loop.exponential(f"exp{i}", size, logits, maximum)
        loop.carry(loop.tile(f"sum{i}", "ALU", measured("row_sum", size), weight, alpha, registers=1))
        loop.carry(loop.passes(f"label{i}", size, 2, logits))
    name = f"linear-loss n{n} k{64 * blocks} x{clones}{' bias' if bias else ''}{' cap' if cap else ''}"
    return loop.finish(name, 2 + clones, clones)


def optimiser(architecture: Architecture, draw: Random) -> DependenceGraph:
    """One step of Adam on a block of parameters: four tensors in, three out; with ``norm`` the squares' sum beside."""
    loop = VariedLoop(architecture, draw)
    size, clones, norm = draw.choice((2_048, 4_096, 8_192)), draw.choice((1, 2)), draw.random() < 0.5
    for i in range(clones):
        loaded = {
            name: loop.read(f"read_{name}{i}", size, loop.fill(f"load_{name}{i}", size * 2, source="dram"))
            for name in ("p", "g", "m", "v")
        }
        if norm:
            loop.carry(loop.tile(f"norm{i}", "ALU", measured("row_sum", size), loaded["g"], registers=1))
        first = loop.passes(f"first{i}", size, 2, loaded["m"], loaded["g"])
        second = loop.passes(f"second{i}", size, 3, loaded["v"], loaded["g"])
        root = loop.exponential(f"root{i}", size, second)
        step = loop.passes(f"step{i}", size, 3, loaded["p"], first, root)
        for name, value in (("p", step), ("m", first), ("v", second)):
            loop.put(f"{name}{i}", size, value)
    name = f"optimiser {size} x{clones}{' norm' if norm else ''}"
    return loop.finish(name, 3 + clones, clones)


def sigmoid_attention(architecture: Architecture, draw: Random) -> DependenceGraph:
    """Attention whose weights are sigmoids of the scores, each on its own; with ``bias`` a tile of biases is added."""
    loop = VariedLoop(architecture, draw)
    d, n, clones = draw.choice(((64, 64, 1), (64, 128, 2), (128, 64, 1), (128, 128, 2), (64, 64, 3)) if loop.hopper
                               else ((64, 64, 1), (64, 128, 1), (128, 128, 1), (64, 64, 2), (64, 128, 2)))  # fmt: skip
    bias, staged = draw.random() < 0.5, draw.random() < 0.3
    k, v = (loop.fill(f"load_{name}", n * d * 2) for name in "kv")
    for i in range(clones):
        size = loop.rows * n
        scores = loop.fetched(f"qk{i}", loop.rows, n, d, k)
        if bias:
            tile = loop.read(f"read_bias{i}", size, loop.fill(f"load_bias{i}", size * 2))
            scores = loop.passes(f"biased{i}", size, 1, scores, tile)
        exponential = together(measured("exp2", size), STATISTIC)
        curve = loop.tile(f"exp{i}", "SFU", exponential, scores, registers=size // 128)
        weight = loop.passes(f"sigmoid{i}", size, 2, curve)
        if staged:
            packed, source = loop.keep(f"keep{i}", size, weight), "shared"
        else:
            packed, source = loop.fed(f"convert{i}", size, weight), "register"
        loop.product(f"pv{i}", loop.rows, d, n, packed, v, a=source, resident=True)
        loop.accumulate(f"pv{i}")
    name = f"sigmoid-attention d{d} n{n} x{clones}{' bias' if bias else ''}{' staged' if staged else ''}"
    return loop.finish(name, 3 + clones, clones, 512 - clones * d)
