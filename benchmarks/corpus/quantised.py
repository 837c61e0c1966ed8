"""Products of quantised operands: fp8 with a scale for each block, int8 and 4-bit weights dequantised in the loop."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from corpus_entry import AFFINE, HOST, Box, Problem, Tensor, Tensors, cdiv, entry, output, strides

from corpus.products import CUBE, EVEN, Sizes, flops, tile_grid, tile_in_group, tiles

FAMILY = "quantised gemm"
SCALED = (
    (128, 128, 128, 3, 8),
    (128, 128, 128, 4, 4),
    (64, 128, 128, 4, 4),
    (64, 256, 128, 3, 8),
    (128, 64, 128, 4, 4),
)
SMALL = ((16, 128, 128, 4, 4), (32, 128, 64, 4, 4), (64, 128, 64, 4, 4), (128, 128, 64, 3, 8), (64, 256, 64, 3, 8))
BLOCK_CHOICES = {"M": (64, 17, 300, 1024), "N": (128, 384, 1024), "K": (256, 512, 1024)}


def blocks_of(scale: Any, rows: int, columns: int) -> Any:
    """A scale for each 128 x 128 block, spread over its elements."""
    return scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]


@triton.autotune(configs=tiles(*SCALED, GROUP_M=16), key=["M", "N", "K"])
@triton.jit
def w8a8_block_kernel(
    a_ptr, b_ptr, c_ptr, a_scale_ptr, b_scale_ptr, M, N, K, group_n, group_k, stride_am, stride_ak, stride_bk,
    stride_bn, stride_cm, stride_cn, stride_as_m, stride_as_k, stride_bs_k, stride_bs_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """1 x 128 scales of A and 128 x 128 of B multiply each block's product."""
    pid_m, pid_n = tile_in_group(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    columns = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    depth = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (rows[:, None] * stride_am + depth[None, :] * stride_ak)
    b_ptrs = b_ptr + (depth[:, None] * stride_bk + columns[None, :] * stride_bn)
    a_scale_ptrs = a_scale_ptr + rows * stride_as_m
    b_scale_ptrs = b_scale_ptr + columns // group_n * stride_bs_n
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=depth[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=depth[:, None] < K - k * BLOCK_K, other=0.0)
        block = k * BLOCK_K // group_k
        a_scale = tl.load(a_scale_ptrs + block * stride_as_k)
        b_scale = tl.load(b_scale_ptrs + block * stride_bs_k)
        acc += tl.dot(a, b) * a_scale[:, None] * b_scale[None, :]
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    out_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    out_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * out_m[:, None] + stride_cn * out_n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(out_m[:, None] < M) & (out_n[None, :] < N))


def block_scaled(s: Sizes, dtype: str) -> dict[str, Tensor]:
    m, n, k = s["M"], s["N"], s["K"]
    return {
        "a": Tensor((m, k), dtype), "b": Tensor((n, k), dtype), "c": output(m, n),
        "as": Tensor((m, cdiv(k, 128)), "float32", "uniform"),
        "bs": Tensor((cdiv(n, 128), cdiv(k, 128)), "float32", "uniform"),
    }  # fmt: skip


def block_scaled_product(t: Tensors) -> Any:
    n, k = t["b"].shape
    a = t["a"].float() * t["as"].repeat_interleave(128, 1)[:, :k]
    return a @ (t["b"].float() * blocks_of(t["bs"], n, k)).T


@entry(w8a8_block_kernel, AFFINE, {"M": 4096, "N": 7168, "K": 4096}, family=FAMILY, choices=BLOCK_CHOICES,
       dtypes=("float8_e4m3fn",), padded=("a", "b", "c"))  # fmt: skip
def w8a8_block_scaled(s: Sizes, dtype: str) -> Problem:
    return Problem(
        block_scaled(s, dtype),
        {"a_ptr": "a", "b_ptr": "b", "c_ptr": "c", "a_scale_ptr": "as", "b_scale_ptr": "bs", **s, "group_n": 128,
         "group_k": 128, **strides("a", "stride_a", "mk"), **strides("b", "stride_b", "nk"),
         **strides("c", "stride_c", "mn"), **strides("as", "stride_as_", "mk"), **strides("bs", "stride_bs_", "nk")},
        tile_grid(s), ("c",), block_scaled_product, {}, flops(s),
    )  # fmt: skip


@triton.jit
def w8a8_descriptor_kernel(
    a_desc, b_desc, c_ptr, a_scale_ptr, b_scale_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """The same with operands by descriptors, scales by pointers: those of A transposed, one row a block of K."""
    pid_m, pid_n = tile_in_group(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k_tiles = tl.cdiv(K, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(k_tiles):
        a = a_desc.load([pid_m * BLOCK_M, k * BLOCK_K])
        b = b_desc.load([pid_n * BLOCK_N, k * BLOCK_K])
        a_scale = tl.load(a_scale_ptr + k * M + rows, mask=rows < M, other=0.0)
        b_scale = tl.load(b_scale_ptr + pid_n * BLOCK_N // 128 * k_tiles + k)
        acc += tl.dot(a, b.T) * (a_scale * b_scale)[:, None]
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc.to(c_ptr.dtype.element_ty), mask=inside)


@entry(w8a8_descriptor_kernel, HOST, {"M": 4096, "N": 7168, "K": 4096}, family=FAMILY, choices=BLOCK_CHOICES,
       dtypes=("float8_e4m3fn",), configs=tiles((128, 128, 128, 3, 8), (64, 128, 128, 4, 4), GROUP_M=8))  # fmt: skip
def w8a8_block_scaled_descriptors(s: Sizes, dtype: str) -> Problem:
    tensors = block_scaled(s, dtype)
    tensors["as"] = Tensor((cdiv(s["K"], 128), s["M"]), "float32", "uniform")
    return Problem(
        tensors,
        {"a_desc": Box("a", ("BLOCK_M", "BLOCK_K")), "b_desc": Box("b", ("BLOCK_N", "BLOCK_K")), "c_ptr": "c",
         "a_scale_ptr": "as", "b_scale_ptr": "bs", **s},
        tile_grid(s), ("c",), lambda t: block_scaled_product({**t, "as": t["as"].T}), {}, flops(s),
    )  # fmt: skip


@triton.autotune(configs=tiles((128, 128, 128, 3, 8), (64, 128, 128, 4, 4), (64, 64, 256, 3, 4)), key=["M", "N", "K"])
@triton.jit
def scaled_mm_kernel(
    a_ptr, b_ptr, scale_a_ptr, scale_b_ptr, c_ptr, bias_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    stride_cm, stride_cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):  # fmt: skip
    """Dynamic per-token and per-channel scales; masks of rows and columns are joined with those of K."""
    pid = tl.program_id(0)
    across = tl.cdiv(N, BLOCK_N)
    rows = pid // across * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    columns = pid % across * BLOCK_N + tl.arange(0, BLOCK_N).to(tl.int64)
    row_mask = rows < M
    column_mask = columns < N
    depth = tl.arange(0, BLOCK_K).to(tl.int64)
    a_at = stride_am * rows[:, None] + stride_ak * depth[None, :]
    b_at = stride_bk * depth[:, None] + stride_bn * columns[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACCUMULATOR)
    for k in range(tl.cdiv(K, BLOCK_K)):
        depth_mask = depth < K - k * BLOCK_K
        a = tl.load(a_ptr + a_at, mask=row_mask[:, None] & depth_mask[None, :])
        b = tl.load(b_ptr + b_at, mask=depth_mask[:, None] & column_mask[None, :])
        acc = tl.dot(a, b, acc, out_dtype=ACCUMULATOR)
        a_at += BLOCK_K * stride_ak
        b_at += BLOCK_K * stride_bk
    scale_a = tl.load(scale_a_ptr + rows[:, None], mask=row_mask[:, None])
    scale_b = tl.load(scale_b_ptr + columns[:, None], mask=column_mask[:, None])
    c = scale_b.T * (scale_a * acc.to(tl.float32))
    if bias_ptr is not None:
        c += tl.load(bias_ptr + columns, mask=column_mask).to(tl.float32)[None, :]
    c_ptrs = c_ptr + stride_cm * rows[:, None] + stride_cn * columns[None, :]
    tl.store(c_ptrs, c.to(c_ptr.dtype.element_ty), mask=row_mask[:, None] & column_mask[None, :])


@entry(scaled_mm_kernel, AFFINE, CUBE, family=FAMILY, choices=BLOCK_CHOICES, dtypes=("int8",), padded=("a", "b", "c"))
def w8a8_token_scaled(s: Sizes, dtype: str) -> Problem:
    m, n, k = s["M"], s["N"], s["K"]
    return Problem(
        {"a": Tensor((m, k), dtype, "integers", low=-8, high=8), "b": Tensor((n, k), dtype, "integers", low=-8, high=8),
         "c": output(m, n), "sa": Tensor((m,), "float32", "uniform"), "sb": Tensor((n,), "float32", "uniform")},
        {"a_ptr": "a", "b_ptr": "b", "c_ptr": "c", "scale_a_ptr": "sa", "scale_b_ptr": "sb", "bias_ptr": None, **s,
         **strides("a", "stride_a", "mk"), **strides("b", "stride_b", "nk"), **strides("c", "stride_c", "mn")},
        tile_grid(s), ("c",), lambda t: (t["a"].float() @ t["b"].float().T) * t["sa"][:, None] * t["sb"],
        {"ACCUMULATOR": tl.int32}, flops(s),
    )  # fmt: skip


@triton.autotune(configs=tiles(*SMALL, GROUP_M=8), key=["M", "N", "K"])
@triton.jit
def w8a16_kernel(
    a_ptr, b_ptr, scale_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """int8 weights are converted between load and product; a scale a column at the end."""
    pid_m, pid_n = tile_in_group(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    columns = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    depth = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * stride_am + depth[None, :] * stride_ak
    b_ptrs = b_ptr + depth[:, None] * stride_bk + columns[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        left = K - k * BLOCK_K
        a = tl.load(a_ptrs, mask=depth[None, :] < left, other=0.0)
        b = tl.load(b_ptrs, mask=depth[:, None] < left, other=0).to(a.dtype)
        acc += tl.dot(a, b)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    acc = acc * tl.load(scale_ptr + columns)[None, :]
    out_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    out_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * out_m[:, None] + stride_cn * out_n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(out_m[:, None] < M) & (out_n[None, :] < N))


@entry(w8a16_kernel, AFFINE, {"M": 256, "N": 8192, "K": 8192}, family=FAMILY, choices=EVEN, padded=("a", "c"))
def w8a16(s: Sizes, dtype: str) -> Problem:
    m, n, k = s["M"], s["N"], s["K"]
    return Problem(
        {"a": Tensor((m, k), dtype), "b": Tensor((k, n), "int8", "integers", low=-128, high=128),
         "scale": Tensor((n,), "float32", "uniform", scale=0.01), "c": output(m, n, dtype=dtype)},
        {"a_ptr": "a", "b_ptr": "b", "scale_ptr": "scale", "c_ptr": "c", **s, **strides("a", "stride_a", "mk"),
         **strides("b", "stride_b", "kn"), **strides("c", "stride_c", "mn")},
        tile_grid(s), ("c",), lambda t: (t["a"].float() @ t["b"].float()) * t["scale"], {}, flops(s),
    )  # fmt: skip


def nibbles(packed: Any, axis: int) -> Any:
    """Eight 4-bit numbers of each int32, the lowest first, side by side along ``axis``."""
    import torch

    shifts = torch.arange(0, 32, 4, device=packed.device)
    spread = (packed.unsqueeze(axis + 1) >> shifts.view([-1 if i == axis + 1 else 1 for i in range(3)])) & 15
    return spread.flatten(axis, axis + 1)


@triton.autotune(configs=tiles(*SMALL, GROUP_M=8), key=["M", "N", "K"])
@triton.jit
def gptq_kernel(
    a_ptr, b_ptr, c_ptr, scale_ptr, zero_ptr, M, N, K, group, stride_am, stride_ak, stride_bk, stride_bn, stride_cm,
    stride_cn, stride_sg, stride_sn, stride_zg, stride_zn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """4-bit weights, eight along K in an int32, with a scale and a zero (packed along N) for each group of K."""
    pid_m, pid_n = tile_in_group(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * stride_am + depth[None, :] * stride_ak
    b_ptrs = b_ptr + depth[:, None] // 8 * stride_bk + columns[None, :] * stride_bn
    shift = depth % 8 * 4
    zero_shift = columns % 8 * 4
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        at = (depth + k * BLOCK_K) // group
        scale = tl.load(scale_ptr + at[:, None] * stride_sg + columns[None, :] * stride_sn)
        zero = tl.load(zero_ptr + at[:, None] * stride_zg + columns[None, :] // 8 * stride_zn)
        zero = (zero >> zero_shift[None, :]) & 0xF
        a = tl.load(a_ptrs, mask=rows[:, None] < M, other=0.0)
        b = tl.load(b_ptrs)
        b = (b >> shift[:, None]) & 0xF
        b = ((b - zero) * scale).to(a.dtype)
        acc += tl.dot(a, b)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K // 8 * stride_bk
    c_ptrs = c_ptr + stride_cm * rows[:, None] + stride_cn * columns[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=rows[:, None] < M)


PACKED = {"fill": "integers", "low": -(2**31), "high": 2**31}


@entry(gptq_kernel, AFFINE, {"M": 64, "N": 8192, "K": 8192}, family=FAMILY, dtypes=("float16", "bfloat16"),
       choices={"M": (16, 17, 64), "N": (256, 512), "K": (256, 512)})  # fmt: skip
def w4a16_packed_rows(s: Sizes, dtype: str) -> Problem:
    m, n, k = s["M"], s["N"], s["K"]

    def reference(t: Tensors) -> Any:
        zero = nibbles(t["zero"], 1).repeat_interleave(128, 0)
        b = (nibbles(t["b"], 0) - zero) * t["scale"].float().repeat_interleave(128, 0)
        return t["a"].float() @ b.to(t["a"].dtype).float()

    return Problem(
        {"a": Tensor((m, k), dtype), "b": Tensor((k // 8, n), "int32", **PACKED), "c": output(m, n, dtype=dtype),
         "scale": Tensor((k // 128, n), dtype, "uniform", scale=0.1),
         "zero": Tensor((k // 128, n // 8), "int32", **PACKED)},
        {"a_ptr": "a", "b_ptr": "b", "c_ptr": "c", "scale_ptr": "scale", "zero_ptr": "zero", **s, "group": 128,
         **strides("a", "stride_a", "mk"), **strides("b", "stride_b", "kn"), **strides("c", "stride_c", "mn"),
         **strides("scale", "stride_s", "gn"), **strides("zero", "stride_z", "gn")},
        tile_grid(s), ("c",), reference, {}, flops(s),
    )  # fmt: skip


AWQ = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "SPLIT_K": split}, num_stages=stages, num_warps=warps)
    for m, n, k, stages, warps in ((16, 64, 64, 4, 4), (32, 64, 64, 4, 4), (64, 128, 64, 3, 4))
    for split in (1, 8)
]


@triton.autotune(configs=AWQ, key=["M", "N", "K"], reset_to_zero=["c_ptr"])
@triton.jit
def awq_kernel(
    a_ptr, b_ptr, c_ptr, scale_ptr, zero_ptr, M, N, K, group, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """4-bit weights, eight along N in an int32 in the order 0 4 1 5 2 6 3 7, unpacked by interleaving; K is split."""
    across = tl.cdiv(N, BLOCK_N)
    pid_m = tl.program_id(0) // across
    pid_n = tl.program_id(0) % across
    part = tl.program_id(1)
    order = (tl.arange(0, 2) * 4)[None, :] + tl.arange(0, 4)[:, None]
    shifts = tl.reshape(order, (8,)) * 4
    shifts = tl.broadcast_to(shifts[None, :], (BLOCK_K * (BLOCK_N // 8), 8))
    shifts = tl.reshape(shifts, (BLOCK_K, BLOCK_N))
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    packed = pid_n * (BLOCK_N // 8) + tl.arange(0, BLOCK_N // 8)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = part * BLOCK_K + tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K * SPLIT_K)):
        at = k * BLOCK_K * SPLIT_K
        a = tl.load(a_ptr + rows[:, None] * K + (at + depth)[None, :],
                    mask=(rows[:, None] < M) & ((at + depth)[None, :] < K), other=0.0)  # fmt: skip
        b = tl.load(b_ptr + (at + depth)[:, None] * (N // 8) + packed[None, :],
                    mask=((at + depth)[:, None] < K) & (packed[None, :] < N // 8), other=0)  # fmt: skip
        b = tl.interleave(b, b)
        b = tl.interleave(b, b)
        b = tl.interleave(b, b)
        line = (at + part * BLOCK_K) // group
        zero = tl.load(zero_ptr + line * (N // 8) + packed, mask=packed < N // 8, other=0)[None, :]
        zero = tl.interleave(zero, zero)
        zero = tl.interleave(zero, zero)
        zero = tl.interleave(zero, zero)
        zero = tl.broadcast_to(zero, (BLOCK_K, BLOCK_N))
        scale = tl.load(scale_ptr + line * N + columns, mask=columns < N, other=0.0)[None, :]
        b = (b >> shifts) & 0xF
        zero = (zero >> shifts) & 0xF
        b = ((b - zero) * scale).to(a.dtype)
        acc = tl.dot(a, b, acc)
    c_ptrs = c_ptr + rows[:, None] * N + columns[None, :]
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    if SPLIT_K == 1:
        tl.store(c_ptrs, acc, mask=inside)
    else:
        tl.atomic_add(c_ptrs, acc, mask=inside, sem="relaxed")


@entry(awq_kernel, AFFINE, {"M": 32, "N": 8192, "K": 8192}, family=FAMILY, dtypes=("float16",),
       choices={"M": (16, 17, 64), "N": (256, 512), "K": (512, 1024)})  # fmt: skip
def w4a16_packed_columns(s: Sizes, dtype: str) -> Problem:
    m, n, k = s["M"], s["N"], s["K"]

    def reference(t: Tensors) -> Any:
        order = [0, 4, 1, 5, 2, 6, 3, 7]
        b, zero = (nibbles(t[name], 1).unflatten(1, (-1, 8))[:, :, order].flatten(1) for name in ("b", "zero"))
        b = (b - zero.repeat_interleave(128, 0)) * t["scale"].float().repeat_interleave(128, 0)
        return t["a"].float() @ b.to(t["a"].dtype).float()

    return Problem(
        {"a": Tensor((m, k), dtype), "b": Tensor((k, n // 8), "int32", **PACKED),
         "c": Tensor((m, n), "float32", "zero"), "scale": Tensor((k // 128, n), dtype, "uniform", scale=0.1),
         "zero": Tensor((k // 128, n // 8), "int32", **PACKED)},
        {"a_ptr": "a", "b_ptr": "b", "c_ptr": "c", "scale_ptr": "scale", "zero_ptr": "zero", **s, "group": 128},
        lambda c: (cdiv(m, c["BLOCK_M"]) * cdiv(n, c["BLOCK_N"]), c["SPLIT_K"]), ("c",), reference, {}, flops(s),
    )  # fmt: skip
