"""Mixtures of experts and LoRA adapters: rows gathered by sorted token ids or by adapter, padded to whole tiles."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import triton
import triton.language as tl
from corpus_entry import AFFINE, GATHERED, Argument, Problem, Tensor, Tensors, cdiv, entry, output, strides, table

from corpus.products import Sizes, tiles
from corpus.quantised import blocks_of

FAMILY, LORA = "moe", "lora"
CHOICES = {"T": (8, 33, 300), "E": (4, 8), "N": (256, 512), "K": (128, 256), "TOP": (2,)}


def without_rows(*wanted: tuple[int, int, int, int], group: int = 8) -> list[triton.Config]:
    """(BLOCK_N, BLOCK_K, stages, warps) each: BLOCK_M is what tokens were padded to."""
    configs = tiles(*((0, *w) for w in wanted), GROUP_M=group)
    for config in configs:
        config.kwargs.pop("BLOCK_M")
    return configs


USUAL = without_rows((128, 64, 4, 4), (128, 64, 3, 8), (256, 64, 3, 8), (64, 64, 4, 4), (128, 128, 3, 4))
QUANTISED = without_rows((128, 128, 3, 4), (128, 128, 3, 8), (64, 128, 4, 4))


@dataclass(frozen=True)
class Routing:
    """``top`` experts of each token: ``experts[token * top + i]``; ``ids`` are the sorted slots, padded with the number
    of slots to whole blocks of ``block`` rows, ``blocks`` the expert of each."""

    block: int
    experts: tuple[int, ...]
    ids: tuple[int, ...]
    blocks: tuple[int, ...]


@cache
def routing(tokens: int, experts: int, top: int, block: int) -> Routing:
    """Drawn from a fixed seed, skewed towards the first experts."""
    draw = Random(tokens * 1000 + experts)
    weights = [1.0 / (1 + e / 4) for e in range(experts)]
    chosen: list[int] = []
    for _ in range(tokens):
        picked: list[int] = []
        while len(picked) < top:
            (e,) = draw.choices(range(experts), weights)
            picked += [e] if e not in picked else []
        chosen += picked
    ids: list[int] = []
    blocks: list[int] = []
    for expert in range(experts):
        mine = [slot for slot, e in enumerate(chosen) if e == expert]
        padded = cdiv(len(mine), block) * block
        ids += mine + [len(chosen)] * (padded - len(mine))
        blocks += [expert] * (padded // block)
    return Routing(block, tuple(chosen), tuple(ids), tuple(blocks))


def block_rows(s: Sizes) -> int:
    """What a serving library pads to: few rows for few tokens an expert."""
    each = s["T"] * s["TOP"] // s["E"]
    return 16 if each <= 16 else 64 if each <= 512 else 128


@triton.jit
def routed_tile(pid, count_ptr, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    count = tl.load(count_ptr)
    rows = tl.cdiv(count, BLOCK_M)
    across = tl.cdiv(N, BLOCK_N)
    per_group = GROUP_M * across
    first = pid // per_group * GROUP_M
    height = min(rows - first, GROUP_M)
    return first + pid % per_group % height, pid % per_group // height, count


@triton.autotune(configs=USUAL, key=["N", "K"])
@triton.jit
def fused_moe_kernel(
    a_ptr, b_ptr, c_ptr, weight_ptr, ids_ptr, expert_ptr, count_ptr, N, K, slots, stride_am, stride_ak, stride_be,
    stride_bk, stride_bn, stride_cm, stride_cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, MUL_WEIGHT: tl.constexpr, TOP_K: tl.constexpr,
):  # fmt: skip
    """Rows of A by sorted slot; the padded launch ends where the device's count says."""
    padded = tl.load(count_ptr)
    pid = tl.program_id(0)
    rows = tl.cdiv(padded, BLOCK_M)
    across = tl.cdiv(N, BLOCK_N)
    per_group = GROUP_M * across
    first = pid // per_group * GROUP_M
    height = min(rows - first, GROUP_M)
    if pid >= rows * across:
        return
    pid_m = first + pid % per_group % height
    pid_n = pid % per_group // height
    token_at = pid_m * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    token = tl.load(ids_ptr + token_at)
    token_mask = token < slots
    expert = tl.load(expert_ptr + pid_m).to(tl.int64)
    columns = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N).to(tl.int64)) % N
    depth = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (token[:, None] // TOP_K * stride_am + depth[None, :] * stride_ak)
    b_ptrs = b_ptr + expert * stride_be + (depth[:, None] * stride_bk + columns[None, :] * stride_bn)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=token_mask[:, None] & (depth[None, :] < K - k * BLOCK_K), other=0.0)
        b = tl.load(b_ptrs, mask=depth[:, None] < K - k * BLOCK_K, other=0.0)
        acc += tl.dot(a, b)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if MUL_WEIGHT:
        acc = acc * tl.load(weight_ptr + token, mask=token_mask, other=0.0)[:, None]
    out_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * token[:, None] + stride_cn * out_n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=token_mask[:, None] & (out_n[None, :] < N))


def moe_tensors(s: Sizes, dtype: str, rows: int) -> tuple[dict[str, Tensor], Routing]:
    """A with ``rows`` rows, B [E, N, K], C of each slot and the routing's tables."""
    slots = s["T"] * s["TOP"]
    routed = routing(s["T"], s["E"], s["TOP"], block_rows(s))
    tensors = {
        "a": Tensor((rows, s["K"]), dtype), "b": Tensor((s["E"], s["N"], s["K"]), dtype, scale=0.1),
        "c": output(slots, s["N"]), "weight": Tensor((slots,), "float32", "uniform"),
        "ids": table(lambda: routed.ids, len(routed.ids)), "expert": table(lambda: routed.blocks, len(routed.blocks)),
        "count": table(lambda: (len(routed.ids),), 1),
    }  # fmt: skip
    return tensors, routed


def moe_arguments(s: Sizes) -> dict[str, Argument]:
    return {
        "a_ptr": "a", "b_ptr": "b", "c_ptr": "c", "weight_ptr": "weight", "ids_ptr": "ids", "expert_ptr": "expert",
        "count_ptr": "count", "N": s["N"], "K": s["K"], "slots": s["T"] * s["TOP"], **strides("a", "stride_a", "mk"),
        **strides("b", "stride_b", "enk"), **strides("c", "stride_c", "mn"),
    }  # fmt: skip


def moe_grid(s: Sizes, routed: Routing) -> Any:
    return lambda c: (len(routed.blocks) * cdiv(s["N"], c["BLOCK_N"]),)


def moe_product(a: Any, b: Any, experts: tuple[int, ...], top: int) -> Any:
    """Row slot // top of ``a`` by the expert of each slot, in fp32."""
    import torch

    chosen = torch.tensor(experts, device=a.device)
    rows = a.float().repeat_interleave(top, 0)
    found = torch.zeros(len(experts), b.shape[1], device=a.device)
    for expert in range(b.shape[0]):
        mine = (chosen == expert).nonzero().flatten()
        found[mine] = rows[mine] @ b[expert].float().T
    return found


def moe_flops(s: Sizes) -> float:
    return 2.0 * s["T"] * s["TOP"] * s["N"] * s["K"]


@entry(fused_moe_kernel, GATHERED, {"T": 4096, "E": 8, "TOP": 2, "N": 7168, "K": 4096}, family=FAMILY, choices=CHOICES,
       dtypes=("bfloat16", "float16"), padded=("a", "c"))  # fmt: skip
def fused_moe_up(s: Sizes, dtype: str) -> Problem:
    tensors, routed = moe_tensors(s, dtype, s["T"])
    return Problem(
        tensors, moe_arguments(s), moe_grid(s, routed), ("c",),
        lambda t: moe_product(t["a"], t["b"], routed.experts, s["TOP"]),
        {"BLOCK_M": routed.block, "MUL_WEIGHT": False, "TOP_K": s["TOP"]}, moe_flops(s),
    )  # fmt: skip


@entry(fused_moe_kernel, GATHERED, {"T": 64, "E": 64, "TOP": 8, "N": 2048, "K": 1408}, family=FAMILY,
       choices={**CHOICES, "TOP": (2,)}, padded=("a", "c"))  # fmt: skip
def fused_moe_down(s: Sizes, dtype: str) -> Problem:
    """Each slot has a row of its own, weighted by its router."""
    tensors, routed = moe_tensors(s, dtype, s["T"] * s["TOP"])
    return Problem(
        tensors, moe_arguments(s), moe_grid(s, routed), ("c",),
        lambda t: moe_product(t["a"], t["b"], routed.experts, 1) * t["weight"][:, None],
        {"BLOCK_M": routed.block, "MUL_WEIGHT": True, "TOP_K": 1}, moe_flops(s),
    )  # fmt: skip


@triton.autotune(configs=QUANTISED, key=["N", "K"])
@triton.jit
def fused_moe_quantised_kernel(
    a_ptr, b_ptr, c_ptr, a_scale_ptr, b_scale_ptr, weight_ptr, ids_ptr, expert_ptr, count_ptr, N, K, slots, stride_am,
    stride_ak, stride_be, stride_bk, stride_bn, stride_cm, stride_cn, stride_as_m, stride_as_k, stride_bs_e,
    stride_bs_n, stride_bs_k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, TOP_K: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """fp8 with block scales of both operands, or bf16 with int8 weights and a scale a channel."""
    pid_m, pid_n, padded = routed_tile(tl.program_id(0), count_ptr, N, BLOCK_M, BLOCK_N, GROUP_M)
    if pid_m * BLOCK_M >= padded:
        return
    token = tl.load(ids_ptr + pid_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    token_mask = token < slots
    expert = tl.load(expert_ptr + pid_m).to(tl.int64)
    columns = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    depth = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + token[:, None] // TOP_K * stride_am + depth[None, :] * stride_ak
    b_ptrs = b_ptr + expert * stride_be + (depth[:, None] * stride_bk + columns[None, :] * stride_bn)
    if FP8:
        a_scale_ptrs = a_scale_ptr + token // TOP_K * stride_as_m
        b_scale_ptrs = b_scale_ptr + expert * stride_bs_e + columns // 128 * stride_bs_n
    else:
        b_scale = tl.load(b_scale_ptr + expert * stride_bs_e + columns * stride_bs_n)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=token_mask[:, None] & (depth[None, :] < K - k * BLOCK_K), other=0.0)
        b = tl.load(b_ptrs, mask=depth[:, None] < K - k * BLOCK_K, other=0.0)
        if FP8:
            at = k * BLOCK_K // 128
            a_scale = tl.load(a_scale_ptrs + at * stride_as_k, mask=token_mask, other=0.0)
            block_scale = tl.load(b_scale_ptrs + at * stride_bs_k)
            acc += tl.dot(a, b) * a_scale[:, None] * block_scale[None, :]
        else:
            acc = tl.dot(a, b.to(a.dtype), acc)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if not FP8:
        acc *= b_scale[None, :]
    acc = acc * tl.load(weight_ptr + token, mask=token_mask, other=0.0)[:, None]
    out_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * token[:, None] + stride_cn * out_n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=token_mask[:, None] & (out_n[None, :] < N))


QUANTISED_SIZES = {"T": 4096, "E": 8, "TOP": 2, "N": 4096, "K": 4096}
WHOLE_BLOCKS = {**CHOICES, "N": (256, 512), "K": (256, 512)}


@entry(fused_moe_quantised_kernel, GATHERED, QUANTISED_SIZES, family=FAMILY, choices=WHOLE_BLOCKS,
       dtypes=("float8_e4m3fn",), padded=("c",))  # fmt: skip
def fused_moe_fp8(s: Sizes, dtype: str) -> Problem:
    tensors, routed = moe_tensors(s, dtype, s["T"])
    tensors |= {
        "as": Tensor((s["T"], cdiv(s["K"], 128)), "float32", "uniform"),
        "bs": Tensor((s["E"], cdiv(s["N"], 128), cdiv(s["K"], 128)), "float32", "uniform"),
    }  # fmt: skip

    def reference(t: Tensors) -> Any:
        import torch

        a = t["a"].float() * t["as"].repeat_interleave(128, 1)[:, : s["K"]]
        b = torch.stack([e.float() * blocks_of(scale, *e.shape) for e, scale in zip(t["b"], t["bs"], strict=True)])
        return moe_product(a, b, routed.experts, s["TOP"]) * t["weight"][:, None]

    return Problem(
        tensors,
        {**moe_arguments(s), "a_scale_ptr": "as", "b_scale_ptr": "bs", **strides("as", "stride_as_", "mk"),
         **strides("bs", "stride_bs_", "enk")},
        moe_grid(s, routed), ("c",), reference, {"BLOCK_M": routed.block, "TOP_K": s["TOP"], "FP8": True}, moe_flops(s),
    )  # fmt: skip


@entry(fused_moe_quantised_kernel, GATHERED, {**QUANTISED_SIZES, "T": 128}, family=FAMILY, choices=WHOLE_BLOCKS,
       padded=("a", "c"))  # fmt: skip
def fused_moe_int8_weights(s: Sizes, dtype: str) -> Problem:
    tensors, routed = moe_tensors(s, dtype, s["T"])
    tensors |= {
        "b": Tensor((s["E"], s["N"], s["K"]), "int8", "integers", low=-128, high=128),
        "bs": Tensor((s["E"], s["N"]), "float32", "uniform", scale=0.01),
    }  # fmt: skip

    def reference(t: Tensors) -> Any:
        b = t["b"].float() * t["bs"][:, :, None]
        return moe_product(t["a"], b, routed.experts, s["TOP"]) * t["weight"][:, None]

    return Problem(
        tensors,
        {**moe_arguments(s), "a_scale_ptr": None, "b_scale_ptr": "bs", "stride_as_m": 0, "stride_as_k": 0,
         **strides("bs", "stride_bs_", "en"), "stride_bs_k": 0},
        moe_grid(s, routed), ("c",), reference, {"BLOCK_M": routed.block, "TOP_K": s["TOP"], "FP8": False},
        moe_flops(s),
    )  # fmt: skip


@triton.autotune(configs=USUAL, key=["N", "K"])
@triton.jit
def gathered_descriptor_kernel(
    a_ptr, b_ptr, c_ptr, ids_ptr, expert_ptr, E, N, K, slots, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, TOP_K: tl.constexpr,
):  # fmt: skip
    """Gathered rows of A by pointers, experts' weights by a descriptor that the kernel makes."""
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    token = tl.load(ids_ptr + pid_m * BLOCK_M + tl.arange(0, BLOCK_M))
    token_mask = token < slots
    expert = tl.load(expert_ptr + pid_m)
    b_desc = tl.make_tensor_descriptor(b_ptr, [E * N, K], [K, 1], [BLOCK_N, BLOCK_K])
    row = expert * N + pid_n * BLOCK_N
    a_ptrs = a_ptr + token[:, None] // TOP_K * K + tl.arange(0, BLOCK_K)[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs + k, mask=token_mask[:, None], other=0.0)
        b = b_desc.load([row, k])
        acc = tl.dot(a, b.T, acc)
    out_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + N * token[:, None] + out_n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=token_mask[:, None] & (out_n[None, :] < N))


@entry(gathered_descriptor_kernel, GATHERED, {"T": 8192, "E": 8, "TOP": 2, "N": 4096, "K": 2048}, family=FAMILY,
       choices={**CHOICES, "N": (256, 512), "K": (256, 512)})  # fmt: skip
def fused_moe_weight_descriptor(s: Sizes, dtype: str) -> Problem:
    tensors, routed = moe_tensors(s, dtype, s["T"])
    kept = ("a", "b", "c", "ids", "expert")
    return Problem(
        {name: tensors[name] for name in kept},
        {**{f"{name}_ptr": name for name in kept}, "E": s["E"], "N": s["N"], "K": s["K"], "slots": s["T"] * s["TOP"]},
        lambda c: (len(routed.blocks), cdiv(s["N"], c["BLOCK_N"])), ("c",),
        lambda t: moe_product(t["a"], t["b"], routed.experts, s["TOP"]), {"BLOCK_M": routed.block, "TOP_K": s["TOP"]},
        moe_flops(s),
    )  # fmt: skip


@triton.autotune(configs=tiles((128, 128, 64, 3, 8), (64, 128, 64, 4, 4), (128, 256, 64, 3, 8)), key=["N", "K"])
@triton.jit
def contiguous_experts_kernel(
    a_ptr, b_ptr, c_ptr, owner_ptr, M, N, K, stride_be, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Rows are sorted and padded to 128 an expert already: one look-up a tile, addresses linear in row and column."""
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    expert = tl.load(owner_ptr + pid_m * BLOCK_M // 128).to(tl.int64)
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * K + depth[None, :]
    b_ptrs = b_ptr + expert * stride_be + columns[None, :] * K + depth[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs + k, mask=depth[None, :] + k < K, other=0.0)
        b = tl.load(b_ptrs + k, mask=(columns[None, :] < N) & (depth[:, None] + k < K), other=0.0)
        acc = tl.dot(a, b, acc)
    c_ptrs = c_ptr + rows[:, None] * N + columns[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=columns[None, :] < N)


@entry(contiguous_experts_kernel, AFFINE, {"B": 64, "E": 8, "N": 4096, "K": 2048}, family=FAMILY,
       choices={"B": (4, 7), "E": (2, 4), "N": (128, 200, 512), "K": (128, 200)})  # fmt: skip
def contiguous_experts(s: Sizes, dtype: str) -> Problem:
    """B blocks of 128 rows."""
    m, n, k = 128 * s["B"], s["N"], s["K"]
    owners = [i * s["E"] // s["B"] for i in range(s["B"])]

    def reference(t: Tensors) -> Any:
        import torch

        return torch.cat([t["a"][i * 128 : (i + 1) * 128].float() @ t["b"][e].float().T for i, e in enumerate(owners)])

    return Problem(
        {"a": Tensor((m, k), dtype), "b": Tensor((s["E"], n, k), dtype), "c": output(m, n, dtype=dtype),
         "owner": table(lambda: owners, s["B"])},
        {"a_ptr": "a", "b_ptr": "b", "c_ptr": "c", "owner_ptr": "owner", "M": m, "N": n, "K": k, "stride_be": n * k},
        lambda c: (cdiv(m, c["BLOCK_M"]), cdiv(n, c["BLOCK_N"])), ("c",), reference, {}, 2.0 * m * n * k,
    )  # fmt: skip


SHRINK = [
    triton.Config({"BLOCK_M": m, "BLOCK_K": k, "SPLIT_K": split}, num_stages=stages, num_warps=4)
    for m, k, split, stages in ((16, 256, 8, 3), (32, 128, 8, 3), (64, 64, 1, 4))
]


@triton.autotune(configs=SHRINK, key=["K"], reset_to_zero=["y_ptr"])
@triton.jit
def lora_shrink_kernel(
    x_ptr, a_ptr, y_ptr, order_ptr, start_ptr, count_ptr, K, R, stride_xm, stride_al, stride_ym, scaling,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """x·Aᵀ of each adapter's rows: few columns, K split over programs that add."""
    part = tl.program_id(0) % SPLIT_K
    pid_m = tl.program_id(0) // SPLIT_K
    adapter = tl.program_id(1)
    count = tl.load(count_ptr + adapter)
    if pid_m * BLOCK_M >= count:
        return
    start = tl.load(start_ptr + adapter) + pid_m * BLOCK_M
    lane = tl.arange(0, BLOCK_M)
    rows = tl.load(order_ptr + start + lane, mask=lane < count - pid_m * BLOCK_M, other=0)
    rank = tl.arange(0, BLOCK_R)
    depth = part * BLOCK_K + tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + rows[:, None] * stride_xm + depth[None, :]
    a_ptrs = a_ptr + adapter * stride_al + rank[None, :] * K + depth[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_R), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K * SPLIT_K)):
        left = K - k * BLOCK_K * SPLIT_K
        x = tl.load(x_ptrs, mask=depth[None, :] < left, other=0.0)
        a = tl.load(a_ptrs, mask=(depth[:, None] < left) & (rank[None, :] < R), other=0.0)
        acc += tl.dot(x, a)
        x_ptrs += BLOCK_K * SPLIT_K
        a_ptrs += BLOCK_K * SPLIT_K
    acc *= scaling
    inside = (lane[:, None] < count - pid_m * BLOCK_M) & (rank[None, :] < R)
    tl.atomic_add(y_ptr + rows[:, None] * stride_ym + rank[None, :], acc, mask=inside, sem="relaxed")


def adapters(s: Sizes) -> tuple[list[int], list[list[int]]]:
    """The adapter of each row, and the rows of each adapter."""
    draw = Random(s["M"])
    chosen = [draw.randrange(s["L"]) for _ in range(s["M"])]
    return chosen, [[row for row, a in enumerate(chosen) if a == adapter] for adapter in range(s["L"])]


def lora_tables(s: Sizes) -> dict[str, Tensor]:
    _, rows = adapters(s)
    starts = [sum(map(len, rows[:i])) for i in range(len(rows))]
    return {
        "order": table(lambda: list(itertools.chain(*rows)), s["M"]), "start": table(lambda: starts, s["L"]),
        "count": table(lambda: [len(r) for r in rows], s["L"]),
    }  # fmt: skip


TABLES: dict[str, Argument] = {"order_ptr": "order", "start_ptr": "start", "count_ptr": "count"}
LORA_SIZES = {"M": 2048, "K": 4096, "R": 32, "L": 8}
LORA_CHOICES = {"M": (64, 33, 300), "K": (256, 200, 1024), "R": (16, 24, 64), "L": (2, 5)}


def each_adapter(x: Any, weights: Any, chosen: list[int]) -> Any:
    import torch

    return torch.einsum("mk,mrk->mr", x.float(), weights[torch.tensor(chosen, device=x.device)].float())


@entry(lora_shrink_kernel, GATHERED, LORA_SIZES, family=LORA, choices=LORA_CHOICES, dtypes=("bfloat16", "float16"))
def lora_shrink(s: Sizes, dtype: str) -> Problem:
    m, k, r, layers = s["M"], s["K"], s["R"], s["L"]
    chosen, rows = adapters(s)
    return Problem(
        {"x": Tensor((m, k), dtype), "a": Tensor((layers, r, k), dtype), "y": Tensor((m, r), "float32", "zero"),
         **lora_tables(s)},
        {"x_ptr": "x", "a_ptr": "a", "y_ptr": "y", **TABLES, "K": k, "R": r, "stride_xm": k, "stride_al": r * k,
         "stride_ym": r, "scaling": 0.5},
        lambda c: (cdiv(max(map(len, rows)), c["BLOCK_M"]) * c["SPLIT_K"], layers), ("y",),
        lambda t: 0.5 * each_adapter(t["x"], t["a"], chosen), {"BLOCK_R": max(16, triton.next_power_of_2(r))},
        2.0 * m * k * r,
    )  # fmt: skip


@triton.autotune(configs=tiles((64, 128, 16, 2, 4), (32, 256, 16, 2, 4), (64, 256, 16, 3, 8)), key=["N"])
@triton.jit
def lora_expand_kernel(
    y_ptr, b_ptr, out_ptr, order_ptr, start_ptr, count_ptr, N, R, stride_ym, stride_bl, stride_om,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out += y·Bᵀ of each adapter's rows: a short loop over the rank."""
    across = tl.cdiv(N, BLOCK_N)
    pid_m = tl.program_id(0) // across
    pid_n = tl.program_id(0) % across
    adapter = tl.program_id(1)
    count = tl.load(count_ptr + adapter)
    if pid_m * BLOCK_M >= count:
        return
    lane = tl.arange(0, BLOCK_M)
    mine = lane < count - pid_m * BLOCK_M
    rows = tl.load(order_ptr + tl.load(start_ptr + adapter) + pid_m * BLOCK_M + lane, mask=mine, other=0)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, R, BLOCK_K):
        rank = start + tl.arange(0, BLOCK_K)
        y = tl.load(y_ptr + rows[:, None] * stride_ym + rank[None, :], mask=rank[None, :] < R, other=0.0)
        b = tl.load(b_ptr + adapter * stride_bl + columns[None, :] * R + rank[:, None],
                    mask=(columns[None, :] < N) & (rank[:, None] < R), other=0.0)  # fmt: skip
        acc += tl.dot(y.to(b.dtype), b)
    out_ptrs = out_ptr + rows[:, None] * stride_om + columns[None, :]
    inside = mine[:, None] & (columns[None, :] < N)
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=inside)


@entry(lora_expand_kernel, GATHERED, {"M": 2048, "N": 4096, "R": 32, "L": 8}, family=LORA,
       choices={"M": (64, 33, 300), "N": (256, 200, 1024), "R": (16, 24, 64), "L": (2, 5)})  # fmt: skip
def lora_expand(s: Sizes, dtype: str) -> Problem:
    m, n, r, layers = s["M"], s["N"], s["R"], s["L"]
    chosen, rows = adapters(s)
    return Problem(
        {"y": Tensor((m, r), "float32"), "b": Tensor((layers, n, r), dtype), "out": output(m, n, dtype=dtype),
         **lora_tables(s)},
        {"y_ptr": "y", "b_ptr": "b", "out_ptr": "out", **TABLES, "N": n, "R": r, "stride_ym": r, "stride_bl": n * r,
         "stride_om": n},
        lambda c: (cdiv(max(map(len, rows)), c["BLOCK_M"]) * cdiv(n, c["BLOCK_N"]), layers), ("out",),
        lambda t: each_adapter(t["y"].to(t["b"].dtype), t["b"], chosen), {}, 2.0 * m * n * r,
    )  # fmt: skip
