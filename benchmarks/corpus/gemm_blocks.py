"""Matrix products that load through ``tl.make_block_ptr``: boundary checks or none, transposed, batched, fp8."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from corpus_entry import BLOCK, Problem, Tensor, Tensors, cdiv, entry, output, strides

from corpus.products import (
    CHOICES,
    CUBE,
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
LIST = ((128, 256, 64, 3, 8), (128, 128, 64, 3, 8), (128, 128, 32, 4, 4), (64, 128, 64, 4, 4), (64, 64, 32, 5, 2))


@triton.autotune(configs=tiles(*LIST, GROUP_M=8), key=["M", "N", "K"])
@triton.jit
def plain_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    pid_m, pid_n = tile_in_group(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    a_block = tl.make_block_ptr(
        base=a_ptr, shape=(M, K), strides=(stride_am, stride_ak), offsets=(pid_m * BLOCK_M, 0),
        block_shape=(BLOCK_M, BLOCK_K), order=(1, 0),
    )  # fmt: skip
    b_block = tl.make_block_ptr(
        base=b_ptr, shape=(K, N), strides=(stride_bk, stride_bn), offsets=(0, pid_n * BLOCK_N),
        block_shape=(BLOCK_K, BLOCK_N), order=(1, 0),
    )  # fmt: skip
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(0, K, BLOCK_K):
        a = tl.load(a_block, boundary_check=(0, 1), padding_option="zero")
        b = tl.load(b_block, boundary_check=(0, 1), padding_option="zero")
        acc = tl.dot(a, b, acc)
        a_block = tl.advance(a_block, (0, BLOCK_K))
        b_block = tl.advance(b_block, (BLOCK_K, 0))
    c_block = tl.make_block_ptr(
        base=c_ptr, shape=(M, N), strides=(stride_cm, stride_cn), offsets=(pid_m * BLOCK_M, pid_n * BLOCK_N),
        block_shape=(BLOCK_M, BLOCK_N), order=(1, 0),
    )  # fmt: skip
    tl.store(c_block, acc.to(c_ptr.dtype.element_ty), boundary_check=(0, 1))


@entry(plain_kernel, BLOCK, CUBE, family=FAMILY, choices=CHOICES, dtypes=("float16", "bfloat16"),
       padded=("a", "b", "c"))  # fmt: skip
def gemm_block_pointers(s: Sizes, dtype: str) -> Problem:
    return Problem(
        operands(s, dtype), {**addresses(), **s}, tile_grid(s), ("c",), product, {}, flops(s), {"cublas": cublas}
    )


@triton.autotune(configs=tiles(*LIST), key=["M", "N", "K"])
@triton.jit
def linear_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, M, N, K, stride_xm, stride_wn, stride_ym, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """x·wᵀ + bias with the weight's block transposed by its order; no boundary checks along K."""
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    x_block = tl.make_block_ptr(x_ptr, (M, K), (stride_xm, 1), (pid_m * BLOCK_M, 0), (BLOCK_M, BLOCK_K), (1, 0))
    w_block = tl.make_block_ptr(w_ptr, (K, N), (1, stride_wn), (0, pid_n * BLOCK_N), (BLOCK_K, BLOCK_N), (0, 1))
    for _ in range(tl.cdiv(K, BLOCK_K)):
        x = tl.load(x_block, boundary_check=(0,))
        w = tl.load(w_block, boundary_check=(1,))
        acc += tl.dot(x, w)
        x_block = tl.advance(x_block, (0, BLOCK_K))
        w_block = tl.advance(w_block, (BLOCK_K, 0))
    if HAS_BIAS:
        columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
        acc += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    acc = acc * tl.sigmoid(acc)
    y_block = tl.make_block_ptr(
        y_ptr, (M, N), (stride_ym, 1), (pid_m * BLOCK_M, pid_n * BLOCK_N), (BLOCK_M, BLOCK_N), (1, 0)
    )
    tl.store(y_block, acc.to(y_ptr.dtype.element_ty), boundary_check=(0, 1))


@entry(linear_kernel, BLOCK, {"M": 4096, "N": 11008, "K": 4096}, family=FAMILY, choices={**CHOICES, "K": (128, 1024)})
def linear_silu_block_pointers(s: Sizes, dtype: str) -> Problem:
    m, n, k = s["M"], s["N"], s["K"]

    def reference(t: Tensors) -> Any:
        y = t["x"].float() @ t["w"].float().T + t["bias"].float()
        return y * y.sigmoid()

    return Problem(
        {"x": Tensor((m, k), dtype), "w": Tensor((n, k), dtype, scale=0.05), "bias": Tensor((n,), dtype),
         "y": output(m, n, dtype=dtype)},
        {"x_ptr": "x", "w_ptr": "w", "bias_ptr": "bias", "y_ptr": "y", "M": m, "N": n, "K": k, "stride_xm": k,
         "stride_wn": k, "stride_ym": n},
        lambda c: (cdiv(m, c["BLOCK_M"]), cdiv(n, c["BLOCK_N"])), ("y",), reference, {"HAS_BIAS": True}, flops(s),
    )  # fmt: skip


@triton.jit
def batched_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_ab, stride_bb, stride_cb, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1)
    across = tl.cdiv(N, BLOCK_N)
    row = tl.program_id(0) // across * BLOCK_M
    column = tl.program_id(0) % across * BLOCK_N
    a_block = tl.make_block_ptr(a_ptr + batch * stride_ab, (M, K), (K, 1), (row, 0), (BLOCK_M, BLOCK_K), (1, 0))
    b_block = tl.make_block_ptr(b_ptr + batch * stride_bb, (K, N), (N, 1), (0, column), (BLOCK_K, BLOCK_N), (1, 0))
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(0, K, BLOCK_K):
        acc = tl.dot(tl.load(a_block, boundary_check=(0, 1)), tl.load(b_block, boundary_check=(0, 1)), acc)
        a_block = tl.advance(a_block, (0, BLOCK_K))
        b_block = tl.advance(b_block, (BLOCK_K, 0))
    c_block = tl.make_block_ptr(c_ptr + batch * stride_cb, (M, N), (N, 1), (row, column), (BLOCK_M, BLOCK_N), (1, 0))
    tl.store(c_block, acc.to(c_ptr.dtype.element_ty), boundary_check=(0, 1))


@entry(batched_kernel, BLOCK, {"B": 16, "M": 1024, "N": 1024, "K": 1024}, family=FAMILY,
       choices={**CHOICES, "B": (1, 3)}, configs=tiles((128, 128, 64, 3, 8), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4)),
       )  # fmt: skip
def gemm_batched_block_pointers(s: Sizes, dtype: str) -> Problem:
    b, m, n, k = s["B"], s["M"], s["N"], s["K"]
    return Problem(
        {"a": Tensor((b, m, k), dtype), "b": Tensor((b, k, n), dtype), "c": output(b, m, n, dtype=dtype)},
        {"a_ptr": "a", "b_ptr": "b", "c_ptr": "c", "M": m, "N": n, "K": k, "stride_ab": m * k, "stride_bb": k * n,
         "stride_cb": m * n},
        lambda c: (cdiv(m, c["BLOCK_M"]) * cdiv(n, c["BLOCK_N"]), b), ("c",), product, {}, b * flops(s),
    )  # fmt: skip


@triton.autotune(configs=tiles((128, 128, 128, 3, 8), (128, 256, 128, 3, 8), (64, 128, 128, 4, 4), GROUP_M=8),
                 key=["M", "N", "K"])  # fmt: skip
@triton.jit
def fp8_kernel(
    a_ptr, b_ptr, c_ptr, a_scale_ptr, b_scale_ptr, M, N, K, stride_am, stride_ak, stride_bn, stride_bk, stride_cm,
    stride_cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """fp8 rows of both operands, one scale for each tensor."""
    pid_m, pid_n = tile_in_group(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    scale = tl.load(a_scale_ptr) * tl.load(b_scale_ptr)
    a_block = tl.make_block_ptr(a_ptr, (M, K), (stride_am, stride_ak), (pid_m * BLOCK_M, 0), (BLOCK_M, BLOCK_K), (1, 0))
    b_block = tl.make_block_ptr(b_ptr, (K, N), (stride_bk, stride_bn), (0, pid_n * BLOCK_N), (BLOCK_K, BLOCK_N), (0, 1))
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_block, boundary_check=(0, 1), padding_option="zero")
        b = tl.load(b_block, boundary_check=(0, 1), padding_option="zero")
        acc = tl.dot(a, b, acc)
        a_block = tl.advance(a_block, (0, BLOCK_K))
        b_block = tl.advance(b_block, (BLOCK_K, 0))
    c_block = tl.make_block_ptr(
        c_ptr, (M, N), (stride_cm, stride_cn), (pid_m * BLOCK_M, pid_n * BLOCK_N), (BLOCK_M, BLOCK_N), (1, 0)
    )
    tl.store(c_block, (acc * scale).to(c_ptr.dtype.element_ty), boundary_check=(0, 1))


@entry(fp8_kernel, BLOCK, CUBE, family=FAMILY, choices={**CHOICES, "K": (128, 208, 1024)}, dtypes=("float8_e4m3fn",),
       padded=("c",))  # fmt: skip
def gemm_fp8_block_pointers(s: Sizes, dtype: str) -> Problem:
    tensors = {
        **operands(s, dtype, transposed=True), "c": output(s["M"], s["N"]),
        "a_scale": Tensor((1,), "float32", "uniform"), "b_scale": Tensor((1,), "float32", "uniform"),
    }  # fmt: skip
    return Problem(
        tensors, {**addresses(transposed=True), "a_scale_ptr": "a_scale", "b_scale_ptr": "b_scale", **s}, tile_grid(s),
        ("c",), lambda t: (t["a"].float() @ t["b"].float().T) * t["a_scale"] * t["b_scale"], {}, flops(s),
    )  # fmt: skip


@triton.autotune(configs=tiles((64, 128, 64, 3, 4), (128, 128, 64, 3, 8), (64, 64, 64, 4, 4)), key=["M", "N", "K"],
                 reset_to_zero=["dw_ptr"])  # fmt: skip
@triton.jit
def weight_gradient_kernel(
    dy_ptr, x_ptr, dw_ptr, M, N, K, stride_dym, stride_dyn, stride_xm, stride_xk, stride_wn, stride_wk,
    PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dyᵀ·x: the sum runs over the rows of both, split over programs that add. BLOCK_K is a block of rows."""
    pid = tl.program_id(0)
    across = tl.cdiv(K, BLOCK_N)
    row = pid // across * BLOCK_M
    column = pid % across * BLOCK_N
    span = tl.cdiv(tl.cdiv(M, PARTS), BLOCK_K) * BLOCK_K
    first = tl.program_id(1) * span
    dy_block = tl.make_block_ptr(dy_ptr, (N, M), (stride_dyn, stride_dym), (row, first), (BLOCK_M, BLOCK_K), (0, 1))
    x_block = tl.make_block_ptr(x_ptr, (M, K), (stride_xm, stride_xk), (first, column), (BLOCK_K, BLOCK_N), (1, 0))
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(first, min(M, first + span), BLOCK_K):
        dy = tl.load(dy_block, boundary_check=(0, 1))
        x = tl.load(x_block, boundary_check=(0, 1))
        acc = tl.dot(dy, x, acc)
        dy_block = tl.advance(dy_block, (0, BLOCK_K))
        x_block = tl.advance(x_block, (BLOCK_K, 0))
    rows = row + tl.arange(0, BLOCK_M)
    columns = column + tl.arange(0, BLOCK_N)
    at = dw_ptr + rows[:, None] * stride_wn + columns[None, :] * stride_wk
    tl.atomic_add(at, acc, mask=(rows[:, None] < N) & (columns[None, :] < K), sem="relaxed")


@entry(weight_gradient_kernel, BLOCK, {"M": 8192, "N": 4096, "K": 4096}, family=FAMILY, choices=CHOICES,
       padded=("dy", "x", "dw"))  # fmt: skip
def weight_gradient_block_pointers(s: Sizes, dtype: str) -> Problem:
    m, n, k = s["M"], s["N"], s["K"]
    return Problem(
        {"dy": Tensor((m, n), dtype), "x": Tensor((m, k), dtype), "dw": Tensor((n, k), "float32", "zero")},
        {"dy_ptr": "dy", "x_ptr": "x", "dw_ptr": "dw", "M": m, "N": n, "K": k, **strides("dy", "stride_dy", "mn"),
         **strides("x", "stride_x", "mk"), **strides("dw", "stride_w", "nk")},
        lambda c: (cdiv(n, c["BLOCK_M"]) * cdiv(k, c["BLOCK_N"]), 2), ("dw",),
        lambda t: t["dy"].float().T @ t["x"].float(), {"PARTS": 2}, flops(s),
    )  # fmt: skip
