"""Plain `tl` kernels for the compile tests, and the sources of them that need no GPU."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.compiler import ASTSource


@triton.jit
def gemm(a, b, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        x = a.load([pid_m * BM, k * BK])
        y = b.load([pid_n * BN, k * BK])
        acc = tl.dot(x, y.T, acc)
    rows = pid_m * BM + tl.arange(0, BM)
    columns = pid_n * BN + tl.arange(0, BN)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc.to(tl.bfloat16), mask=inside)


@triton.jit
def gemm_bias_relu(a, b, bias_ptr, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        x = a.load([pid_m * BM, k * BK])
        y = b.load([pid_n * BN, k * BK])
        acc = tl.dot(x, y.T, acc)
    bias = tl.load(bias_ptr + pid_n * BN + tl.arange(0, BN))
    c.store([pid_m * BM, pid_n * BN], tl.maximum(acc + bias[None, :], 0.0).to(tl.bfloat16))


@triton.jit
def attention(q_desc, k_desc, v_desc, o_ptr, L, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    base = tl.program_id(1) * L
    start = base + tl.program_id(0) * BM
    q = q_desc.load([start, 0])
    highest = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in range(0, L, BN):
        k = k_desc.load([base + n, 0])
        s = tl.dot(q, k.T)
        new = tl.maximum(highest, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - new[:, None])
        alpha = tl.exp2(highest - new)
        total = total * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = v_desc.load([base + n, 0])
        acc = tl.dot(p.to(tl.bfloat16), v, acc)
        highest = new
    rows = start + tl.arange(0, BM)
    tl.store(o_ptr + rows[:, None] * D + tl.arange(0, D)[None, :], (acc / total[:, None]).to(tl.bfloat16))


@triton.jit
def one_consumer(a, b, r, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """What the end adds cannot be told apart by rows."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc * 0.5)
    acc += tl.reshape(r.load([0, 0, 0]), (BM, BN)).to(tl.float32)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * N + tl.arange(0, BN)[None, :], acc.to(tl.bfloat16))


@triton.jit
def softmax(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * columns + at, e / tl.sum(e, 0), mask=at < columns)


KERNELS = {
    "gemm": (gemm, ("a:128x64", "b:128x64", "c_ptr:*bf16"), {"BM": 128, "BN": 128, "BK": 64}),
    "gemm_bias_relu": (
        gemm_bias_relu,
        ("a:128x64", "b:128x64", "bias_ptr:*fp32", "c:128x128"),
        {"BM": 128, "BN": 128, "BK": 64},
    ),
    "attention": (
        attention,
        ("q_desc:128x64", "k_desc:128x64", "v_desc:128x64", "o_ptr:*bf16", "scale:fp32"),
        {"BM": 128, "BN": 128, "D": 64},
    ),
    "softmax": (softmax, ("x_ptr:*fp32", "y_ptr:*fp32"), {"BLOCK": 1024}),
}


def source(name: str) -> Any:
    """The ``ASTSource`` of one of ``KERNELS``: "a:128x64" is a descriptor of bf16 tiles, pointers are aligned."""
    kernel, typed, constants = KERNELS[name]
    types = dict(entry.split(":") for entry in typed)
    names = [parameter.name for parameter in kernel.params]
    signature = {n: "constexpr" if n in constants else "i32" for n in names}
    for argument, kind in types.items():
        signature[argument] = f"tensordesc<bf16[{kind.replace('x', ',')}]>" if kind[0].isdigit() else kind
    aligned = {(names.index(n),): [["tt.divisibility", 16]] for n, kind in types.items() if kind.startswith("*")}
    return ASTSource(kernel, signature, {(names.index(n),): value for n, value in constants.items()}, aligned)
