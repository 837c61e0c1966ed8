"""The GEMM without warp specialisation: Triton's own software pipeline over host-made TMA descriptors ("pipelined").

C[M, N] = A[M, K] · B[N, K]ᵀ with fp32 accumulation; all warps load, multiply and store. ``num_stages`` is the depth.
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpplan.kernels.device.early_launch import LAUNCH_OPTIONS, wait_for_previous_kernel
from warpplan.kernels.device.tile_order import banded_tile
from warpplan.kernels.gemm.space import GemmConfig

RUNTIME_INTEGERS = ["M", "N", "K", "GROUP_M", "C_ROW_STRIDE"]


@triton.jit(do_not_specialize=["c", *RUNTIME_INTEGERS])
def gemm_kernel(
    a_desc,
    b_desc,
    c,
    M,
    N,
    K,
    GROUP_M,
    C_ROW_STRIDE,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    A_BY_K: tl.constexpr,
    B_BY_K: tl.constexpr,
    TMA_STORE: tl.constexpr,
):
    """``c`` is a descriptor, or a pointer to rows of ``C_ROW_STRIDE`` elements where ``TMA_STORE`` is off. An operand
    that does not lie with K contiguous is stored [K, rows]."""
    wait_for_previous_kernel()
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=1):
        row, column = banded_tile(tile, M, N, GROUP_M, BLOCK_M, BLOCK_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in tl.range(0, K, BLOCK_K):
            a = a_desc.load([row, k]) if A_BY_K else a_desc.load([k, row]).T
            b = b_desc.load([column, k]).T if B_BY_K else b_desc.load([k, column])
            acc = tl.dot(a, b, acc)
        value = acc.to(a_desc.dtype)
        if TMA_STORE:
            c.store([row, column], value)
        else:
            rows = row + tl.arange(0, BLOCK_M)
            columns = column + tl.arange(0, BLOCK_N)
            pointers = c + rows.to(tl.int64)[:, None] * C_ROW_STRIDE + columns[None, :]
            tl.store(pointers, value, mask=(rows < M)[:, None] & (columns < N)[None, :])


def descriptor_blocks(
    config: GemmConfig, layout: str = "nt"
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """The TMA boxes of A, B and C in elements, as they lie in memory (:func:`warpplan.kernels.gemm.gluon.majors`)."""
    a, b = (config.block_m, config.block_k), (config.block_n, config.block_k)
    return a if layout[0] == "n" else a[::-1], b if layout[1] == "t" else b[::-1], (config.block_m, config.block_n)


def constants(config: GemmConfig, tma_store: bool, layout: str = "nt") -> dict[str, object]:
    """The kernel's constexprs."""
    return {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "A_BY_K": layout[0] == "n",
        "B_BY_K": layout[1] == "t",
        "TMA_STORE": tma_store,
    }


def launch_options(config: GemmConfig) -> dict[str, int]:
    return {"num_warps": config.consumer_warps, "num_stages": config.depth, **LAUNCH_OPTIONS}


def signature(
    config: GemmConfig, element: str, tma_store: bool, layout: str = "nt"
) -> tuple[dict[str, str], dict[str, object], list[str]]:
    """(types of the runtime arguments, constants, 16-byte aligned arguments) as a launch would specialise them."""
    a, b, c = (f"tensordesc<{element}{list(box)}>" for box in descriptor_blocks(config, layout))
    types = {"a_desc": a, "b_desc": b, "c": c if tma_store else f"*{element}"}
    return types | dict.fromkeys(RUNTIME_INTEGERS, "i32"), constants(config, tma_store, layout), []
