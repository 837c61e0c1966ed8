"""Attention forward: pointers, block pointers and descriptors; causal, grouped query heads, ragged lengths, windows."""

from __future__ import annotations

import itertools
from typing import Any

import triton
import triton.language as tl
from corpus_entry import (
    AFFINE,
    BLOCK,
    DEVICE,
    HOST,
    Argument,
    Box,
    Problem,
    Sizes,
    Tensor,
    Tensors,
    cdiv,
    entry,
    output,
    strides,
    table,
)

FAMILY = "attention"
SIZES = {"B": 4, "H": 32, "L": 4096, "D": 128}
CHOICES = {"B": (1, 2), "H": (2, 3), "L": (128, 200, 513, 1024), "D": (64, 128)}
WHOLE = {**CHOICES, "L": (256, 512, 1024)}
LOG2E = 1.4426950408889634


def blocks(*wanted: tuple[int, int, int, int]) -> list[triton.Config]:
    """(BLOCK_M, BLOCK_N, stages, warps) each."""
    return [triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_stages=s, num_warps=w) for m, n, s, w in wanted]


USUAL = ((128, 64, 3, 4), (128, 128, 3, 8), (128, 64, 3, 8), (64, 64, 3, 4), (128, 32, 4, 4), (64, 128, 2, 4))


def reference_scores(q: Any, k: Any, causal: bool) -> Any:
    """Scores with what comes later at -inf, in fp32; the heads of k are repeated."""
    import torch

    scores = q.float() @ k.float().repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2)
    scores = scores * q.shape[-1] ** -0.5
    if causal:
        later = torch.ones_like(scores, dtype=torch.bool).triu(1 + scores.shape[-1] - scores.shape[-2])
        scores = scores.masked_fill(later, float("-inf"))
    return scores


def attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    weights = reference_scores(q, k, causal).softmax(-1)
    return weights @ v.float().repeat_interleave(q.shape[1] // v.shape[1], 1)


def cudnn(causal: bool) -> Any:
    def peer(t: Tensors) -> Any:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def launch() -> object:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(t["q"], t["k"], t["v"], is_causal=causal)

        return launch

    return peer


def attention_flops(s: Sizes, causal: bool) -> float:
    return 4.0 * s["B"] * s["H"] * s["L"] ** 2 * s["D"] * (0.5 if causal else 1.0)


def qkvo(s: Sizes, dtype: str, shared: int = 1) -> dict[str, Tensor]:
    """[B, H, L, D] each; ``shared`` query heads have a head of k and v."""
    b, h, length, d = s["B"], s["H"], s["L"], s["D"]
    heads = Tensor((b, h // shared, length, d), dtype)
    return {"q": Tensor((b, h, length, d), dtype), "k": heads, "v": heads, "o": output(b, h, length, d, dtype=dtype)}


def all_strides(*names: str) -> dict[str, Argument]:
    found: dict[str, Argument] = {f"{name}_ptr": name for name in names}
    for name in names:
        found |= strides(name, f"stride_{name}", "zhmd")
    return found


def head_grid(s: Sizes) -> Any:
    return lambda c: (cdiv(s["L"], c["BLOCK_M"]), s["B"] * s["H"], 1)


@triton.autotune(configs=blocks(*USUAL), key=["L", "D"])
@triton.jit
def pointer_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, scale, stride_qz, stride_qh, stride_qm, stride_qd, stride_kz, stride_kh,
    stride_km, stride_kd, stride_vz, stride_vh, stride_vm, stride_vd, stride_oz, stride_oh, stride_om, stride_od, H, L,
    D: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One loop over the keys up to the diagonal, with masks in each iteration."""
    start_m = tl.program_id(0)
    z = tl.program_id(1) // H
    h = tl.program_id(1) % H
    rows = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    keys = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, D)
    q_ptrs = q_ptr + z * stride_qz + h * stride_qh + rows[:, None] * stride_qm + dims[None, :] * stride_qd
    k_ptrs = k_ptr + z * stride_kz + h * stride_kh + keys[:, None] * stride_km + dims[None, :] * stride_kd
    v_ptrs = v_ptr + z * stride_vz + h * stride_vh + keys[:, None] * stride_vm + dims[None, :] * stride_vd
    q = tl.load(q_ptrs, mask=rows[:, None] < L, other=0.0)
    m_i = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    l_i = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    end = min(L, (start_m + 1) * BLOCK_M) if CAUSAL else L
    for start in range(0, end, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = tl.load(k_ptrs + start * stride_km, mask=(start + keys)[:, None] < L, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where((start + keys)[None, :] < L, scores, float("-inf"))
        if CAUSAL:
            scores = tl.where(rows[:, None] >= (start + keys)[None, :], scores, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(scores, 1))
        p = tl.exp(scores - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(v_ptrs + start * stride_vm, mask=(start + keys)[:, None] < L, other=0.0)
        acc += tl.dot(p.to(v.dtype), v)
        m_i = m_new
    acc = acc / l_i[:, None]
    tl.store(lse_ptr + tl.program_id(1) * L + rows, m_i + tl.log(l_i), mask=rows < L)
    o_ptrs = o_ptr + z * stride_oz + h * stride_oh + rows[:, None] * stride_om + dims[None, :] * stride_od
    tl.store(o_ptrs, acc.to(o_ptr.dtype.element_ty), mask=rows[:, None] < L)


@entry(pointer_kernel, AFFINE, SIZES, family=FAMILY, choices=CHOICES, dtypes=("float16", "bfloat16"),
       padded=("q", "k", "v", "o"))  # fmt: skip
def attention_pointers(s: Sizes, dtype: str) -> Problem:
    return Problem(
        {**qkvo(s, dtype), "lse": output(s["B"], s["H"], s["L"], dtype="float32")},
        {**all_strides("q", "k", "v", "o"), "lse_ptr": "lse", "scale": s["D"] ** -0.5, "H": s["H"], "L": s["L"]},
        head_grid(s), ("o", "lse"),
        lambda t: (attention(t["q"], t["k"], t["v"], True), reference_scores(t["q"], t["k"], True).logsumexp(-1)),
        {"D": s["D"], "CAUSAL": True}, attention_flops(s, True), {"cudnn": cudnn(True)},
    )  # fmt: skip


@triton.jit
def block_pointer_part(
    acc, l_i, m_i, q, k_block, v_block, start_m, qk_scale, L, BLOCK_M: tl.constexpr, D: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGE: tl.constexpr, rows, keys,
):  # fmt: skip
    if STAGE == 1:
        low, high = 0, start_m * BLOCK_M
    elif STAGE == 2:
        low, high = start_m * BLOCK_M, (start_m + 1) * BLOCK_M
        low = tl.multiple_of(low, BLOCK_M)
    else:
        low, high = 0, L
    k_block = tl.advance(k_block, (0, low))
    v_block = tl.advance(v_block, (low, 0))
    for start in range(low, high, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = tl.load(k_block)
        qk = tl.dot(q, k)
        if STAGE == 2:
            qk = qk * qk_scale + tl.where(rows[:, None] >= (start + keys[None, :]), 0, -1.0e6)
            m_new = tl.maximum(m_i, tl.max(qk, 1))
            qk -= m_new[:, None]
        else:
            m_new = tl.maximum(m_i, tl.max(qk, 1) * qk_scale)
            qk = qk * qk_scale - m_new[:, None]
        p = tl.math.exp2(qk)
        alpha = tl.math.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(v_block)
        acc = tl.dot(p.to(v.dtype), v, acc)
        m_i = m_new
        v_block = tl.advance(v_block, (BLOCK_N, 0))
        k_block = tl.advance(k_block, (0, BLOCK_N))
    return acc, l_i, m_i


@triton.autotune(configs=blocks((128, 64, 3, 4), (128, 64, 4, 8), (128, 128, 3, 8), (64, 64, 3, 4), (128, 32, 4, 4)),
                 key=["L", "D"])  # fmt: skip
@triton.jit
def block_pointer_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, stride_qz, stride_qh, stride_qm, stride_qd, stride_kz, stride_kh, stride_km,
    stride_kd, stride_vz, stride_vh, stride_vm, stride_vd, stride_oz, stride_oh, stride_om, stride_od, H, L,
    D: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Two loops: keys before the diagonal, then those on it; no boundary checks."""
    start_m = tl.program_id(0)
    head = (tl.program_id(1) // H).to(tl.int64) * stride_qz + (tl.program_id(1) % H).to(tl.int64) * stride_qh
    q_block = tl.make_block_ptr(
        q_ptr + head, (L, D), (stride_qm, stride_qd), (start_m * BLOCK_M, 0), (BLOCK_M, D), (1, 0)
    )
    v_block = tl.make_block_ptr(v_ptr + head, (L, D), (stride_vm, stride_vd), (0, 0), (BLOCK_N, D), (1, 0))
    k_block = tl.make_block_ptr(k_ptr + head, (D, L), (stride_kd, stride_km), (0, 0), (D, BLOCK_N), (0, 1))
    o_block = tl.make_block_ptr(
        o_ptr + head, (L, D), (stride_om, stride_od), (start_m * BLOCK_M, 0), (BLOCK_M, D), (1, 0)
    )
    rows = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    keys = tl.arange(0, BLOCK_N)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    qk_scale = scale * 1.44269504
    q = tl.load(q_block)
    if CAUSAL:
        acc, l_i, m_i = block_pointer_part(
            acc, l_i, m_i, q, k_block, v_block, start_m, qk_scale, L, BLOCK_M, D, BLOCK_N, 1, rows, keys
        )
        acc, l_i, m_i = block_pointer_part(
            acc, l_i, m_i, q, k_block, v_block, start_m, qk_scale, L, BLOCK_M, D, BLOCK_N, 2, rows, keys
        )
    else:
        acc, l_i, m_i = block_pointer_part(
            acc, l_i, m_i, q, k_block, v_block, start_m, qk_scale, L, BLOCK_M, D, BLOCK_N, 3, rows, keys
        )
    acc = acc / l_i[:, None]
    tl.store(o_block, acc.to(o_ptr.dtype.element_ty))


def with_strides(s: Sizes, dtype: str, causal: bool) -> Problem:
    return Problem(
        qkvo(s, dtype), {**all_strides("q", "k", "v", "o"), "scale": s["D"] ** -0.5, "H": s["H"], "L": s["L"]},
        head_grid(s), ("o",), lambda t: attention(t["q"], t["k"], t["v"], causal), {"D": s["D"], "CAUSAL": causal},
        attention_flops(s, causal), {"cudnn": cudnn(causal)},
    )  # fmt: skip


@entry(block_pointer_kernel, BLOCK, SIZES, family=FAMILY, choices=WHOLE, dtypes=("float16", "bfloat16"))
def attention_block_pointers(s: Sizes, dtype: str) -> Problem:
    return with_strides(s, dtype, causal=True)


@entry(block_pointer_kernel, BLOCK, {**SIZES, "D": 64}, family=FAMILY, choices=WHOLE)
def attention_block_pointers_full(s: Sizes, dtype: str) -> Problem:
    return with_strides(s, dtype, causal=False)


def set_boxes(arguments: dict[str, Any]) -> None:
    m, n, d = arguments["BLOCK_M"], arguments["BLOCK_N"], arguments["D"]
    for name, rows in (("q_desc", m), ("k_desc", n), ("v_desc", n), ("o_desc", m)):
        arguments[name].block_shape = [rows, d]


def hooked(*wanted: tuple[int, int, int, int]) -> list[triton.Config]:
    return [
        triton.Config(dict(c.kwargs), num_stages=c.num_stages, num_warps=c.num_warps, pre_hook=set_boxes)
        for c in blocks(*wanted)
    ]


def keep_whole(configs: list[Any], arguments: dict[str, Any], **more: Any) -> list[Any]:
    """``prune_configs_by``: key blocks that divide the rows' block and the length."""
    given = {**arguments, **more}
    return [
        c for c in configs
        if c.kwargs["BLOCK_M"] % c.kwargs["BLOCK_N"] == 0 and given["L"] % c.kwargs["BLOCK_M"] == 0
    ]  # fmt: skip


@triton.jit
def descriptor_part(
    acc, l_i, m_i, q, k_desc, v_desc, base, start_m, qk_scale, low, high, MASKED: tl.constexpr, rows, keys,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    for start in tl.range(low, high, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = k_desc.load([base + start, 0]).T
        qk = tl.dot(q, k)
        if MASKED:
            qk = qk * qk_scale + tl.where(rows[:, None] >= (start + keys[None, :]), 0, -1.0e6)
            m_new = tl.maximum(m_i, tl.max(qk, 1))
            qk -= m_new[:, None]
        else:
            m_new = tl.maximum(m_i, tl.max(qk, 1) * qk_scale)
            qk = qk * qk_scale - m_new[:, None]
        p = tl.math.exp2(qk)
        alpha = tl.math.exp2(m_i - m_new)
        acc = acc * alpha[:, None]
        v = v_desc.load([base + start, 0])
        acc = tl.dot(p.to(v.dtype), v, acc)
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def described_attention(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, scale, L, D: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    start_m = tl.program_id(0)
    base = tl.program_id(1) * L
    rows = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    keys = tl.arange(0, BLOCK_N)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    qk_scale = scale * 1.44269504
    q = q_desc.load([base + start_m * BLOCK_M, 0])
    before = start_m * BLOCK_M if CAUSAL else L
    acc, l_i, m_i = descriptor_part(
        acc, l_i, m_i, q, k_desc, v_desc, base, start_m, qk_scale, 0, before, False, rows, keys, BLOCK_N
    )
    if CAUSAL:
        acc, l_i, m_i = descriptor_part(
            acc, l_i, m_i, q, k_desc, v_desc, base, start_m, qk_scale, before, before + BLOCK_M, True, rows, keys,
            BLOCK_N,
        )  # fmt: skip
    tl.store(lse_ptr + base + rows, m_i + tl.math.log2(l_i))
    acc = acc / l_i[:, None]
    o_desc.store([base + start_m * BLOCK_M, 0], acc.to(o_desc.dtype))


TUTORIAL = ((128, 64, 2, 4), (128, 64, 3, 8), (128, 128, 2, 8), (128, 128, 3, 8), (64, 64, 3, 4), (128, 32, 4, 4))


@triton.autotune(configs=hooked(*TUTORIAL), key=["L", "D"], prune_configs_by={"early_config_prune": keep_whole})
@triton.jit
def host_kernel(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, scale, L, D: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    described_attention(q_desc, k_desc, v_desc, o_desc, lse_ptr, scale, L, D, CAUSAL, BLOCK_M, BLOCK_N)


def flat(s: Sizes, dtype: str) -> dict[str, Tensor]:
    """[B·H·L, D] each, as the tutorial describes them, and the rows' log-sums."""
    rows = s["B"] * s["H"] * s["L"]
    part = Tensor((rows, s["D"]), dtype)
    return {
        "q": part,
        "k": part,
        "v": part,
        "o": output(rows, s["D"], dtype=dtype),
        "lse": output(rows, dtype="float32"),
    }


def flat_problem(s: Sizes, dtype: str, causal: bool, arguments: dict[str, Argument]) -> Problem:
    shape = (s["B"], s["H"], s["L"], s["D"])

    def reference(t: Tensors) -> Any:
        q, k, v = (t[name].view(shape) for name in "qkv")
        lse = reference_scores(q, k, causal).logsumexp(-1) * LOG2E
        return attention(q, k, v, causal).flatten(0, 2), lse.flatten()

    def peer(t: Tensors) -> Any:
        return cudnn(causal)({name: t[name].view(shape) for name in "qkv"})

    return Problem(
        flat(s, dtype), {**arguments, "lse_ptr": "lse", "scale": s["D"] ** -0.5, "L": s["L"]}, head_grid(s),
        ("o", "lse"), reference, {"D": s["D"], "CAUSAL": causal}, attention_flops(s, causal), {"cudnn": peer},
    )  # fmt: skip


BOXES: dict[str, Argument] = {
    "q_desc": Box("q", ("BLOCK_M", "D")), "k_desc": Box("k", ("BLOCK_N", "D")), "v_desc": Box("v", ("BLOCK_N", "D")),
    "o_desc": Box("o", ("BLOCK_M", "D")),
}  # fmt: skip


@entry(host_kernel, HOST, SIZES, family=FAMILY, choices=WHOLE, dtypes=("float16", "bfloat16"))
def attention_host_descriptors(s: Sizes, dtype: str) -> Problem:
    return flat_problem(s, dtype, True, BOXES)


@entry(host_kernel, HOST, SIZES, family=FAMILY, choices=WHOLE)
def attention_host_descriptors_full(s: Sizes, dtype: str) -> Problem:
    return flat_problem(s, dtype, False, BOXES)


@triton.autotune(configs=blocks(*TUTORIAL), key=["L", "D"], prune_configs_by={"early_config_prune": keep_whole})
@triton.jit
def device_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, scale, rows, L, D: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    q_desc = tl.make_tensor_descriptor(q_ptr, [rows, D], [D, 1], [BLOCK_M, D])
    k_desc = tl.make_tensor_descriptor(k_ptr, [rows, D], [D, 1], [BLOCK_N, D])
    v_desc = tl.make_tensor_descriptor(v_ptr, [rows, D], [D, 1], [BLOCK_N, D])
    o_desc = tl.make_tensor_descriptor(o_ptr, [rows, D], [D, 1], [BLOCK_M, D])
    described_attention(q_desc, k_desc, v_desc, o_desc, lse_ptr, scale, L, D, CAUSAL, BLOCK_M, BLOCK_N)


@entry(device_kernel, DEVICE, SIZES, family=FAMILY, choices=WHOLE, dtypes=("float16", "bfloat16"))
def attention_device_descriptors(s: Sizes, dtype: str) -> Problem:
    pointers = {f"{name}_ptr": name for name in "qkvo"}
    return flat_problem(s, dtype, True, {**pointers, "rows": s["B"] * s["H"] * s["L"]})


@triton.autotune(configs=blocks((128, 64, 3, 8), (64, 64, 3, 4), (128, 128, 3, 8)), key=["H"])
@triton.jit
def ragged_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, starts_ptr, scale, stride_qm, stride_qh, stride_km, stride_kh, stride_om, stride_oh,
    H, SHARED: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Tokens of all sequences in one row, grouped query heads, a sliding window and capped scores."""
    sequence = tl.program_id(2)
    head = tl.program_id(1)
    first = tl.load(starts_ptr + sequence)
    length = tl.load(starts_ptr + sequence + 1) - first
    row = tl.program_id(0) * BLOCK_M
    if row >= length:
        return
    rows = row + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    keys = tl.arange(0, BLOCK_N)
    q = tl.load(
        q_ptr + (first + rows)[:, None] * stride_qm + head * stride_qh + dims[None, :], rows[:, None] < length, 0.0
    )
    kv = first * stride_km + head // SHARED * stride_kh + keys[:, None] * stride_km + dims[None, :]
    m_i = tl.full((BLOCK_M,), -1.0e30, dtype=tl.float32)
    l_i = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    low = max(row - WINDOW, 0) // BLOCK_N * BLOCK_N
    for start in range(low, min(row + BLOCK_M, length), BLOCK_N):
        at = start + keys
        k = tl.load(k_ptr + kv + start * stride_km, mask=at[:, None] < length, other=0.0)
        v = tl.load(v_ptr + kv + start * stride_km, mask=at[:, None] < length, other=0.0)
        scores = tl.dot(q, k.T) * scale
        scores = SOFTCAP * (2.0 / (1.0 + tl.exp(-2.0 * scores / SOFTCAP)) - 1.0)
        seen = (rows[:, None] >= at[None, :]) & (rows[:, None] - at[None, :] < WINDOW)
        scores = tl.where(seen, scores, -1.0e30)
        m_new = tl.maximum(m_i, tl.max(scores, 1))
        p = tl.where(seen, tl.exp(scores - m_new[:, None]), 0.0)
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    o_ptrs = o_ptr + (first + rows)[:, None] * stride_om + head * stride_oh + dims[None, :]
    tl.store(o_ptrs, (acc / l_i[:, None]).to(o_ptr.dtype.element_ty), mask=rows[:, None] < length)


@entry(ragged_kernel, AFFINE, {"B": 8, "H": 32, "L": 4096, "D": 128}, family=FAMILY, padded=(),
       choices={"B": (2, 3), "H": (4, 8), "L": (200, 513), "D": (64, 128)})  # fmt: skip
def attention_ragged_window(s: Sizes, dtype: str) -> Problem:
    """``L`` is the longest sequence; the others are shorter by steps."""
    lengths = [s["L"] - i * s["L"] // (2 * s["B"]) for i in range(s["B"])]
    starts = [0, *itertools.accumulate(lengths)]
    h, d, shared, window, cap = s["H"], s["D"], 4, 128, 30.0

    def reference(t: Tensors) -> Any:
        import torch

        parts = []
        for low, high in itertools.pairwise(starts):
            q, k, v = (t[n][low:high].float().transpose(0, 1) for n in "qkv")
            k, v = (x.repeat_interleave(shared, 0) for x in (k, v))
            scores = cap * torch.tanh(q @ k.transpose(-1, -2) * d**-0.5 / cap)
            away = torch.arange(high - low, device=q.device)
            away = away[:, None] - away
            scores = scores.masked_fill((away < 0) | (away >= window), float("-inf"))
            parts.append((scores.softmax(-1) @ v).transpose(0, 1))
        return torch.cat(parts)

    total = starts[-1]
    kv = Tensor((total, h // shared, d), dtype)
    return Problem(
        {"q": Tensor((total, h, d), dtype), "k": kv, "v": kv, "o": output(total, h, d, dtype=dtype),
         "starts": table(lambda: starts, len(starts))},
        {"q_ptr": "q", "k_ptr": "k", "v_ptr": "v", "o_ptr": "o", "starts_ptr": "starts", "scale": d**-0.5,
         "stride_qm": h * d, "stride_qh": d, "stride_km": h // shared * d, "stride_kh": d, "stride_om": h * d,
         "stride_oh": d, "H": h},
        lambda c: (cdiv(s["L"], c["BLOCK_M"]), h, s["B"]), ("o",), reference,
        {"SHARED": shared, "D": d, "WINDOW": window, "SOFTCAP": cap}, 4.0 * total * window * h * d,
    )  # fmt: skip


@triton.autotune(configs=blocks((128, 64, 2, 8), (64, 64, 3, 4), (128, 128, 2, 8)), key=["L"])
@triton.jit
def biased_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, slope_ptr, o_ptr, scale, H, L, D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A bias tile loaded for each key block, and a slope a head (ALiBi)."""
    head = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    keys = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, D)
    base = head.to(tl.int64) * L * D
    q = tl.load(q_ptr + base + rows[:, None] * D + dims[None, :], mask=rows[:, None] < L, other=0.0)
    slope = tl.load(slope_ptr + head % H)
    m_i = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    l_i = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    for start in range(0, L, BLOCK_N):
        at = start + keys
        k = tl.load(k_ptr + base + at[None, :] * D + dims[:, None], mask=at[None, :] < L, other=0.0)
        bias = tl.load(bias_ptr + rows[:, None] * L + at[None, :], (rows[:, None] < L) & (at[None, :] < L), 0.0)
        scores = tl.dot(q, k) * scale + bias.to(tl.float32)
        scores -= slope * tl.abs(rows[:, None] - at[None, :]).to(tl.float32)
        scores = tl.where(at[None, :] < L, scores, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(scores, 1))
        p = tl.exp(scores - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(v_ptr + base + at[:, None] * D + dims[None, :], mask=at[:, None] < L, other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m_i = m_new
    o_ptrs = o_ptr + base + rows[:, None] * D + dims[None, :]
    tl.store(o_ptrs, (acc / l_i[:, None]).to(o_ptr.dtype.element_ty), mask=rows[:, None] < L)


@entry(biased_kernel, AFFINE, {"B": 4, "H": 16, "L": 2048, "D": 64}, family=FAMILY, choices=CHOICES)
def attention_biased(s: Sizes, dtype: str) -> Problem:
    h, length = s["H"], s["L"]

    def reference(t: Tensors) -> Any:
        import torch

        at = torch.arange(length, device=t["q"].device)
        away = (at[:, None] - at).abs()
        scores = reference_scores(t["q"], t["k"], False) + t["bias"].float() - t["slope"][:, None, None] * away
        return scores.softmax(-1) @ t["v"].float()

    return Problem(
        {**qkvo(s, dtype), "bias": Tensor((length, length), dtype), "slope": Tensor((h,), "float32", "uniform")},
        {"q_ptr": "q", "k_ptr": "k", "v_ptr": "v", "o_ptr": "o", "bias_ptr": "bias", "slope_ptr": "slope",
         "scale": s["D"] ** -0.5, "H": h, "L": length},
        head_grid(s), ("o",), reference, {"D": s["D"]}, attention_flops(s, False),
    )  # fmt: skip
