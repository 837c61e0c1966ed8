"""Attention backward as people write it: rows' sums first, then dK and dV in one loop and dQ in another, or all in one
with atomic additions to dQ; by pointers, block pointers and descriptors. Tensors are [B·H, L, D]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import triton
import triton.language as tl
from corpus_entry import AFFINE, BLOCK, HOST, Argument, Box, Problem, Sizes, Tensor, Tensors, cdiv, entry, output

FAMILY = "attention backward"
SIZES = {"Z": 128, "L": 2048, "D": 64}
WIDE = {"Z": 64, "L": 4096, "D": 128}
CHOICES = {"Z": (2, 3), "L": (256, 512, 1024), "D": (64, 128)}


def blocks(*wanted: tuple[int, int, int, int]) -> list[triton.Config]:
    """(BLOCK_M, BLOCK_N, stages, warps) each."""
    return [triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_stages=s, num_warps=w) for m, n, s, w in wanted]


COLUMNS = ((32, 128, 5, 4), (64, 128, 3, 8), (64, 64, 3, 4), (128, 128, 2, 8))
ROWS = ((128, 32, 5, 4), (128, 64, 3, 8), (64, 64, 3, 4), (128, 128, 2, 8))


def gradients(t: Tensors, causal: bool) -> dict[str, Any]:
    """dq, dk and dv. The kernels' ``lse`` and ``delta`` are inputs that need not belong to a forward pass: what is
    computed is p = 2^(scores − lse), ds = p · (dp − delta)."""
    import torch

    q, k, v, do = (t[name].float() for name in ("q", "k", "v", "do"))
    scale = q.shape[-1] ** -0.5
    p = torch.exp2(q @ k.transpose(-1, -2) * scale * 1.4426950408889634 - t["lse"][..., None])
    if causal:
        p = p.tril()
    ds = p * (do @ v.transpose(-1, -2) - t["delta"][..., None]) * scale
    return {"dq": ds @ k, "dk": ds.transpose(-1, -2) @ q, "dv": p.transpose(-1, -2) @ do}


def inputs(s: Sizes, dtype: str) -> dict[str, Tensor]:
    """``lse`` is near the log2-sum of L random scores, so that probabilities are of the usual size."""
    part = Tensor((s["Z"], s["L"], s["D"]), dtype)
    row = Tensor((s["Z"], s["L"]), "float32", "uniform")
    return {
        "q": part,
        "k": part,
        "v": part,
        "do": part,
        "lse": Tensor(row.shape, "float32", "uniform", 8.0),
        "delta": row,
    }


POINTERS: dict[str, Argument] = {
    "q_ptr": "q", "k_ptr": "k", "v_ptr": "v", "do_ptr": "do", "lse_ptr": "lse", "delta_ptr": "delta",
}  # fmt: skip


def backward(
    s: Sizes, dtype: str, causal: bool, outputs: tuple[str, ...], products: int, grid: Callable[[Any], tuple[int, ...]],
    arguments: dict[str, Argument],
) -> Problem:  # fmt: skip
    shape = (s["Z"], s["L"], s["D"])
    flops = 2.0 * products * s["Z"] * s["L"] ** 2 * s["D"] * (0.5 if causal else 1.0)

    def reference(t: Tensors) -> Any:
        found = gradients(t, causal)
        return tuple(found[name] for name in outputs)

    return Problem(
        {**inputs(s, dtype), **{name: output(*shape, dtype=dtype) for name in outputs}},
        {**arguments, "scale": s["D"] ** -0.5, "L": s["L"]}, grid, outputs, reference,
        {"D": s["D"], "CAUSAL": causal}, flops,
    )  # fmt: skip


@triton.jit
def delta_kernel(o_ptr, do_ptr, delta_ptr, L, D: tl.constexpr, BLOCK_M: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    z = tl.program_id(1).to(tl.int64)
    dims = tl.arange(0, D)
    at = z * L * D + rows[:, None] * D + dims[None, :]
    o = tl.load(o_ptr + at, mask=rows[:, None] < L, other=0.0).to(tl.float32)
    do = tl.load(do_ptr + at, mask=rows[:, None] < L, other=0.0).to(tl.float32)
    tl.store(delta_ptr + z * L + rows, tl.sum(o * do, 1), mask=rows < L)


@entry(delta_kernel, AFFINE, SIZES, family=FAMILY, choices={**CHOICES, "L": (100, 513)}, has_dot=False,
       configs=[triton.Config({"BLOCK_M": m}, num_warps=w) for m, w in ((128, 4), (64, 4))])  # fmt: skip
def attention_backward_delta(s: Sizes, dtype: str) -> Problem:
    part = Tensor((s["Z"], s["L"], s["D"]), dtype)
    return Problem(
        {"o": part, "do": part, "delta": output(s["Z"], s["L"], dtype="float32")},
        {"o_ptr": "o", "do_ptr": "do", "delta_ptr": "delta", "L": s["L"]},
        lambda c: (cdiv(s["L"], c["BLOCK_M"]), s["Z"]), ("delta",),
        lambda t: (t["o"].float() * t["do"].float()).sum(-1), {"D": s["D"]},
    )  # fmt: skip


@triton.autotune(configs=blocks(*COLUMNS), key=["L", "D"])
@triton.jit
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, scale, L, D: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Keys stay, rows pass; everything is transposed."""
    z = tl.program_id(1).to(tl.int64)
    start_n = tl.program_id(0) * BLOCK_N
    keys = start_n + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, D)
    base = z * L * D
    kv_at = base + keys[:, None] * D + dims[None, :]
    k = tl.load(k_ptr + kv_at)
    v = tl.load(v_ptr + kv_at)
    dk = tl.zeros([BLOCK_N, D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, D], dtype=tl.float32)
    low = start_n // BLOCK_M * BLOCK_M if CAUSAL else 0
    rows = low + tl.arange(0, BLOCK_M)
    qt_ptrs = q_ptr + base + rows[None, :] * D + dims[:, None]
    do_ptrs = do_ptr + base + rows[:, None] * D + dims[None, :]
    for start in range(low, L, BLOCK_M):
        qt = tl.load(qt_ptrs)
        at = start + tl.arange(0, BLOCK_M)
        lse = tl.load(lse_ptr + z * L + at)
        pt = tl.math.exp2(tl.dot(k, qt) * (scale * 1.44269504) - lse[None, :])
        if CAUSAL:
            pt = tl.where(at[None, :] >= keys[:, None], pt, 0.0)
        do = tl.load(do_ptrs)
        dv += tl.dot(pt.to(do.dtype), do)
        delta = tl.load(delta_ptr + z * L + at)
        dpt = tl.dot(v, tl.trans(do))
        dst = pt * (dpt - delta[None, :])
        dk += tl.dot(dst.to(qt.dtype), tl.trans(qt))
        qt_ptrs += BLOCK_M * D
        do_ptrs += BLOCK_M * D
    tl.store(dv_ptr + kv_at, dv.to(dv_ptr.dtype.element_ty))
    tl.store(dk_ptr + kv_at, (dk * scale).to(dk_ptr.dtype.element_ty))


def column_grid(s: Sizes) -> Callable[[Any], tuple[int, ...]]:
    return lambda c: (cdiv(s["L"], c["BLOCK_N"]), s["Z"])


def row_grid(s: Sizes) -> Callable[[Any], tuple[int, ...]]:
    return lambda c: (cdiv(s["L"], c["BLOCK_M"]), s["Z"])


DKDV: dict[str, Argument] = {**POINTERS, "dk_ptr": "dk", "dv_ptr": "dv"}


@entry(dkdv_kernel, AFFINE, WIDE, family=FAMILY, choices=CHOICES, dtypes=("float16", "bfloat16"))
def attention_backward_dkdv(s: Sizes, dtype: str) -> Problem:
    return backward(s, dtype, True, ("dk", "dv"), 4, column_grid(s), DKDV)


@triton.autotune(configs=blocks(*ROWS), key=["L", "D"])
@triton.jit
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, scale, L, D: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Rows stay, keys pass; keys and values both transposed."""
    z = tl.program_id(1).to(tl.int64)
    start_m = tl.program_id(0) * BLOCK_M
    rows = start_m + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    base = z * L * D
    q_at = base + rows[:, None] * D + dims[None, :]
    q = tl.load(q_ptr + q_at)
    do = tl.load(do_ptr + q_at)
    lse = tl.load(lse_ptr + z * L + rows)[:, None]
    delta = tl.load(delta_ptr + z * L + rows)
    keys = tl.arange(0, BLOCK_N)
    kt_ptrs = k_ptr + base + keys[None, :] * D + dims[:, None]
    vt_ptrs = v_ptr + base + keys[None, :] * D + dims[:, None]
    dq = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    high = start_m + BLOCK_M if CAUSAL else L
    for start in range(0, high, BLOCK_N):
        kt = tl.load(kt_ptrs)
        vt = tl.load(vt_ptrs)
        p = tl.math.exp2(tl.dot(q, kt) * (scale * 1.44269504) - lse)
        if CAUSAL:
            p = tl.where(rows[:, None] >= (start + keys)[None, :], p, 0.0)
        dp = tl.dot(do, vt).to(tl.float32)
        ds = (p * (dp - delta[:, None])).to(kt.dtype)
        dq += tl.dot(ds, tl.trans(kt))
        kt_ptrs += BLOCK_N * D
        vt_ptrs += BLOCK_N * D
    tl.store(dq_ptr + q_at, (dq * scale).to(dq_ptr.dtype.element_ty))


@entry(dq_kernel, AFFINE, WIDE, family=FAMILY, choices=CHOICES, dtypes=("float16", "bfloat16"))
def attention_backward_dq(s: Sizes, dtype: str) -> Problem:
    return backward(s, dtype, True, ("dq",), 3, row_grid(s), {**POINTERS, "dq_ptr": "dq"})


@triton.autotune(configs=blocks((64, 128, 2, 8), (64, 64, 2, 4), (32, 128, 3, 8)), key=["L", "D"],
                 reset_to_zero=["dq_ptr"])  # fmt: skip
@triton.jit
def fused_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr, scale, L, D: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One loop for all three: dQ is added to in memory."""
    z = tl.program_id(1).to(tl.int64)
    start_n = tl.program_id(0) * BLOCK_N
    keys = start_n + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, D)
    base = z * L * D
    kv_at = base + keys[:, None] * D + dims[None, :]
    k = tl.load(k_ptr + kv_at)
    v = tl.load(v_ptr + kv_at)
    dk = tl.zeros([BLOCK_N, D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, D], dtype=tl.float32)
    low = start_n // BLOCK_M * BLOCK_M if CAUSAL else 0
    for start in range(low, L, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        at = base + rows[:, None] * D + dims[None, :]
        q = tl.load(q_ptr + at)
        do = tl.load(do_ptr + at)
        lse = tl.load(lse_ptr + z * L + rows)
        delta = tl.load(delta_ptr + z * L + rows)
        p = tl.math.exp2(tl.dot(q, tl.trans(k)) * (scale * 1.44269504) - lse[:, None])
        if CAUSAL:
            p = tl.where(rows[:, None] >= keys[None, :], p, 0.0)
        dv += tl.dot(tl.trans(p.to(do.dtype)), do)
        dp = tl.dot(do, tl.trans(v))
        ds = (p * (dp - delta[:, None]) * scale).to(q.dtype)
        dk += tl.dot(tl.trans(ds), q)
        tl.atomic_add(dq_ptr + at, tl.dot(ds, k), sem="relaxed")
    tl.store(dv_ptr + kv_at, dv.to(dv_ptr.dtype.element_ty))
    tl.store(dk_ptr + kv_at, dk.to(dk_ptr.dtype.element_ty))


@entry(fused_kernel, AFFINE, SIZES, family=FAMILY, choices=CHOICES)
def attention_backward_fused_atomic(s: Sizes, dtype: str) -> Problem:
    problem = backward(s, dtype, True, ("dq", "dk", "dv"), 5, column_grid(s), {**DKDV, "dq_ptr": "dq"})
    shape = problem.tensors["dq"].shape
    return replace(problem, tensors={**problem.tensors, "dq": Tensor(shape, "float32", "zero")})


@triton.autotune(configs=blocks((64, 128, 2, 8), (64, 64, 3, 4), (128, 64, 2, 8)), key=["L", "D"])
@triton.jit
def dkdv_block_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, scale, L, D: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    z = tl.program_id(1).to(tl.int64)
    start_n = tl.program_id(0) * BLOCK_N
    base = z * L * D
    keys = start_n + tl.arange(0, BLOCK_N)
    low = start_n // BLOCK_M * BLOCK_M if CAUSAL else 0
    k_block = tl.make_block_ptr(k_ptr + base, (L, D), (D, 1), (start_n, 0), (BLOCK_N, D), (1, 0))
    v_block = tl.make_block_ptr(v_ptr + base, (L, D), (D, 1), (start_n, 0), (BLOCK_N, D), (1, 0))
    q_block = tl.make_block_ptr(q_ptr + base, (L, D), (D, 1), (low, 0), (BLOCK_M, D), (1, 0))
    do_block = tl.make_block_ptr(do_ptr + base, (L, D), (D, 1), (low, 0), (BLOCK_M, D), (1, 0))
    k = tl.load(k_block, boundary_check=(0,))
    v = tl.load(v_block, boundary_check=(0,))
    dk = tl.zeros([BLOCK_N, D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, D], dtype=tl.float32)
    for start in range(low, L, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        q = tl.load(q_block, boundary_check=(0,))
        do = tl.load(do_block, boundary_check=(0,))
        lse = tl.load(lse_ptr + z * L + rows, mask=rows < L, other=float("inf"))
        delta = tl.load(delta_ptr + z * L + rows, mask=rows < L, other=0.0)
        pt = tl.math.exp2(tl.dot(k, tl.trans(q)) * (scale * 1.44269504) - lse[None, :])
        if CAUSAL:
            pt = tl.where(rows[None, :] >= keys[:, None], pt, 0.0)
        dv = tl.dot(pt.to(do.dtype), do, dv)
        dst = pt * (tl.dot(v, tl.trans(do)) - delta[None, :])
        dk = tl.dot(dst.to(q.dtype), q, dk)
        q_block = tl.advance(q_block, (BLOCK_M, 0))
        do_block = tl.advance(do_block, (BLOCK_M, 0))
    dk_block = tl.make_block_ptr(dk_ptr + base, (L, D), (D, 1), (start_n, 0), (BLOCK_N, D), (1, 0))
    dv_block = tl.make_block_ptr(dv_ptr + base, (L, D), (D, 1), (start_n, 0), (BLOCK_N, D), (1, 0))
    tl.store(dk_block, (dk * scale).to(dk_ptr.dtype.element_ty), boundary_check=(0,))
    tl.store(dv_block, dv.to(dv_ptr.dtype.element_ty), boundary_check=(0,))


@entry(dkdv_block_kernel, BLOCK, SIZES, family=FAMILY, choices={**CHOICES, "L": (256, 300, 1024)})
def attention_backward_block_pointers(s: Sizes, dtype: str) -> Problem:
    return backward(s, dtype, False, ("dk", "dv"), 4, column_grid(s), DKDV)


@triton.jit
def dkdv_descriptor_kernel(
    q_desc, k_desc, v_desc, do_desc, lse_ptr, delta_ptr, dk_desc, dv_desc, scale, L, D: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    z = tl.program_id(1)
    start_n = tl.program_id(0) * BLOCK_N
    keys = start_n + tl.arange(0, BLOCK_N)
    k = k_desc.load([z * L + start_n, 0])
    v = v_desc.load([z * L + start_n, 0])
    dk = tl.zeros([BLOCK_N, D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, D], dtype=tl.float32)
    low = start_n // BLOCK_M * BLOCK_M if CAUSAL else 0
    for start in range(low, L, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        q = q_desc.load([z * L + start, 0])
        lse = tl.load(lse_ptr + z * L + rows)
        pt = tl.math.exp2(tl.dot(k, q.T) * (scale * 1.44269504) - lse[None, :])
        if CAUSAL:
            pt = tl.where(rows[None, :] >= keys[:, None], pt, 0.0)
        do = do_desc.load([z * L + start, 0])
        dv = tl.dot(pt.to(do.dtype), do, dv)
        delta = tl.load(delta_ptr + z * L + rows)
        dst = pt * (tl.dot(v, do.T) - delta[None, :])
        dk = tl.dot(dst.to(q.dtype), q, dk)
    dv_desc.store([z * L + start_n, 0], dv.to(dv_desc.dtype))
    dk_desc.store([z * L + start_n, 0], (dk * scale).to(dk_desc.dtype))


@entry(dkdv_descriptor_kernel, HOST, WIDE, family=FAMILY, choices=CHOICES,
       configs=blocks((64, 128, 2, 8), (64, 64, 3, 4), (128, 128, 2, 8)))  # fmt: skip
def attention_backward_descriptors(s: Sizes, dtype: str) -> Problem:
    rows, columns = ("BLOCK_M", "D"), ("BLOCK_N", "D")
    boxes: dict[str, Argument] = {
        "q_desc": Box("q", rows), "do_desc": Box("do", rows), "k_desc": Box("k", columns), "v_desc": Box("v", columns),
        "dk_desc": Box("dk", columns), "dv_desc": Box("dv", columns), "lse_ptr": "lse", "delta_ptr": "delta",
    }  # fmt: skip
    problem = backward(s, dtype, True, ("dk", "dv"), 4, column_grid(s), boxes)
    flat = {
        name: Tensor((t.shape[0] * t.shape[1], *t.shape[2:]), t.dtype, t.fill, t.scale)
        for name, t in problem.tensors.items()
    }

    def reference(t: Tensors) -> Any:
        found = gradients({name: x.unflatten(0, (s["Z"], s["L"])) for name, x in t.items()}, True)
        return found["dk"].flatten(0, 1), found["dv"].flatten(0, 1)

    return replace(problem, tensors=flat, reference=reference)
