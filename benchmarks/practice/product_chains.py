"""Loops of several products that hang together through registers: differential attention, Newton-Schulz steps, and the
backward passes of a linear layer's loss and of a gated MLP."""

from __future__ import annotations

from random import Random

from loop_costs import STATISTIC, STATISTIC_SFU, measured
from varied_loop import VariedLoop

from warpplan.planner.values.dependence_graph import Architecture, DependenceGraph


def differential_attention(architecture: Architecture, draw: Random) -> DependenceGraph:
    """Two softmaxes a head, whose weights' difference multiplies V (Ye et al. 2024, "Differential Transformer"): both
    running maxima and sums, two accumulators that are rescaled."""
    loop = VariedLoop(architecture, draw)
    d, n, clones = draw.choice(((64, 64, 1), (64, 64, 2), (64, 128, 1), (128, 64, 2)) if loop.hopper
                               else ((64, 64, 1), (64, 128, 1), (128, 64, 1)))  # fmt: skip
    mask, turned = draw.random() < 0.4, draw.random() < 0.4
    keys = {part: loop.fill(f"load_k.{part}", n * d * 2) for part in "ab"}
    v = loop.fill("load_v", n * d * 2)
    for i in range(clones):
        size = loop.rows * n
        for part, k in keys.items():
            if turned and not loop.hopper:
                tile = loop.read(f"read_k.{part}{i}", n * d // 2, k)
                k = loop.keep(f"turn.{part}{i}", n * d // 2, loop.passes(f"rotate.{part}{i}", n * d // 2, 2, tile))
            scores = loop.fetched(f"qk.{part}{i}", loop.rows, n, d, k)
            if mask:
                scores = loop.passes(f"mask.{part}{i}", size, 2, scores)
            maximum = loop.tile(f"max.{part}{i}", "ALU", measured("row_max", size), scores, registers=1)
            loop.carry(maximum)
            alpha = loop.tile(f"alpha.{part}{i}", "SFU", STATISTIC_SFU, maximum, (maximum, 1), registers=1)
            weight = loop.exponential(f"exp.{part}{i}", size, scores, maximum)
            total = loop.tile(f"sum.{part}{i}", "ALU", measured("row_sum", size), weight, alpha, registers=1)
            loop.carry(total)
            packed = loop.fed(f"convert.{part}{i}", size, weight)
            product = f"pv.{part}{i}"
            scaled = loop.rescaled(f"scale.{part}{i}", product, loop.rows * d, alpha)
            reads = (packed, v, scaled) if loop.hopper else (packed, v)
            loop.product(product, loop.rows, d, n, *reads, a="register", resident=True)
            loop.rescaled_first(scaled, product)
    name = f"differential-attention d{d} n{n} x{clones}{' mask' if mask else ''}{' rotary' if turned else ''}"
    return loop.finish(name, 3 + clones, clones, 512 - 2 * clones * d)


def newton_schulz(architecture: Architecture, draw: Random) -> DependenceGraph:
    """A step of Muon's orthogonalisation on a tile: X·Xᵀ, a polynomial of it, which goes through shared memory, and its
    product with X; one iteration is a tile of many small matrices."""
    loop = VariedLoop(architecture, draw)
    n, clones = draw.choice(((64, 1), (64, 2), (64, 3), (128, 1)) if loop.hopper else ((64, 1), (128, 1), (64, 2)))
    cubic = draw.random() < 0.5
    for i in range(clones):
        size = loop.rows * n
        x = loop.fill(f"load_x{i}", size * 2)
        gram = loop.fetched(f"mma.gram{i}", loop.rows, loop.rows, n, x)
        kept = loop.keep(f"keep_gram{i}", loop.rows * loop.rows, loop.passes(f"scale{i}", loop.rows**2, 1, gram))
        if cubic:
            square = loop.fetched(f"mma.square{i}", loop.rows, loop.rows, loop.rows, kept)
            both = loop.passes(f"add{i}", loop.rows**2, 2, square, gram)
            kept = loop.keep(f"keep_square{i}", loop.rows**2, both)
        product = loop.fetched(f"mma.out{i}", loop.rows, n, loop.rows, kept, x)
        tile = loop.read(f"read_x{i}", size, x)
        loop.put(f"y{i}", size, loop.passes(f"sum{i}", size, 1, product, tile))
    name = f"newton-schulz n{n} x{clones}{' cubic' if cubic else ''}"
    return loop.finish(name, 2 + clones, clones)


def loss_backward(architecture: Architecture, draw: Random) -> DependenceGraph:
    """One iteration is a tile of the vocabulary: logits again, their gradient, its products with W into dX and with X
    into dW, which is added to global memory by TMA."""
    loop = VariedLoop(architecture, draw)
    n, d, clones = draw.choice(((64, 64, 1), (64, 128, 1), (64, 64, 2), (128, 64, 2)) if loop.hopper
                               else ((64, 64, 1), (128, 64, 1), (64, 128, 1), (64, 64, 2)))  # fmt: skip
    capped = draw.random() < 0.4
    w = loop.fill("load_w", n * d * 2)
    for i in range(clones):
        size = loop.rows * n
        logits = loop.fetched(f"mma.logits{i}", loop.rows, n, d, w)
        statistics = loop.tile(f"statistics{i}", "ALU", STATISTIC, registers=2)
        exponent = loop.exponential(f"exp{i}", size, logits, statistics)
        gradient = loop.passes(f"gradient{i}", size, 2, exponent, statistics)
        if capped:
            gradient = loop.passes(f"cap{i}", size, 2, gradient, logits)
        packed = loop.fed(f"convert{i}", size, gradient)
        loop.product(f"mma.dx{i}", loop.rows, d, n, packed, w, a="register", resident=True)
        loop.accumulate(f"mma.dx{i}")
        kept = loop.keep(f"keep{i}", size, gradient)
        dw = loop.fetched(f"mma.dw{i}", loop.rows, d, loop.rows, kept)
        loop.put(f"dw{i}", loop.rows * d, dw, element=4)
    name = f"loss-backward n{n} d{d} x{clones}{' cap' if capped else ''}"
    return loop.finish(name, 3 + clones, clones, 512 - clones * d)


def mlp_backward(architecture: Architecture, draw: Random) -> DependenceGraph:
    """One iteration is a block of hidden columns of a gated MLP's backward pass: dY by the last weight, the gate and
    its derivatives, and two products into dX."""
    loop = VariedLoop(architecture, draw)
    hidden, d, clones = draw.choice(((64, 64, 1), (64, 128, 1), (32, 64, 2), (64, 64, 2)) if loop.hopper
                                    else ((64, 64, 1), (64, 128, 1), (32, 64, 2)))  # fmt: skip
    kept_too = draw.random() < 0.5
    weights = {side: loop.fill(f"load_w.{side}", hidden * d * 2) for side in ("gate", "up", "down")}
    for i in range(clones):
        size = loop.rows * hidden
        dh = loop.fetched(f"mma.dh{i}", loop.rows, hidden, d, weights["down"])
        gate, up = (
            loop.read(f"read.{side}{i}", size, loop.fill(f"load.{side}{i}", size * 2)) for side in ("gate", "up")
        )
        curve = loop.exponential(f"exp{i}", size, gate)
        gradients = {
            "gate": loop.passes(f"dgate{i}", size, 4, dh, gate, up, curve),
            "up": loop.passes(f"dup{i}", size, 2, dh, gate, curve),
        }
        names = []
        for side, gradient in gradients.items():
            if kept_too:
                loop.put(f"d{side}{i}", size, gradient)
            packed = loop.fed(f"convert.{side}{i}", size, gradient)
            names.append(f"mma.{side}{i}")
            loop.product(names[-1], loop.rows, d, hidden, packed, weights[side], a="register", resident=True)
        loop.accumulate(*names)
    name = f"mlp-backward hidden{hidden} d{d} x{clones}{' stored' if kept_too else ''}"
    return loop.finish(name, 3 + clones, clones, 512 - clones * d)
