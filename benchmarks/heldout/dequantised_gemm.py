"""GEMM with quantised weights: the loop over k of Marlin (Frantar et al. 2024), of Machete and of CUTLASS's mixed-input
kernels (``sm90_mma_tma_gmma_rs_warpspecialized_mixed_input``, examples 55 and 86). Weights of 4 or 8 bits are read into
registers, turned into bf16 and multiplied from there (Hopper) or from tensor memory (Blackwell): weights are the
product's rows, tokens its columns. The iteration's blocks of 64 are turned one after the other, so that one is
multiplied while the next is turned."""

from __future__ import annotations

from random import Random

from loop_costs import measured, tensor_memory
from varied_loop import VariedLoop

from warpplan.planner.values.dependence_graph import Architecture, DependenceGraph

STEPS = ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2), (1, 3), (2, 3))
"""Blocks of 64 an iteration, clones."""


def dequantised_gemm(architecture: Architecture, draw: Random) -> DependenceGraph:
    loop = VariedLoop(architecture, draw)
    blocks, clones = draw.choice(STEPS[: 8 if loop.hopper else 5])
    n = draw.choice((16, 32, 64, 128, 256) if clones < 3 else (16, 64, 128))
    bits = draw.choice((4, 4, 8))
    zeros = bits == 4 and blocks * clones < 8 and draw.random() < 0.4
    block = loop.rows * 64
    tokens = loop.fill("load_x", n * 64 * blocks * 2)
    for i in range(clones):
        w = loop.fill(f"load_w{i}", block * blocks * bits // 8, source="dram")
        row = loop.row(f"load_scale{i}", loop.rows * 2)
        scale = loop.tile(f"read_scale{i}", "LSU", measured("shared_load", 4_096), row, registers=1)
        if zeros:
            zero = loop.row(f"load_zero{i}", loop.rows // 2)
            scale = loop.passes(f"offset{i}", 1_024, 2, scale, zero, half=True)
        products = []
        for j in "abcd"[:blocks]:
            raw = loop.read(f"read_w.{j}{i}", block * bits // 16, w)
            if bits == 4:
                # Shift, mask and subtract, two elements an instruction (Kim et al. 2022, "Who Says Elephants
                # Can't Run: Bringing Large Scale MoE Models into Cloud Scale Production").
                wide = loop.passes(f"unpack.{j}{i}", block // 2, 3, raw)
            else:
                wide = loop.tile(f"unpack.{j}{i}", "ALU", measured("convert", block), raw, registers=block // 256)
            # Two elements an instruction, too.
            turned = loop.passes(f"scale.{j}{i}", block // 2, 1, wide, scale)
            if not loop.hopper:
                turned = loop.tile(f"store_w.{j}{i}", "LSU", tensor_memory(block, 2), turned,
                                   buffer_bytes=block * 2, memory="tmem")  # fmt: skip
            products.append(loop.product(f"mma.{j}{i}", loop.rows, n, 64, turned, tokens, a="register", resident=True))
        loop.accumulate(*products)
    name = f"dequantised-gemm w{bits}{' zeros' if zeros else ''} n{n} k{64 * blocks} x{clones}"
    return loop.finish(name, 2 + clones, clones, 512 - clones * n)
