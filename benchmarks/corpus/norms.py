"""Layer norm, RMS norm and softmax, forward and backward: no product, and memory decides."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from corpus_entry import AFFINE, Problem, Sizes, Tensor, Tensors, cdiv, entry, output

FAMILY = "norm"
SIZES = {"M": 16384, "N": 4096}
CHOICES = {"M": (5, 64, 300), "N": (128, 1000, 3000)}
EPS = 1e-5


def warps(*counts: int, **more: int) -> list[triton.Config]:
    return [triton.Config(dict(more), num_warps=count) for count in counts]


def columns(*wanted: tuple[int, int]) -> list[triton.Config]:
    """(BLOCK, warps) each."""
    return [triton.Config({"BLOCK": n}, num_warps=w) for n, w in wanted]


def rows_grid(s: Sizes) -> Any:
    return lambda c: (s["M"],)


def block(s: Sizes) -> dict[str, int]:
    return {"BLOCK": triton.next_power_of_2(s["N"])}


@triton.autotune(configs=columns((1024, 4), (4096, 8), (2048, 8)), key=["N"])
@triton.jit
def layer_norm_kernel(x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, stride, N, eps, BLOCK: tl.constexpr):
    """Three loops over a row."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * stride + at, mask=at < N, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / N
    square = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + at, mask=at < N, other=0.0).to(tl.float32)
        x = tl.where(at < N, x - mean, 0.0)
        square += x * x
    rstd = 1 / tl.sqrt(tl.sum(square, axis=0) / N + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, N, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + at, mask=at < N, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + at, mask=at < N, other=0.0)
        b = tl.load(b_ptr + at, mask=at < N, other=0.0)
        tl.store(y_ptr + row * stride + at, ((x - mean) * rstd * w + b).to(y_ptr.dtype.element_ty), mask=at < N)


@entry(layer_norm_kernel, AFFINE, SIZES, family=FAMILY, choices=CHOICES, has_dot=False, dtypes=("bfloat16", "float16"))
def layer_norm_forward(s: Sizes, dtype: str) -> Problem:
    def reference(t: Tensors) -> Any:
        x = t["x"].float()
        mean = x.mean(1)
        rstd = (x.var(1, correction=0) + EPS).rsqrt()
        return (x - mean[:, None]) * rstd[:, None] * t["w"].float() + t["b"].float(), mean, rstd

    m, n = s["M"], s["N"]
    return Problem(
        {"x": Tensor((m, n), dtype), "w": Tensor((n,), dtype), "b": Tensor((n,), dtype), "y": output(m, n, dtype=dtype),
         "mean": output(m, dtype="float32"), "rstd": output(m, dtype="float32")},
        {**{f"{name}_ptr": name for name in ("x", "w", "b", "y", "mean", "rstd")}, "stride": n, "N": n, "eps": EPS},
        rows_grid(s), ("y", "mean", "rstd"), reference,
    )  # fmt: skip


@triton.autotune(configs=warps(4, 8, 16), key=["N"], reset_to_zero=["dw_ptr", "db_ptr"])
@triton.jit
def layer_norm_backward_kernel(
    x_ptr, w_ptr, dy_ptr, mean_ptr, rstd_ptr, dx_ptr, dw_ptr, db_ptr, stride, N, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx of a row; its part of dw and db is added in memory."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < N
    x = tl.load(x_ptr + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    rstd = tl.load(rstd_ptr + row)
    normal = tl.where(inside, (x - tl.load(mean_ptr + row)) * rstd, 0.0)
    weighted = tl.where(inside, w * dy, 0.0)
    c1 = tl.sum(normal * weighted, axis=0) / N
    c2 = tl.sum(weighted, axis=0) / N
    dx = (weighted - (normal * c1 + c2)) * rstd
    tl.store(dx_ptr + row * stride + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
    tl.atomic_add(dw_ptr + at, dy * normal, mask=inside, sem="relaxed")
    tl.atomic_add(db_ptr + at, dy, mask=inside, sem="relaxed")


@entry(layer_norm_backward_kernel, AFFINE, SIZES, family=FAMILY, choices=CHOICES, has_dot=False)
def layer_norm_backward(s: Sizes, dtype: str) -> Problem:
    def reference(t: Tensors) -> Any:
        x, dy = t["x"].float(), t["dy"].float()
        normal = (x - t["mean"][:, None]) * t["rstd"][:, None]
        weighted = dy * t["w"].float()
        inner = normal * (normal * weighted).mean(1, keepdim=True) + weighted.mean(1, keepdim=True)
        return (weighted - inner) * t["rstd"][:, None], (dy * normal).sum(0), dy.sum(0)

    m, n = s["M"], s["N"]
    return Problem(
        {"x": Tensor((m, n), dtype), "w": Tensor((n,), dtype), "dy": Tensor((m, n), dtype),
         "mean": Tensor((m,), "float32", scale=0.1), "rstd": Tensor((m,), "float32", "uniform"),
         "dx": output(m, n, dtype=dtype), "dw": Tensor((n,), "float32", "zero"), "db": Tensor((n,), "float32", "zero")},
        {**{f"{name}_ptr": name for name in ("x", "w", "dy", "mean", "rstd", "dx", "dw", "db")}, "stride": n, "N": n},
        rows_grid(s), ("dx", "dw", "db"), reference, block(s),
    )  # fmt: skip


@triton.jit
def column_sums_kernel(part_ptr, out_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Partial gradients of the weight, [M, N], summed over M: tiles in a loop, no product."""
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, M, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        inside = (rows[:, None] < M) & (at[None, :] < N)
        total += tl.load(part_ptr + rows[:, None] * N + at[None, :], mask=inside, other=0.0)
    tl.store(out_ptr + at, tl.sum(total, axis=0), mask=at < N)


@entry(column_sums_kernel, AFFINE, {"M": 256, "N": 8192}, family=FAMILY, choices=CHOICES, has_dot=False,
       configs=[triton.Config({"BLOCK_M": 32, "BLOCK_N": n}, num_warps=w) for n, w in ((128, 4), (64, 4))])  # fmt: skip
def layer_norm_weight_gradient(s: Sizes, dtype: str) -> Problem:
    return Problem(
        {"part": Tensor((s["M"], s["N"]), "float32"), "out": output(s["N"], dtype="float32")},
        {"part_ptr": "part", "out_ptr": "out", **s}, lambda c: (cdiv(s["N"], c["BLOCK_N"]),), ("out",),
        lambda t: t["part"].sum(0),
    )  # fmt: skip


@triton.autotune(configs=warps(4, 8, 16), key=["N"])
@triton.jit
def rms_norm_kernel(x_ptr, residual_ptr, w_ptr, y_ptr, sum_ptr, N, eps, BLOCK: tl.constexpr):
    """The residual is added first and kept."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < N
    x = tl.load(x_ptr + row * N + at, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(residual_ptr + row * N + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(sum_ptr + row * N + at, x.to(sum_ptr.dtype.element_ty), mask=inside)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / N + eps)
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * N + at, (x * rstd * w).to(y_ptr.dtype.element_ty), mask=inside)


@entry(rms_norm_kernel, AFFINE, SIZES, family=FAMILY, choices=CHOICES, has_dot=False, dtypes=("bfloat16", "float16"))
def rms_norm_residual(s: Sizes, dtype: str) -> Problem:
    def reference(t: Tensors) -> Any:
        x = t["x"].float() + t["residual"].float()
        return x * (x.square().mean(1, keepdim=True) + EPS).rsqrt() * t["w"].float(), x

    whole = (s["M"], s["N"])
    return Problem(
        {"x": Tensor(whole, dtype), "residual": Tensor(whole, dtype), "w": Tensor(whole[1:], dtype),
         "y": output(*whole, dtype=dtype), "sum": output(*whole, dtype=dtype)},
        {**{f"{name}_ptr": name for name in ("x", "residual", "w", "y", "sum")}, "N": s["N"], "eps": EPS},
        rows_grid(s), ("y", "sum"), reference, block(s),
    )  # fmt: skip


@triton.jit
def rms_norm_backward_kernel(
    dy_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, part_ptr, M, N, per_program, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program an SM walks over rows and keeps its part of the weight's gradient in registers."""
    pid = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < N
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(pid * per_program, min((pid + 1) * per_program, M)):
        dy = tl.load(dy_ptr + row * N + at, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + row * N + at, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        weighted = dy * w
        dx = rstd * (weighted - x * (rstd * rstd / N) * tl.sum(weighted * x, axis=0))
        dw += dy * x * rstd
        tl.store(dx_ptr + row * N + at, dx.to(dx_ptr.dtype.element_ty), mask=inside)
    tl.store(part_ptr + pid * N + at, dw, mask=inside)


@entry(rms_norm_backward_kernel, AFFINE, SIZES, family=FAMILY, choices=CHOICES, has_dot=False, configs=warps(4, 8, 16))
def rms_norm_backward(s: Sizes, dtype: str) -> Problem:
    m, n = s["M"], s["N"]
    each = cdiv(m, 132)
    programs = cdiv(m, each)

    def reference(t: Tensors) -> Any:
        import torch

        dy, x, rstd = t["dy"].float(), t["x"].float(), t["rstd"][:, None]
        weighted = dy * t["w"].float()
        dx = rstd * (weighted - x * rstd.square() * (weighted * x).mean(1, keepdim=True))
        parts = (dy * x * rstd).split(each)
        return dx, torch.stack([part.sum(0) for part in parts])

    return Problem(
        {"dy": Tensor((m, n), dtype), "x": Tensor((m, n), dtype), "w": Tensor((n,), dtype),
         "rstd": Tensor((m,), "float32", "uniform"), "dx": output(m, n, dtype=dtype),
         "part": output(programs, n, dtype="float32")},
        {**{f"{name}_ptr": name for name in ("dy", "x", "w", "rstd", "dx", "part")}, "M": m, "N": n,
         "per_program": each},
        lambda c: (programs,), ("dx", "part"), reference, block(s),
    )  # fmt: skip


@triton.autotune(configs=columns((1024, 4), (2048, 8), (4096, 8)), key=["N"])
@triton.jit
def online_softmax_kernel(x_ptr, y_ptr, stride_x, stride_y, N, BLOCK: tl.constexpr):
    """Two loops over a row that may be longer than a block."""
    row = tl.program_id(0).to(tl.int64)
    top = -float("inf")
    total = 0.0
    for start in range(0, N, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride_x + at, mask=at < N, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, axis=0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), axis=0)
        top = higher
    for start in range(0, N, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride_x + at, mask=at < N, other=-float("inf")).to(tl.float32)
        tl.store(y_ptr + row * stride_y + at, (tl.exp(x - top) / total).to(y_ptr.dtype.element_ty), mask=at < N)


@entry(online_softmax_kernel, AFFINE, {"M": 8192, "N": 16384}, family=FAMILY, choices=CHOICES, has_dot=False,
       dtypes=("bfloat16", "float32"))  # fmt: skip
def softmax_online(s: Sizes, dtype: str) -> Problem:
    whole = (s["M"], s["N"])
    return Problem(
        {"x": Tensor(whole, dtype), "y": output(*whole, dtype=dtype)},
        {"x_ptr": "x", "y_ptr": "y", "stride_x": s["N"], "stride_y": s["N"], "N": s["N"]}, rows_grid(s), ("y",),
        lambda t: t["x"].float().softmax(-1),
    )  # fmt: skip


@triton.jit
def fused_softmax_kernel(x_ptr, y_ptr, M, N, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """A whole row a step; programs walk over rows."""
    at = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0), num_stages=STAGES):
        x = tl.load(x_ptr + row * N + at, mask=at < N, other=-float("inf"))
        x = tl.exp((x - tl.max(x, axis=0)).to(tl.float32))
        tl.store(y_ptr + row * N + at, (x / tl.sum(x, axis=0)).to(y_ptr.dtype.element_ty), mask=at < N)


@entry(fused_softmax_kernel, AFFINE, {"M": 16384, "N": 2048}, family=FAMILY, choices=CHOICES, has_dot=False,
       configs=warps(8, 4, STAGES=4) + warps(8, STAGES=2))  # fmt: skip
def softmax_fused(s: Sizes, dtype: str) -> Problem:
    whole = (s["M"], s["N"])
    return Problem(
        {"x": Tensor(whole, "float32"), "y": output(*whole, dtype="float32")},
        {"x_ptr": "x", "y_ptr": "y", **s}, lambda c: (min(s["M"], 528),), ("y",),
        lambda t: t["x"].softmax(-1), block(s),
    )  # fmt: skip


@triton.autotune(configs=warps(4, 8, 16), key=["N"])
@triton.jit
def softmax_backward_kernel(y_ptr, dy_ptr, dx_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    y = tl.load(y_ptr + row * N + at, mask=at < N, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + row * N + at, mask=at < N, other=0.0).to(tl.float32)
    dx = y * (dy - tl.sum(y * dy, axis=0))
    tl.store(dx_ptr + row * N + at, dx.to(dx_ptr.dtype.element_ty), mask=at < N)


@entry(softmax_backward_kernel, AFFINE, SIZES, family=FAMILY, choices=CHOICES, has_dot=False)
def softmax_backward(s: Sizes, dtype: str) -> Problem:
    whole = (s["M"], s["N"])

    def reference(t: Tensors) -> Any:
        y, dy = t["y"].float(), t["dy"].float()
        return y * (dy - (y * dy).sum(1, keepdim=True))

    return Problem(
        {"y": Tensor(whole, dtype, "uniform", 2 / s["N"]), "dy": Tensor(whole, dtype),
         "dx": output(*whole, dtype=dtype)},
        {"y_ptr": "y", "dy_ptr": "dy", "dx_ptr": "dx", "N": s["N"]}, rows_grid(s), ("dx",), reference, block(s),
    )  # fmt: skip
