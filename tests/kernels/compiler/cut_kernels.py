"""Kernels at the cut for tests of what is read from them, and where their source lines are."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from zoo import ZOO, source

from warpplan.kernels.compiler import pipeline

HOPPER = GPUTarget("cuda", 90, 32)


@triton.jit
def matmul(a, b, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(0) * BM
    column = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        x = a.load([row, k * BK])
        y = b.load([column, k * BK])
        acc = tl.dot(x, y.T, acc)
    rows = row + tl.arange(0, BM)
    columns = column + tl.arange(0, BN)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc.to(tl.bfloat16))


@triton.jit
def weights(s, limit):
    return tl.exp2(s - limit[:, None])


@triton.jit
def attention(q, k, v, o, L, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    start = tl.program_id(0) * BM
    limit = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    query = q.load([start, 0])
    for n in range(0, L, BN):
        key = k.load([n, 0])
        s = tl.dot(query, key.T) * scale
        new = tl.maximum(limit, tl.max(s, 1))
        p = weights(s, new)
        alpha = tl.exp2(limit - new)
        total = total * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        value = v.load([n, 0])
        acc = tl.dot(p.to(tl.bfloat16), value, acc)
        limit = new
    o.store([start, 0], (acc / total[:, None]).to(tl.bfloat16))


@triton.jit
def chosen_blocks(a, b, c, index_ptr, count, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Block-sparse: which block of K comes next is loaded, and some are skipped."""
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(count):
        k = tl.load(index_ptr + i)
        if k >= 0:
            acc = tl.dot(a.load([0, k * BK]), b.load([0, k * BK]).T, acc)
    c.store([0, 0], acc.to(tl.bfloat16))


@triton.jit
def chased(a, b, c, count, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The next address is what the last product says: no producer can run ahead of that."""
    acc = tl.zeros((BM, BN), tl.float32)
    at = 0
    for _ in range(count):
        acc = tl.dot(a.load([0, at]), b.load([0, at]).T, acc)
        at = tl.max(tl.max(acc, 1), 0).to(tl.int32)
    c.store([0, 0], acc.to(tl.bfloat16))


@triton.jit
def in_place(x, y_ptr, N, BM: tl.constexpr, BN: tl.constexpr):
    """A store and a load of one array in each iteration."""
    rows = tl.arange(0, BM)[:, None] * N
    for n in range(0, 1024, BN):
        tile = x.load([0, n]).to(tl.float32)
        at = y_ptr + rows + n + tl.arange(0, BN)[None, :]
        tl.store(at, tl.load(at) + tile)


@triton.jit
def from_the_diagonal(q, k, o, L, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A tile loaded once, and a loop from the program's own rows on: the last programs may have no iteration."""
    start = tl.program_id(0) * BM
    resident = q.load([start, 0])
    acc = tl.zeros((BM, BK), tl.float32)
    for n in range(start, L, BN):
        tile = k.load([n, 0])
        acc = tl.dot(tl.dot(resident, tile.T).to(tl.bfloat16), tile, acc)
    o.store([start, 0], acc.to(tl.bfloat16))


TILE = {"BM": 128, "BN": 128, "BK": 64}
OPERANDS = {"a": "bf16[128,64]", "b": "bf16[128,64]"}
HEADS = dict.fromkeys("qkvo", "bf16[128,128]")
OWN: dict[str, tuple[Any, dict[str, str], dict[str, int]]] = {
    "matmul": (matmul, {"a": "bf16[128,64]", "b": "bf16[256,64]", "c_ptr": "*bf16"}, {**TILE, "BN": 256}),
    "attention": (attention, {**HEADS, "scale": "fp32"}, {"BM": 128, "BN": 128, "D": 128}),
    "chosen_blocks": (chosen_blocks, {**OPERANDS, "c": "bf16[128,128]", "index_ptr": "*i32"}, TILE),
    "chased": (chased, {**OPERANDS, "c": "bf16[128,128]"}, TILE),
    "from_the_diagonal": (from_the_diagonal, dict.fromkeys("qko", "bf16[128,64]"), TILE),
    "in_place": (in_place, {"x": "bf16[64,64]", "y_ptr": "*fp32"}, {"BM": 64, "BN": 64}),
}


def own_source(name: str) -> ASTSource:
    kernel, types, constants = OWN[name]
    names = [parameter.name for parameter in kernel.params]
    kinds = {n: f"tensordesc<{t}>" if t.endswith("]") else t for n, t in types.items()}
    signature = {n: "constexpr" if n in constants else kinds.get(n, "i32") for n in names}
    aligned = {(names.index(n),): [["tt.divisibility", 16]] for n, t in types.items() if t.startswith("*")}
    return ASTSource(kernel, signature, {(names.index(n),): v for n, v in constants.items()}, aligned)


@cache
def cut(name: str, warps: int = 4) -> str:
    """The TTGIR of one of the kernels above, or of the zoo, at the cut."""
    if name in OWN:
        return pipeline.cut(own_source(name), HOPPER, {"num_warps": warps}).text
    return pipeline.cut(source(name), HOPPER, ZOO[name].options).text


def line(name: str, text: str) -> str:
    """``file.py:12`` of the line of kernel ``name`` that contains ``text``."""
    code = Path(__file__).read_text().splitlines()
    first = OWN[name][0].fn.__code__.co_firstlineno - 1
    return f"{Path(__file__).name}:{next(i for i, row in enumerate(code[first:], first + 1) if text in row)}"
