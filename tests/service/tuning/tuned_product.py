"""A matrix product as somebody writes it, and ``warpplan tune`` on it."""

from __future__ import annotations

import pytest

from warpplan.service.cli.app import main

KERNELS = """
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BM": m, "BN": 128, "BK": 64}, num_warps=4, num_stages=3) for m in (64, 128)],
                 key=["M", "N", "K"], cache_results=True)
@triton.jit
def product(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, scale, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    rows, cols, depth = row + tl.arange(0, BM), col + tl.arange(0, BN), tl.arange(0, BK)
    a_ptrs = a_ptr + rows[:, None] * stride_am + depth[None, :]
    b_ptrs = b_ptr + depth[:, None] * N + cols[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), acc)
        a_ptrs += BK
        b_ptrs += BK * N
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], (acc * scale).to(c_ptr.dtype.element_ty))
"""
ALL = ("--shapes", "M=2048 N=2048 K=1024", "--grid", "cdiv(M, BM), cdiv(N, BN)", "--signature",
       "a_ptr=*bf16[M*K], b_ptr=*bf16[K*N], c_ptr=*bf16[M*N], stride_am=K, scale=1.5")  # fmt: skip
SPACE = ("--space", "BM=64,128 BN=64,128 BK=64 num_stages=3")


def tune(capsys: pytest.CaptureFixture[str], spec: str, *words: object) -> tuple[int, str, str]:
    status = main(["tune", spec, *ALL, *map(str, words)])
    said = capsys.readouterr()
    return status, said.out, said.err
