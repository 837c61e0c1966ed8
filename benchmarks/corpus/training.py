"""Losses over a vocabulary, fused with their projection or not, and convolutions as products."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from corpus_entry import AFFINE, GATHERED, HOST, Argument, Box, Problem, Sizes, Tensor, Tensors, cdiv, entry, output

from corpus.products import tiles

LOSS, CONVOLUTION = "loss", "convolution"
SIZES = {"T": 4096, "V": 32000, "K": 2048}
CHOICES = {"T": (64, 100, 300), "V": (512, 1000), "K": (128, 256)}
LOG = 1.4426950408889634


def projected(s: Sizes, dtype: str) -> dict[str, Tensor]:
    """Hidden states, the classifier's weight and the labels."""
    return {
        "x": Tensor((s["T"], s["K"]), dtype), "w": Tensor((s["V"], s["K"]), dtype, scale=0.05),
        "label": Tensor((s["T"],), "int64", "integers", low=0, high=s["V"]),
    }  # fmt: skip


POINTERS: dict[str, Argument] = {"x_ptr": "x", "w_ptr": "w", "label_ptr": "label"}


def projection_flops(s: Sizes) -> float:
    return 2.0 * s["T"] * s["V"] * s["K"]


@triton.autotune(configs=tiles((128, 256, 64, 3, 8), (128, 128, 64, 3, 8), (64, 128, 64, 4, 4)), key=["V", "K"])
@triton.jit
def linear_loss_kernel(
    x_ptr, w_ptr, label_ptr, lse_ptr, logit_ptr, T, V, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A program owns rows and walks over the vocabulary with a product in its inner loop; logits are never stored."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    label = tl.load(label_ptr + rows, mask=rows < T, other=-1)
    top = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    mine = tl.zeros((BLOCK_M,), dtype=tl.float32)
    depth = tl.arange(0, BLOCK_K)
    for start in range(0, V, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        x_ptrs = x_ptr + rows[:, None] * K + depth[None, :]
        w_ptrs = w_ptr + columns[None, :] * K + depth[:, None]
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            x = tl.load(x_ptrs, mask=(rows[:, None] < T) & (depth[None, :] < K - k), other=0.0)
            w = tl.load(w_ptrs, mask=(columns[None, :] < V) & (depth[:, None] < K - k), other=0.0)
            acc = tl.dot(x, w, acc)
            x_ptrs += BLOCK_K
            w_ptrs += BLOCK_K
        acc = tl.where(columns[None, :] < V, acc, float("-inf"))
        higher = tl.maximum(top, tl.max(acc, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(acc - higher[:, None]), 1)
        mine += tl.sum(tl.where(columns[None, :] == label[:, None], acc, 0.0), 1)
        top = higher
    tl.store(lse_ptr + rows, top + tl.log(total), mask=rows < T)
    tl.store(logit_ptr + rows, mine, mask=rows < T)


def log_sums(t: Tensors) -> tuple[Any, Any]:
    logits = t["x"].float() @ t["w"].float().T
    return logits.logsumexp(-1), logits.gather(1, t["label"][:, None]).squeeze(1)


@entry(linear_loss_kernel, AFFINE, SIZES, family=LOSS, choices=CHOICES)
def fused_linear_cross_entropy(s: Sizes, dtype: str) -> Problem:
    rows = {name: output(s["T"], dtype="float32") for name in ("lse", "logit")}
    return Problem(
        {**projected(s, dtype), **rows}, {**POINTERS, "lse_ptr": "lse", "logit_ptr": "logit", **s},
        lambda c: (cdiv(s["T"], c["BLOCK_M"]),), ("lse", "logit"), log_sums, {}, projection_flops(s),
    )  # fmt: skip


@triton.autotune(configs=tiles((128, 128, 64, 3, 8), (128, 256, 64, 3, 8), (64, 128, 64, 4, 4), GROUP_M=8),
                 key=["V", "K"], reset_to_zero=["total_ptr"])  # fmt: skip
@triton.jit
def vocabulary_tiles_kernel(
    x_ptr, w_ptr, label_ptr, shift_ptr, total_ptr, T, V, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """A program a tile of rows and vocabulary: its sum of exponentials is added to the row's."""
    pid = tl.program_id(0)
    rows_of = tl.cdiv(T, BLOCK_M)
    per_group = GROUP_M * tl.cdiv(V, BLOCK_N)
    first = pid // per_group * GROUP_M
    height = min(rows_of - first, GROUP_M)
    rows = (first + pid % per_group % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid % per_group // height * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + rows[:, None] * K + depth[None, :]
    w_ptrs = w_ptr + columns[None, :] * K + depth[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(tl.cdiv(K, BLOCK_K)):
        x = tl.load(x_ptrs, mask=rows[:, None] < T, other=0.0)
        w = tl.load(w_ptrs, mask=columns[None, :] < V, other=0.0)
        acc = tl.dot(x, w, acc)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K
    shift = tl.load(shift_ptr + rows, mask=rows < T, other=0.0)
    weights = tl.where(columns[None, :] < V, tl.exp(acc - shift[:, None]), 0.0)
    tl.atomic_add(total_ptr + rows, tl.sum(weights, 1), mask=rows < T, sem="relaxed")


@entry(vocabulary_tiles_kernel, AFFINE, SIZES, family=LOSS, choices=CHOICES)
def linear_log_sum_tiles(s: Sizes, dtype: str) -> Problem:
    return Problem(
        {**projected(s, dtype), "shift": Tensor((s["T"],), "float32", "uniform", 8.0),
         "total": Tensor((s["T"],), "float32", "zero")},
        {**POINTERS, "shift_ptr": "shift", "total_ptr": "total", **s},
        lambda c: (cdiv(s["T"], c["BLOCK_M"]) * cdiv(s["V"], c["BLOCK_N"]),), ("total",),
        lambda t: (t["x"].float() @ t["w"].float().T - t["shift"][:, None]).exp().sum(1), {}, projection_flops(s),
    )  # fmt: skip


@triton.jit
def loss_kernel(
    logits_ptr, label_ptr, loss_ptr, grad_ptr, stride, V, scale, smoothing, BLOCK: tl.constexpr,
):  # fmt: skip
    """Two passes over a row: the log-sum online, then the gradient."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(label_ptr + row)
    top = -float("inf")
    total = 0.0
    plain = 0.0
    for start in range(0, V, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * stride + at, mask=at < V, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher))
        plain += tl.sum(tl.where(at < V, x, 0.0))
        top = higher
    lse = top + tl.log(total)
    mine = tl.load(logits_ptr + row * stride + label).to(tl.float32)
    tl.store(loss_ptr + row, (lse - (1.0 - smoothing) * mine - smoothing * plain / V) * scale)
    for start in range(0, V, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * stride + at, mask=at < V, other=-float("inf")).to(tl.float32)
        grad = tl.exp(x - lse) - smoothing / V - tl.where(at == label, 1.0 - smoothing, 0.0)
        tl.store(grad_ptr + row * stride + at, (grad * scale).to(grad_ptr.dtype.element_ty), mask=at < V)


@entry(loss_kernel, AFFINE, {"T": 4096, "V": 32000}, family=LOSS, has_dot=False,
       choices={"T": (3, 64), "V": (512, 1000, 5000)}, dtypes=("bfloat16", "float32"),
       configs=[triton.Config({"BLOCK": n}, num_warps=w) for n, w in ((4096, 8), (1024, 4), (8192, 16))])  # fmt: skip
def cross_entropy_with_gradient(s: Sizes, dtype: str) -> Problem:
    smoothing = 0.1

    def reference(t: Tensors) -> Any:
        import torch

        x = t["logits"].float().clone().requires_grad_()
        with torch.enable_grad():
            loss = torch.nn.functional.cross_entropy(x, t["label"], reduction="none", label_smoothing=smoothing)
        (grad,) = torch.autograd.grad(loss.sum(), x)
        return loss.detach(), grad

    whole = (s["T"], s["V"])
    return Problem(
        {"logits": Tensor(whole, dtype), "label": Tensor(whole[:1], "int64", "integers", low=0, high=s["V"]),
         "loss": output(s["T"], dtype="float32"), "grad": output(*whole, dtype=dtype)},
        {"logits_ptr": "logits", "label_ptr": "label", "loss_ptr": "loss", "grad_ptr": "grad", "stride": s["V"],
         "V": s["V"], "scale": 1.0, "smoothing": smoothing},
        lambda c: (s["T"],), ("loss", "grad"), reference,
    )  # fmt: skip


@triton.autotune(configs=tiles((128, 128, 64, 3, 8), (128, 64, 64, 4, 4), (64, 128, 32, 4, 4)), key=["C", "F"])
@triton.jit
def implicit_kernel(
    x_ptr, w_ptr, y_ptr, N, H, W, C, F, HO, WO, R: tl.constexpr, S: tl.constexpr, STRIDE: tl.constexpr,
    PAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Implicit product, channels last: rows are output pixels, the loop runs over filter taps and channels."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    image = rows // (HO * WO)
    y0 = rows % (HO * WO) // WO * STRIDE - PAD
    x0 = rows % WO * STRIDE - PAD
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    blocks = tl.cdiv(C, BLOCK_K)
    for step in range(R * S * blocks):
        tap = step // blocks
        channels = step % blocks * BLOCK_K + tl.arange(0, BLOCK_K)
        yy = y0 + tap // S
        xx = x0 + tap % S
        seen = (yy >= 0) & (yy < H) & (xx >= 0) & (xx < W) & (image < N)
        x_at = ((image * H + yy) * W + xx)[:, None] * C + channels[None, :]
        x = tl.load(x_ptr + x_at, mask=seen[:, None] & (channels[None, :] < C), other=0.0)
        w_at = (tap * C + channels)[:, None] * F + columns[None, :]
        w = tl.load(w_ptr + w_at, mask=(channels[:, None] < C) & (columns[None, :] < F), other=0.0)
        acc = tl.dot(x, w, acc)
    inside = (rows[:, None] < N * HO * WO) & (columns[None, :] < F)
    tl.store(y_ptr + rows[:, None] * F + columns[None, :], acc.to(y_ptr.dtype.element_ty), mask=inside)


IMAGES = {"N": 32, "H": 56, "C": 256, "F": 256}
IMAGE_CHOICES = {"N": (1, 3), "H": (14, 17), "C": (64, 96), "F": (64, 128)}


def convolved(t: Tensors, stride: int, pad: int) -> Any:
    """Channels last; the filter is [R, S, C, F]."""
    import torch

    x, w = t["x"].float().permute(0, 3, 1, 2), t["w"].float().permute(3, 2, 0, 1)
    return torch.nn.functional.conv2d(x, w, stride=stride, padding=pad).permute(0, 2, 3, 1)


@entry(implicit_kernel, GATHERED, IMAGES, family=CONVOLUTION, choices=IMAGE_CHOICES, dtypes=("float16", "bfloat16"))
def convolution_implicit(s: Sizes, dtype: str) -> Problem:
    n, h, c, f = s["N"], s["H"], s["C"], s["F"]
    out = (h + 2 - 3) // 2 + 1
    return Problem(
        {"x": Tensor((n, h, h, c), dtype), "w": Tensor((3, 3, c, f), dtype, scale=0.05),
         "y": output(n, out, out, f, dtype=dtype)},
        {"x_ptr": "x", "w_ptr": "w", "y_ptr": "y", "N": n, "H": h, "W": h, "C": c, "F": f, "HO": out, "WO": out},
        lambda k: (cdiv(n * out * out, k["BLOCK_M"]), cdiv(f, k["BLOCK_N"])), ("y",), lambda t: convolved(t, 2, 1),
        {"R": 3, "S": 3, "STRIDE": 2, "PAD": 1}, 2.0 * n * out * out * 9 * c * f,
    )  # fmt: skip


@triton.jit
def boxed_kernel(
    x_desc, w_desc, y_desc, H, C, BLOCK_W: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A row of the image a program, by four-dimensional boxes that are zero outside: stride 1, padding 1."""
    image = tl.program_id(0) // H
    y = tl.program_id(0) % H
    column = tl.program_id(1) * BLOCK_N
    x0 = tl.program_id(2) * BLOCK_W
    acc = tl.zeros((BLOCK_W, BLOCK_N), dtype=tl.float32)
    for r in range(3):
        for s in range(3):
            for c in range(0, C, BLOCK_K):
                x = x_desc.load([image, y + r - 1, x0 + s - 1, c]).reshape(BLOCK_W, BLOCK_K)
                w = w_desc.load([(r * 3 + s) * C + c, column])
                acc = tl.dot(x, w, acc)
    y_desc.store([image, y, x0, column], acc.to(y_desc.dtype).reshape(1, 1, BLOCK_W, BLOCK_N))


@entry(boxed_kernel, HOST, IMAGES, family=CONVOLUTION, choices=IMAGE_CHOICES,
       configs=[triton.Config({"BLOCK_W": 64, "BLOCK_N": n, "BLOCK_K": k}, num_stages=st, num_warps=4)
                for n, k, st in ((128, 64, 4), (64, 64, 4), (128, 32, 5))])  # fmt: skip
def convolution_boxes(s: Sizes, dtype: str) -> Problem:
    n, h, c, f = s["N"], s["H"], s["C"], s["F"]
    return Problem(
        {"x": Tensor((n, h, h, c), dtype), "w": Tensor((9 * c, f), dtype, scale=0.05),
         "y": output(n, h, h, f, dtype=dtype)},
        {"x_desc": Box("x", (1, 1, "BLOCK_W", "BLOCK_K")), "w_desc": Box("w", ("BLOCK_K", "BLOCK_N")),
         "y_desc": Box("y", (1, 1, "BLOCK_W", "BLOCK_N")), "H": h, "C": c},
        lambda k: (n * h, cdiv(f, k["BLOCK_N"]), cdiv(h, k["BLOCK_W"])), ("y",),
        lambda t: convolved({**t, "w": t["w"].unflatten(0, (3, 3, c))}, 1, 1), {}, 2.0 * n * h * h * 9 * c * f,
    )  # fmt: skip
