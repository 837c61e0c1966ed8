"""Matrix products that load through pointers: rows that wrap, masks, split-K, batches, epilogues, fp8 and int8."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from corpus_entry import AFFINE, Problem, Tensor, Tensors, cdiv, entry, output, strides

from corpus.products import (
    CHOICES,
    CUBE,
    USUAL,
    Sizes,
    addresses,
    cublas,
    flops,
    operands,
    product,
    tile_grid,
    tile_in_group,
    tiles,
)  # fmt: skip

FAMILY = "gemm"


@triton.autotune(configs=tiles(*USUAL, GROUP_M=8), key=["M", "N", "K"])
@triton.jit
def wrapped_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    pid_m, pid_n = tile_in_group(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    columns = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    depth = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (rows[:, None] * stride_am + depth[None, :] * stride_ak)
    b_ptrs = b_ptr + (depth[:, None] * stride_bk + columns[None, :] * stride_bn)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=depth[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=depth[:, None] < K - k * BLOCK_K, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if ACTIVATION == "leaky_relu":
        acc = tl.where(acc >= 0, acc, 0.01 * acc)
    out_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    out_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * out_m[:, None] + stride_cn * out_n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(out_m[:, None] < M) & (out_n[None, :] < N))


@entry(wrapped_kernel, AFFINE, CUBE, family=FAMILY, choices=CHOICES, dtypes=("float16", "bfloat16"),
       padded=("a", "b", "c"))  # fmt: skip
def gemm_wrapped_rows(s: Sizes, dtype: str) -> Problem:
    return Problem(
        operands(s, dtype), {**addresses(), **s}, tile_grid(s), ("c",),
        lambda t: (x := product(t)).clamp(min=0) + 0.01 * x.clamp(max=0),
        {"ACTIVATION": "leaky_relu"}, flops(s), {"cublas": cublas},
    )  # fmt: skip


@triton.autotune(configs=tiles(*USUAL), key=["M", "N", "K"])
@triton.jit
def masked_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Masks on every side, addresses computed from the loop's counter."""
    pid = tl.program_id(0)
    across = tl.cdiv(N, BLOCK_N)
    rows = pid // across * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid % across * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        depth = start + tl.arange(0, BLOCK_K)
        a = tl.load(
            a_ptr + rows[:, None] * stride_am + depth[None, :] * stride_ak,
            mask=(rows[:, None] < M) & (depth[None, :] < K), other=0.0,
        )  # fmt: skip
        b = tl.load(
            b_ptr + depth[:, None] * stride_bk + columns[None, :] * stride_bn,
            mask=(depth[:, None] < K) & (columns[None, :] < N), other=0.0,
        )  # fmt: skip
        acc += tl.dot(a, b)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn, acc.to(a_ptr.dtype.element_ty), inside)


@entry(masked_kernel, AFFINE, CUBE, family=FAMILY, choices=CHOICES, dtypes=("bfloat16", "float16"),
       padded=("a", "b", "c"))  # fmt: skip
def gemm_masked(s: Sizes, dtype: str) -> Problem:
    return Problem(
        operands(s, dtype), {**addresses(), **s}, tile_grid(s), ("c",), product, {}, flops(s), {"cublas": cublas}
    )


@triton.autotune(
    configs=[
        triton.Config({**c.kwargs, "SPLIT_K": split}, num_stages=c.num_stages, num_warps=c.num_warps)
        for c in tiles((128, 128, 32, 4, 4), (64, 128, 64, 4, 4), (128, 256, 64, 3, 8))
        for split in (1, 4, 8)
    ],
    key=["M", "N", "K"], reset_to_zero=["c_ptr"],
)  # fmt: skip
@triton.heuristics({"EVEN_K": lambda args: args["K"] % (args["BLOCK_K"] * args["SPLIT_K"]) == 0})
@triton.jit
def atomic_split_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """K split over programs that add to C; no mask where K is a multiple."""
    pid_m, pid_n = tile_in_group(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, 8)
    part = tl.program_id(1)
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ram = tl.max_contiguous(tl.multiple_of(rm % M, BLOCK_M), BLOCK_M)
    rbn = tl.max_contiguous(tl.multiple_of(rn % N, BLOCK_N), BLOCK_N)
    rk = part * BLOCK_K + tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (ram[:, None] * stride_am + rk[None, :] * stride_ak)
    b_ptrs = b_ptr + (rk[:, None] * stride_bk + rbn[None, :] * stride_bn)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K * SPLIT_K)):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            left = K - k * (BLOCK_K * SPLIT_K)
            a = tl.load(a_ptrs, mask=rk[None, :] < left, other=0.0)
            b = tl.load(b_ptrs, mask=rk[:, None] < left, other=0.0)
        acc += tl.dot(a, b)
        a_ptrs += BLOCK_K * SPLIT_K * stride_ak
        b_ptrs += BLOCK_K * SPLIT_K * stride_bk
    c_ptrs = c_ptr + (rm[:, None] * stride_cm + rn[None, :] * stride_cn)
    inside = (rm < M)[:, None] & (rn < N)[None, :]
    if SPLIT_K == 1:
        tl.store(c_ptrs, acc, mask=inside)
    else:
        tl.atomic_add(c_ptrs, acc, mask=inside, sem="relaxed")


@entry(atomic_split_kernel, AFFINE, {"M": 256, "N": 4096, "K": 16384}, family=FAMILY, choices=CHOICES,
       padded=("a", "b", "c"))  # fmt: skip
def gemm_split_k_atomic(s: Sizes, dtype: str) -> Problem:
    tensors = {**operands(s, dtype), "c": Tensor((s["M"], s["N"]), "float32", "zero")}
    return Problem(
        tensors, {**addresses(), **s},
        lambda c: (cdiv(s["M"], c["BLOCK_M"]) * cdiv(s["N"], c["BLOCK_N"]), c["SPLIT_K"]),
        ("c",), product, {}, flops(s),
    )  # fmt: skip


@triton.autotune(configs=tiles((64, 128, 64, 4, 4), (128, 128, 64, 3, 8), (32, 128, 128, 4, 4)), key=["M", "N", "K"])
@triton.jit
def partial_sums_kernel(
    a_ptr, b_ptr, part_ptr, M, N, K, stride_am, stride_bn, stride_ps, stride_pm, PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """K split into PARTS contiguous spans, each to a workspace of its own; both operands with rows of K."""
    pid = tl.program_id(0)
    part = tl.program_id(1)
    across = tl.cdiv(N, BLOCK_N)
    rm = pid // across * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid % across * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    span = tl.cdiv(tl.cdiv(K, 128), PARTS) * 128
    low = part * span
    high = min(K, low + span)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(low, high, BLOCK_K):
        a = tl.load(a_ptr + rm[:, None] * stride_am + (k + rk)[None, :],
                    mask=(rm[:, None] < M) & ((k + rk)[None, :] < high), other=0.0)  # fmt: skip
        b = tl.load(b_ptr + rn[:, None] * stride_bn + (k + rk)[None, :],
                    mask=(rn[:, None] < N) & ((k + rk)[None, :] < high), other=0.0)  # fmt: skip
        acc = tl.dot(a, tl.trans(b), acc)
    p_ptrs = part_ptr + part * stride_ps + rm[:, None] * stride_pm + rn[None, :]
    tl.store(p_ptrs, acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@entry(partial_sums_kernel, AFFINE, {"M": 128, "N": 4096, "K": 16384}, family=FAMILY, choices=CHOICES)
def gemm_split_k_workspace(s: Sizes, dtype: str) -> Problem:
    parts = 4
    tensors = {**operands(s, dtype, transposed=True), "part": output(parts, s["M"], s["N"], dtype="float32")}
    del tensors["c"]

    def reference(t: Tensors) -> Any:
        import torch

        span = cdiv(cdiv(s["K"], 128), parts) * 128
        spans = [slice(part * span, min(s["K"], (part + 1) * span)) for part in range(parts)]
        return torch.stack([t["a"][:, k].float() @ t["b"][:, k].float().T for k in spans])

    return Problem(
        tensors,
        {"a_ptr": "a", "b_ptr": "b", "part_ptr": "part", **s, **strides("part", "stride_p", "sm"),
         "stride_am": s["K"], "stride_bn": s["K"]},
        tile_grid(s, parts), ("part",), reference, {"PARTS": parts}, flops(s),
    )  # fmt: skip


@triton.autotune(configs=tiles((128, 128, 64, 3, 8), (64, 64, 64, 4, 4), (128, 64, 32, 4, 4)), key=["M", "N", "K"])
@triton.jit
def batched_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb,
    stride_cm, stride_cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + batch * stride_ab + rows[:, None] * stride_am + depth[None, :] * stride_ak
    b_ptrs = b_ptr + batch * stride_bb + depth[:, None] * stride_bk + columns[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        left = K - k * BLOCK_K
        a = tl.load(a_ptrs, mask=(rows[:, None] < M) & (depth[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=(depth[:, None] < left) & (columns[None, :] < N), other=0.0)
        acc += tl.dot(a, b)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    c_ptrs = c_ptr + batch * stride_cb + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (columns[None, :] < N))


@entry(batched_kernel, AFFINE, {"B": 16, "M": 1024, "N": 1024, "K": 1024}, family=FAMILY,
       choices={**CHOICES, "B": (1, 3)})  # fmt: skip
def gemm_batched(s: Sizes, dtype: str) -> Problem:
    b, m, n, k = s["B"], s["M"], s["N"], s["K"]
    return Problem(
        {"a": Tensor((b, m, k), dtype), "b": Tensor((b, k, n), dtype), "c": output(b, m, n, dtype=dtype)},
        {"a_ptr": "a", "b_ptr": "b", "c_ptr": "c", "M": m, "N": n, "K": k, **strides("a", "stride_a", "bmk"),
         **strides("b", "stride_b", "bkn"), **strides("c", "stride_c", "bmn")},
        lambda c: (cdiv(m, c["BLOCK_M"]), cdiv(n, c["BLOCK_N"]), b), ("c",), product, {}, b * flops(s),
        {"cublas": lambda t: lambda: t["a"].bmm(t["b"])},
    )  # fmt: skip


@triton.jit
def gelu_tanh(x):
    return 0.5 * x * (1.0 + (2.0 / (1.0 + tl.exp(-1.5957691216 * (x + 0.044715 * x * x * x))) - 1.0))


@triton.autotune(configs=tiles((128, 256, 64, 3, 8), (128, 128, 64, 4, 8), (128, 64, 64, 4, 4), GROUP_M=8),
                 key=["M", "N", "K"])  # fmt: skip
@triton.jit
def linear_bias_gelu_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, kept_ptr, M, N, K, stride_xm, stride_wn, stride_ym, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """A linear layer with its weight as torch keeps it; what the activation reads is kept for the backward pass."""
    pid_m, pid_n = tile_in_group(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + (rows % M)[:, None] * stride_xm + depth[None, :]
    w_ptrs = w_ptr + (columns % N)[None, :] * stride_wn + depth[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(K, 0, -BLOCK_K):
        x = tl.load(x_ptrs, mask=depth[None, :] < k, other=0.0)
        w = tl.load(w_ptrs, mask=depth[:, None] < k, other=0.0)
        acc += tl.dot(x, w)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K
    bias = tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    acc += bias[None, :]
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    at = rows[:, None] * stride_ym + columns[None, :]
    if KEEP:
        tl.store(kept_ptr + at, acc.to(kept_ptr.dtype.element_ty), mask=inside)
    tl.store(y_ptr + at, gelu_tanh(acc).to(y_ptr.dtype.element_ty), mask=inside)


@entry(linear_bias_gelu_kernel, AFFINE, {"M": 4096, "N": 11008, "K": 4096}, family=FAMILY, choices=CHOICES,
       dtypes=("bfloat16", "float16"))  # fmt: skip
def linear_bias_gelu(s: Sizes, dtype: str) -> Problem:
    m, n, k = s["M"], s["N"], s["K"]

    def reference(t: Tensors) -> Any:
        import torch

        before = t["x"].float() @ t["w"].float().T + t["bias"].float()
        return torch.nn.functional.gelu(before, approximate="tanh"), before

    def cublas_gelu(t: Tensors) -> Any:
        import torch

        return lambda: torch._addmm_activation(t["bias"], t["x"], t["w"].T, use_gelu=True)

    return Problem(
        {"x": Tensor((m, k), dtype), "w": Tensor((n, k), dtype, scale=0.05), "bias": Tensor((n,), dtype),
         "y": output(m, n, dtype=dtype), "kept": output(m, n, dtype=dtype)},
        {"x_ptr": "x", "w_ptr": "w", "bias_ptr": "bias", "y_ptr": "y", "kept_ptr": "kept", "M": m, "N": n, "K": k,
         "stride_xm": k, "stride_wn": k, "stride_ym": n},
        tile_grid(s), ("y", "kept"), reference, {"KEEP": True}, flops(s), {"cublas": cublas_gelu},
    )  # fmt: skip


@triton.autotune(configs=tiles((128, 128, 64, 4, 8), (128, 256, 128, 3, 8), (64, 128, 128, 4, 4), GROUP_M=8),
                 key=["M", "N", "K"])  # fmt: skip
@triton.jit
def int8_kernel(
    a_ptr, b_ptr, row_scale_ptr, column_scale_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """int8 by int8 in int32, scaled by row and column at the end."""
    pid_m, pid_n = tile_in_group(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (rows % M)[:, None] * stride_am + depth[None, :]
    b_ptrs = b_ptr + (columns % N)[None, :] * stride_bn + depth[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=depth[None, :] < K - k * BLOCK_K, other=0)
        b = tl.load(b_ptrs, mask=depth[:, None] < K - k * BLOCK_K, other=0)
        acc = tl.dot(a, b, acc, out_dtype=tl.int32)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K
    row_scale = tl.load(row_scale_ptr + rows, mask=rows < M, other=0.0)
    column_scale = tl.load(column_scale_ptr + columns, mask=columns < N, other=0.0)
    c = acc.to(tl.float32) * row_scale[:, None] * column_scale[None, :]
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_ptr + rows[:, None] * stride_cm + columns[None, :], c.to(c_ptr.dtype.element_ty), mask=inside)


def scaled_operands(s: Sizes, dtype: str) -> dict[str, Tensor]:
    """A [M, K] and B [N, K] of 8 bits with a scale for each row, C in bf16."""
    whole = {"fill": "integers", "low": -8, "high": 8} if dtype == "int8" else {}
    return {
        "a": Tensor((s["M"], s["K"]), dtype, **whole), "b": Tensor((s["N"], s["K"]), dtype, **whole),
        "row_scale": Tensor((s["M"],), "float32", "uniform"), "column_scale": Tensor((s["N"],), "float32", "uniform"),
        "c": output(s["M"], s["N"]),
    }  # fmt: skip


def scaled_product(t: Tensors) -> Any:
    return (t["a"].float() @ t["b"].float().T) * t["row_scale"][:, None] * t["column_scale"]


@entry(int8_kernel, AFFINE, CUBE, family=FAMILY, choices=CHOICES, dtypes=("int8",))
def gemm_int8(s: Sizes, dtype: str) -> Problem:
    return Problem(
        scaled_operands(s, dtype),
        {"a_ptr": "a", "b_ptr": "b", "row_scale_ptr": "row_scale", "column_scale_ptr": "column_scale",
         "c_ptr": "c", **s,
         "stride_am": s["K"], "stride_bn": s["K"], "stride_cm": s["N"]},
        tile_grid(s), ("c",), scaled_product, {}, flops(s),
    )  # fmt: skip


@triton.jit
def persistent_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, NUM_SMS: tl.constexpr,
):  # fmt: skip
    """A program an SM walks over tiles; rows outside are clamped to the first."""
    k_tiles = tl.cdiv(K, BLOCK_K)
    depth = tl.arange(0, BLOCK_K)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N), NUM_SMS):
        pid_m, pid_n = tile_in_group(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
        ram = tl.max_contiguous(tl.multiple_of(tl.where(rows < M, rows, 0), BLOCK_M), BLOCK_M)
        rbn = tl.max_contiguous(tl.multiple_of(tl.where(columns < N, columns, 0), BLOCK_N), BLOCK_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(k_tiles):
            rk = k * BLOCK_K + depth
            a = tl.load(a_ptr + ram[:, None] * stride_am + rk[None, :] * stride_ak, rk[None, :] < K, 0.0)
            b = tl.load(b_ptr + rk[:, None] * stride_bk + rbn[None, :] * stride_bn, rk[:, None] < K, 0.0)
            acc = tl.dot(a, b, acc)
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        c_ptrs = c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn
        tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=inside)


@entry(persistent_kernel, AFFINE, CUBE, family=FAMILY, choices=CHOICES, dtypes=("float16", "bfloat16"),
       padded=("a", "b", "c"),
       configs=tiles((128, 256, 64, 3, 8), (128, 128, 64, 4, 8), (64, 128, 64, 4, 4), GROUP_M=8))  # fmt: skip
def gemm_persistent_pointers(s: Sizes, dtype: str) -> Problem:
    return Problem(
        operands(s, dtype), {**addresses(), **s},
        lambda c: (min(132, cdiv(s["M"], c["BLOCK_M"]) * cdiv(s["N"], c["BLOCK_N"])),),
        ("c",), product, {"NUM_SMS": 132}, flops(s), {"cublas": cublas},
    )  # fmt: skip


@triton.autotune(configs=tiles((128, 128, 64, 3, 8), (64, 128, 64, 3, 4), (64, 64, 64, 4, 4)), key=["M", "N", "K"])
@triton.jit
def gated_kernel(
    x_ptr, gate_ptr, up_ptr, y_ptr, M, N, K, stride_xm, stride_wn, stride_ym, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Both projections of a gated MLP at once."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + rows[:, None] * stride_xm + depth[None, :]
    at = columns[None, :] * stride_wn + depth[:, None]
    gate = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        left = K - k * BLOCK_K
        x = tl.load(x_ptrs, mask=(rows[:, None] < M) & (depth[None, :] < left), other=0.0)
        w = tl.load(gate_ptr + at, mask=(columns[None, :] < N) & (depth[:, None] < left), other=0.0)
        v = tl.load(up_ptr + at, mask=(columns[None, :] < N) & (depth[:, None] < left), other=0.0)
        gate = tl.dot(x, w, gate)
        up = tl.dot(x, v, up)
        x_ptrs += BLOCK_K
        at += BLOCK_K
    y = gate * tl.sigmoid(gate) * up
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(y_ptr + rows[:, None] * stride_ym + columns[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)


@entry(gated_kernel, AFFINE, {"M": 4096, "N": 5504, "K": 4096}, family=FAMILY, choices=CHOICES)
def gated_linear_unit(s: Sizes, dtype: str) -> Problem:
    m, n, k = s["M"], s["N"], s["K"]

    def reference(t: Tensors) -> Any:
        gate, up = (t["x"].float() @ t[name].float().T for name in ("gate", "up"))
        return gate * gate.sigmoid() * up

    return Problem(
        {"x": Tensor((m, k), dtype), "gate": Tensor((n, k), dtype, scale=0.05), "up": Tensor((n, k), dtype, scale=0.05),
         "y": output(m, n, dtype=dtype)},
        {"x_ptr": "x", "gate_ptr": "gate", "up_ptr": "up", "y_ptr": "y", "M": m, "N": n, "K": k, "stride_xm": k,
         "stride_wn": k, "stride_ym": n},
        lambda c: (cdiv(m, c["BLOCK_M"]), cdiv(n, c["BLOCK_N"])), ("y",), reference, {}, 2 * flops(s),
    )  # fmt: skip
