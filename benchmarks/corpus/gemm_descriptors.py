"""Matrix products that load through tensor descriptors, made on the host or in the kernel."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from corpus_entry import DEVICE, HOST, Argument, Box, Problem, Tensor, Tensors, cdiv, entry, output, table

from corpus.products import (
    CUBE,
    EVEN,
    Sizes,
    cublas_transposed,
    flops,
    operands,
    product_transposed,
    tile_grid,
    tile_in_group,
    tiles,
)  # fmt: skip

FAMILY = "gemm"
SMS = 132
BOXES = {
    "a_desc": ("BLOCK_M", "BLOCK_K"), "b_desc": ("BLOCK_N", "BLOCK_K"), "c_desc": ("BLOCK_M", "BLOCK_N"),
}  # fmt: skip


def set_boxes(arguments: dict[str, Any]) -> None:
    """The ``pre_hook`` of each configuration: descriptors get the block sizes that it will load."""
    for name, block in BOXES.items():
        arguments[name].block_shape = [arguments[size] for size in block]


def hooked(*wanted: tuple[int, int, int, int, int], **more: Any) -> list[triton.Config]:
    """The tiles, each with the hook."""
    return [
        triton.Config(dict(c.kwargs), num_stages=c.num_stages, num_warps=c.num_warps, pre_hook=set_boxes)
        for c in tiles(*wanted, **more)
    ]


LIST = ((128, 256, 64, 3, 8), (128, 256, 64, 4, 8), (128, 128, 64, 4, 8), (128, 128, 64, 3, 4), (64, 128, 64, 4, 4))
FP8 = ((128, 256, 128, 3, 8), (128, 128, 128, 4, 8), (128, 128, 128, 3, 4), (64, 128, 128, 4, 4))


def boxes(c_block: tuple[str, str] = BOXES["c_desc"]) -> dict[str, Argument]:
    return {"a_desc": Box("a", BOXES["a_desc"]), "b_desc": Box("b", BOXES["b_desc"]), "c_desc": Box("c", c_block)}


@triton.autotune(configs=hooked(*LIST, GROUP_M=8), key=["M", "N", "K"])
@triton.jit
def host_kernel(
    a_desc, b_desc, c_desc, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    pid_m, pid_n = tile_in_group(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    row = pid_m * BLOCK_M
    column = pid_n * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = a_desc.load([row, k * BLOCK_K])
        b = b_desc.load([column, k * BLOCK_K])
        acc = tl.dot(a, b.T, acc)
    c_desc.store([row, column], acc.to(c_desc.dtype))


@entry(host_kernel, HOST, CUBE, family=FAMILY, choices=EVEN, dtypes=("bfloat16", "float16"))
def gemm_host_descriptors(s: Sizes, dtype: str) -> Problem:
    return Problem(
        operands(s, dtype, transposed=True), {**boxes(), **s}, tile_grid(s), ("c",), product_transposed, {}, flops(s),
        {"cublas": cublas_transposed},
    )  # fmt: skip


@triton.autotune(configs=hooked(*LIST, GROUP_M=8, NUM_SMS=SMS), key=["M", "N", "K"])
@triton.jit
def host_persistent_kernel(
    a_desc, b_desc, c_desc, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, NUM_SMS: tl.constexpr,
):  # fmt: skip
    """A program an SM, flattened: the tile is advanced inside of one loop over all of its blocks."""
    k_tiles = tl.cdiv(K, BLOCK_K)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N), NUM_SMS, flatten=True):
        pid_m, pid_n = tile_in_group(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(k_tiles):
            a = a_desc.load([pid_m * BLOCK_M, k * BLOCK_K])
            b = b_desc.load([pid_n * BLOCK_N, k * BLOCK_K])
            acc = tl.dot(a, b.T, acc)
        c_desc.store([pid_m * BLOCK_M, pid_n * BLOCK_N], acc.to(c_desc.dtype))


def persistent_grid(s: Sizes) -> Any:
    return lambda c: (min(SMS, cdiv(s["M"], c["BLOCK_M"]) * cdiv(s["N"], c["BLOCK_N"])),)


@entry(host_persistent_kernel, HOST, CUBE, family=FAMILY, choices=EVEN)
def gemm_host_persistent(s: Sizes, dtype: str) -> Problem:
    return Problem(
        operands(s, dtype, transposed=True), {**boxes(), **s}, persistent_grid(s), ("c",), product_transposed, {},
        flops(s), {"cublas": cublas_transposed},
    )  # fmt: skip


@triton.jit
def host_subtile_kernel(
    a_desc, b_desc, c_desc, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    HALF_N: tl.constexpr, GROUP_M: tl.constexpr, NUM_SMS: tl.constexpr,
):  # fmt: skip
    """The persistent one with its result stored in two halves."""
    k_tiles = tl.cdiv(K, BLOCK_K)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N), NUM_SMS):
        pid_m, pid_n = tile_in_group(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        row = pid_m * BLOCK_M
        column = pid_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(k_tiles):
            acc = tl.dot(a_desc.load([row, k * BLOCK_K]), b_desc.load([column, k * BLOCK_K]).T, acc)
        acc = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
        left, right = tl.split(acc)
        c_desc.store([row, column], left.to(c_desc.dtype))
        c_desc.store([row, column + HALF_N], right.to(c_desc.dtype))


HALVES = [
    triton.Config({**c.kwargs, "HALF_N": c.kwargs["BLOCK_N"] // 2}, num_stages=c.num_stages, num_warps=c.num_warps)
    for c in tiles(*FP8, GROUP_M=8, NUM_SMS=SMS)
]


@entry(host_subtile_kernel, HOST, CUBE, family=FAMILY, choices=EVEN, dtypes=("float8_e4m3fn",),
       configs=HALVES)  # fmt: skip
def gemm_fp8_host_subtiled(s: Sizes, dtype: str) -> Problem:
    return Problem(
        {**operands(s, dtype, transposed=True), "c": output(s["M"], s["N"])}, {**boxes(("BLOCK_M", "HALF_N")), **s},
        persistent_grid(s), ("c",), product_transposed, {}, flops(s),
    )  # fmt: skip


@triton.autotune(configs=hooked(*LIST, GROUP_M=8), key=["M", "N", "K"])
@triton.jit
def host_bias_gelu_kernel(
    a_desc, b_desc, c_desc, bias_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    pid_m, pid_n = tile_in_group(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    row = pid_m * BLOCK_M
    column = pid_n * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        acc = tl.dot(a_desc.load([row, k]), b_desc.load([column, k]).T, acc)
    columns = column + tl.arange(0, BLOCK_N)
    acc += tl.load(bias_ptr + columns, mask=columns < N, other=0.0)[None, :]
    acc = 0.5 * acc * (1.0 + tl.erf(acc * 0.70710678))
    c_desc.store([row, column], acc.to(c_desc.dtype))


@entry(host_bias_gelu_kernel, HOST, {"M": 4096, "N": 11008, "K": 4096}, family=FAMILY, choices=EVEN)
def gemm_host_bias_gelu(s: Sizes, dtype: str) -> Problem:
    def reference(t: Tensors) -> Any:
        import torch

        return torch.nn.functional.gelu(product_transposed(t) + t["bias"].float())

    return Problem(
        {**operands(s, dtype, transposed=True), "bias": Tensor((s["N"],), dtype)},
        {**boxes(), **s, "bias_ptr": "bias"}, tile_grid(s), ("c",), reference, {}, flops(s),
    )  # fmt: skip


@triton.jit
def host_batched_kernel(
    a_desc, b_desc, c_desc, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Three-dimensional boxes of one batch; B with rows of N."""
    batch = tl.program_id(1)
    across = tl.cdiv(N, BLOCK_N)
    row = tl.program_id(0) // across * BLOCK_M
    column = tl.program_id(0) % across * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = a_desc.load([batch, row, k]).reshape(BLOCK_M, BLOCK_K)
        b = b_desc.load([batch, k, column]).reshape(BLOCK_K, BLOCK_N)
        acc = tl.dot(a, b, acc)
    c_desc.store([batch, row, column], acc.to(c_desc.dtype).reshape(1, BLOCK_M, BLOCK_N))


@entry(host_batched_kernel, HOST, {"B": 16, "M": 1024, "N": 1024, "K": 1024}, family=FAMILY,
       choices={**EVEN, "B": (1, 3)}, configs=tiles(*LIST[1:]))  # fmt: skip
def gemm_host_batched(s: Sizes, dtype: str) -> Problem:
    b, m, n, k = s["B"], s["M"], s["N"], s["K"]
    return Problem(
        {"a": Tensor((b, m, k), dtype), "b": Tensor((b, k, n), dtype), "c": output(b, m, n, dtype=dtype)},
        {"a_desc": Box("a", (1, "BLOCK_M", "BLOCK_K")), "b_desc": Box("b", (1, "BLOCK_K", "BLOCK_N")),
         "c_desc": Box("c", (1, "BLOCK_M", "BLOCK_N")), "M": m, "N": n, "K": k},
        lambda c: (cdiv(m, c["BLOCK_M"]) * cdiv(n, c["BLOCK_N"]), b), ("c",),
        lambda t: t["a"].float() @ t["b"].float(), {}, b * flops(s),
    )  # fmt: skip


@triton.autotune(configs=tiles(*LIST, GROUP_M=8), key=["M", "N", "K"])
@triton.jit
def device_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    a_desc = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BLOCK_N, BLOCK_K])
    c_desc = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    pid_m, pid_n = tile_in_group(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = a_desc.load([pid_m * BLOCK_M, k])
        b = b_desc.load([pid_n * BLOCK_N, k])
        acc = tl.dot(a, b.T, acc)
    c_desc.store([pid_m * BLOCK_M, pid_n * BLOCK_N], acc.to(c_ptr.dtype.element_ty))


POINTERS = {"a_ptr": "a", "b_ptr": "b", "c_ptr": "c"}


@entry(device_kernel, DEVICE, CUBE, family=FAMILY, choices=EVEN, dtypes=("float16", "bfloat16"))
def gemm_device_descriptors(s: Sizes, dtype: str) -> Problem:
    return Problem(
        operands(s, dtype, transposed=True), {**POINTERS, **s}, tile_grid(s), ("c",), product_transposed, {}, flops(s),
        {"cublas": cublas_transposed},
    )  # fmt: skip


@triton.autotune(configs=tiles(*FP8, GROUP_M=8, NUM_SMS=SMS), key=["M", "N", "K"])
@triton.jit
def device_persistent_kernel(
    a_ptr, b_ptr, c_ptr, a_scale_ptr, b_scale_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, NUM_SMS: tl.constexpr,
):  # fmt: skip
    """fp8 with a scale for each row of both operands."""
    a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [BLOCK_N, BLOCK_K])
    c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    k_tiles = tl.cdiv(K, BLOCK_K)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N), NUM_SMS, flatten=False):
        pid_m, pid_n = tile_in_group(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(k_tiles):
            acc = tl.dot(
                a_desc.load([pid_m * BLOCK_M, k * BLOCK_K]), b_desc.load([pid_n * BLOCK_N, k * BLOCK_K]).T, acc
            )
        a_scale = tl.load(a_scale_ptr + rows, mask=rows < M, other=0.0)
        b_scale = tl.load(b_scale_ptr + columns, mask=columns < N, other=0.0)
        acc = acc * a_scale[:, None] * b_scale[None, :]
        c_desc.store([pid_m * BLOCK_M, pid_n * BLOCK_N], acc.to(c_ptr.dtype.element_ty))


@entry(device_persistent_kernel, DEVICE, CUBE, family=FAMILY, choices=EVEN, dtypes=("float8_e4m3fn",))
def gemm_fp8_device_persistent(s: Sizes, dtype: str) -> Problem:
    tensors = {
        **operands(s, dtype, transposed=True), "c": output(s["M"], s["N"]),
        "a_scale": Tensor((s["M"],), "float32", "uniform"), "b_scale": Tensor((s["N"],), "float32", "uniform"),
    }  # fmt: skip
    return Problem(
        tensors, {**POINTERS, "a_scale_ptr": "a_scale", "b_scale_ptr": "b_scale", **s}, persistent_grid(s), ("c",),
        lambda t: product_transposed(t) * t["a_scale"][:, None] * t["b_scale"], {}, flops(s),
    )  # fmt: skip


@triton.autotune(configs=tiles((128, 128, 64, 3, 8), (128, 128, 64, 4, 4), (64, 128, 64, 4, 4), NUM_SMS=SMS), key=["G"])
@triton.jit
def grouped_kernel(
    a_ptr, b_ptr, c_ptr, offsets_ptr, G, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    NUM_SMS: tl.constexpr,
):  # fmt: skip
    """Products of ragged row groups, each with descriptors that end where the group ends."""
    tile = tl.program_id(0)
    begun = 0
    for group in tl.range(G):
        start = tl.load(offsets_ptr + group)
        rows = (tl.load(offsets_ptr + group + 1) - start).to(tl.int32)
        across = tl.cdiv(N, BLOCK_N)
        count = tl.cdiv(rows, BLOCK_M) * across
        if tile < begun + count:
            a_desc = tl.make_tensor_descriptor(a_ptr + start * K, [rows, K], [K, 1], [BLOCK_M, BLOCK_K])
            b_desc = tl.make_tensor_descriptor(b_ptr + group * N * K, [N, K], [K, 1], [BLOCK_N, BLOCK_K])
            c_desc = tl.make_tensor_descriptor(c_ptr + start * N, [rows, N], [N, 1], [BLOCK_M, BLOCK_N])
            while tile < begun + count:
                row = (tile - begun) // across * BLOCK_M
                column = (tile - begun) % across * BLOCK_N
                acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
                for k in range(0, K, BLOCK_K):
                    acc = tl.dot(a_desc.load([row, k]), b_desc.load([column, k]).T, acc)
                c_desc.store([row, column], acc.to(c_ptr.dtype.element_ty))
                tile += NUM_SMS
        begun += count


@entry(grouped_kernel, DEVICE, {"M": 16384, "N": 4096, "K": 2048, "G": 8}, family="moe",
       choices={**EVEN, "G": (3, 5, 8)})  # fmt: skip
def grouped_gemm_device(s: Sizes, dtype: str) -> Problem:
    m, n, k, g = s["M"], s["N"], s["K"], s["G"]
    ends = [m * (i + 1) ** 2 // g**2 for i in range(g)]

    def reference(t: Tensors) -> Any:
        import torch

        groups = zip([0, *ends[:-1]], ends, range(g), strict=True)
        return torch.cat([t["a"][low:high].float() @ t["b"][i].float().T for low, high, i in groups])

    return Problem(
        {"a": Tensor((m, k), dtype), "b": Tensor((g, n, k), dtype), "c": output(m, n, dtype=dtype),
         "offsets": table(lambda: [0, *ends], g + 1, dtype="int64")},
        {**POINTERS, "offsets_ptr": "offsets", "G": g, "N": n, "K": k}, lambda c: (SMS,), ("c",), reference, {},
        flops(s),
    )  # fmt: skip
