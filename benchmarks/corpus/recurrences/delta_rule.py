"""The delta rule in chunks, a kernel a step: linear attention whose state forgets what a new key replaces.

Tensors are as in :mod:`corpus.recurrences.linear_attention`.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from corpus_entry import BLOCK, Problem, Sizes, Tensor, Tensors, cdiv, entry, output

from corpus.recurrences.linear_attention import (
    CHOICES,
    CHUNK,
    LINEAR,
    LIST,
    SIZES,
    back,
    by_chunk,
    chunk_count,
    chunk_grid,
    constants,
    heads,
    inside,
    states,
    value_blocks,
)


@triton.autotune(configs=[triton.Config({"BK": k}, num_stages=n, num_warps=w) for k, n, w in
                          ((64, 3, 4), (32, 4, 2), (128, 2, 8))], key=["K"])  # fmt: skip
@triton.jit
def key_products_kernel(
    k_ptr, beta_ptr, a_ptr, T, H: tl.constexpr, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr
):
    """A = strictly lower part of beta · k kᵀ inside of each chunk."""
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b = i_bh // H
    i_h = i_bh % H
    rows = tl.arange(0, BT)
    p_beta = tl.make_block_ptr(beta_ptr + i_b * T * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
    b_beta = tl.load(p_beta, boundary_check=(0,))
    b_a = tl.zeros([BT, BT], dtype=tl.float32)
    for i_k in range(tl.cdiv(K, BK)):
        p_k = tl.make_block_ptr(
            k_ptr + (i_b * T * H + i_h) * K, (T, K), (H * K, 1), (i_t * BT, i_k * BK), (BT, BK), (1, 0)
        )
        b_k = tl.load(p_k, boundary_check=(0, 1))
        b_scaled = b_k * b_beta[:, None]
        b_a += tl.dot(b_scaled.to(b_k.dtype), tl.trans(b_k))
    b_a = tl.where(rows[:, None] > rows[None, :], b_a, 0.0)
    p_a = tl.make_block_ptr(a_ptr + (i_b * T * H + i_h) * BT, (T, BT), (BT * H, 1), (i_t * BT, 0), (BT, BT), (1, 0))
    tl.store(p_a, b_a.to(p_a.dtype.element_ty), boundary_check=(0, 1))


@entry(key_products_kernel, BLOCK, SIZES, family=LINEAR, choices=CHOICES)
def delta_key_products(s: Sizes, dtype: str) -> Problem:
    def reference(t: Tensors) -> Any:
        k = by_chunk(t["k"])
        return back(((k * by_chunk(t["beta"])[..., None]) @ k.transpose(-1, -2)).tril(-1))

    return Problem(
        {"k": heads(s, "K", dtype), "beta": Tensor((s["B"], s["T"], s["H"]), "float32", "uniform"),
         "a": output(s["B"], s["T"], s["H"], CHUNK, dtype="float32")},
        {"k_ptr": "k", "beta_ptr": "beta", "a_ptr": "a", "T": s["T"]}, lambda c: (chunk_count(s), s["B"] * s["H"]),
        ("a",), reference, {"H": s["H"], "K": s["K"], "BT": CHUNK}, 2.0 * s["B"] * s["T"] * s["H"] * s["K"] * CHUNK,
    )  # fmt: skip


@triton.jit
def transformed_kernel(
    k_ptr, v_ptr, beta_ptr, a_ptr, w_ptr, u_ptr, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """u = A (beta v) and w = A (beta k): two loops over column blocks, each product stored at once."""
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b = i_bh // H
    i_h = i_bh % H
    p_beta = tl.make_block_ptr(beta_ptr + i_b * T * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
    p_a = tl.make_block_ptr(a_ptr + (i_b * T * H + i_h) * BT, (T, BT), (H * BT, 1), (i_t * BT, 0), (BT, BT), (1, 0))
    b_beta = tl.load(p_beta, boundary_check=(0,))
    b_a = tl.load(p_a, boundary_check=(0, 1))
    for i_v in range(tl.cdiv(V, BV)):
        at = (i_t * BT, i_v * BV)
        p_v = tl.make_block_ptr(v_ptr + (i_b * T * H + i_h) * V, (T, V), (H * V, 1), at, (BT, BV), (1, 0))
        p_u = tl.make_block_ptr(u_ptr + (i_b * T * H + i_h) * V, (T, V), (H * V, 1), at, (BT, BV), (1, 0))
        b_v = tl.load(p_v, boundary_check=(0, 1))
        b_u = tl.dot(b_a, (b_v * b_beta[:, None]).to(b_v.dtype))
        tl.store(p_u, b_u.to(p_u.dtype.element_ty), boundary_check=(0, 1))
    for i_k in range(tl.cdiv(K, BK)):
        at_k = (i_t * BT, i_k * BK)
        p_k = tl.make_block_ptr(k_ptr + (i_b * T * H + i_h) * K, (T, K), (H * K, 1), at_k, (BT, BK), (1, 0))
        p_w = tl.make_block_ptr(w_ptr + (i_b * T * H + i_h) * K, (T, K), (H * K, 1), at_k, (BT, BK), (1, 0))
        b_k = tl.load(p_k, boundary_check=(0, 1))
        b_w = tl.dot(b_a, (b_k * b_beta[:, None]).to(b_k.dtype))
        tl.store(p_w, b_w.to(p_w.dtype.element_ty), boundary_check=(0, 1))


@entry(transformed_kernel, BLOCK, SIZES, family=LINEAR, choices=CHOICES, configs=value_blocks(*LIST))
def delta_transformed(s: Sizes, dtype: str) -> Problem:
    def reference(t: Tensors) -> Any:
        a, beta = by_chunk(t["a"]), by_chunk(t["beta"])[..., None]
        return back(a @ (by_chunk(t["k"]) * beta)), back(a @ (by_chunk(t["v"]) * beta))

    whole = (s["B"], s["T"], s["H"])
    return Problem(
        {"k": heads(s, "K", dtype), "v": heads(s, "V", dtype), "beta": Tensor(whole, "float32", "uniform"),
         "a": inside(s, dtype), "w": output(*whole, s["K"], dtype=dtype), "u": output(*whole, s["V"], dtype=dtype)},
        {**{f"{name}_ptr": name for name in ("k", "v", "beta", "a", "w", "u")}, "T": s["T"]},
        lambda c: (chunk_count(s), s["B"] * s["H"]), ("w", "u"), reference, constants(s),
        2.0 * s["B"] * s["T"] * s["H"] * (s["K"] + s["V"]) * CHUNK,
    )  # fmt: skip


@triton.autotune(configs=[triton.Config({"BV": v}, num_stages=n, num_warps=w) for v, n, w in
                          ((64, 2, 4), (32, 3, 4), (64, 3, 4), (32, 4, 2))], key=["K", "V"])  # fmt: skip
@triton.jit
def delta_states_kernel(
    k_ptr, u_ptr, w_ptr, g_ptr, new_ptr, h_ptr, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BT: tl.constexpr, BV: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Chunk by chunk: v = u − w h, then h = exp(g) h + kᵀ v, with one gate a head; the state crosses two products."""
    i_v, i_bh = tl.program_id(0), tl.program_id(1)
    i_b = i_bh // H
    i_h = i_bh % H
    chunks = tl.cdiv(T, BT)
    b_h = tl.zeros([K, BV], dtype=tl.float32)
    for i_t in range(chunks):
        p_h = tl.make_block_ptr(
            h_ptr + ((i_b * chunks + i_t) * H + i_h) * K * V, (K, V), (V, 1), (0, i_v * BV), (K, BV), (1, 0)
        )
        tl.store(p_h, b_h.to(p_h.dtype.element_ty), boundary_check=(0, 1))
        p_w = tl.make_block_ptr(w_ptr + (i_b * T * H + i_h) * K, (T, K), (H * K, 1), (i_t * BT, 0), (BT, K), (1, 0))
        p_u = tl.make_block_ptr(
            u_ptr + (i_b * T * H + i_h) * V, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0)
        )
        p_new = tl.make_block_ptr(
            new_ptr + (i_b * T * H + i_h) * V, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0)
        )
        b_w = tl.load(p_w, boundary_check=(0, 1))
        b_v = tl.load(p_u, boundary_check=(0, 1)) - tl.dot(b_w, b_h.to(b_w.dtype))
        tl.store(p_new, b_v.to(p_new.dtype.element_ty), boundary_check=(0, 1))
        if GATED:
            rows = i_t * BT + tl.arange(0, BT)
            last = tl.load(g_ptr + (i_b * T + min((i_t + 1) * BT, T) - 1) * H + i_h)
            b_g = tl.load(g_ptr + (i_b * T + rows) * H + i_h, mask=rows < T, other=0.0)
            b_v = b_v * tl.exp(last - b_g)[:, None]
            b_h = b_h * tl.exp(last)
        p_k = tl.make_block_ptr(k_ptr + (i_b * T * H + i_h) * K, (K, T), (1, H * K), (0, i_t * BT), (K, BT), (0, 1))
        b_k = tl.load(p_k, boundary_check=(0, 1))
        b_h += tl.dot(b_k, b_v.to(b_k.dtype))


@entry(delta_states_kernel, BLOCK, SIZES, family=LINEAR, choices=CHOICES, tolerance=2e-2)
def delta_chunk_states(s: Sizes, dtype: str) -> Problem:
    def reference(t: Tensors) -> Any:
        import torch

        k, u, w, g = (by_chunk(t[name]) for name in "kuwg")
        state = torch.zeros(s["B"], s["H"], s["K"], s["V"], device=k.device)
        before, new = [], []
        for i in range(chunk_count(s)):
            before.append(state)
            new.append(u[:, :, i] - w[:, :, i] @ state)
            last = g[:, :, i, -1]
            decayed = new[-1] * (last[..., None] - g[:, :, i]).exp()[..., None]
            state = state * last.exp()[..., None, None] + k[:, :, i].transpose(-1, -2) @ decayed
        return back(torch.stack(new, 2)), torch.stack(before, 1)

    whole = (s["B"], s["T"], s["H"])
    return Problem(
        {"k": heads(s, "K", dtype, scale=0.1), "u": heads(s, "V", dtype), "w": heads(s, "K", dtype, scale=0.05),
         "g": Tensor(whole, "float32", "uniform", -0.5), "new": output(*whole, s["V"], dtype=dtype),
         "h": states(s, dtype)},
        {**{f"{name}_ptr": name for name in ("k", "u", "w", "g", "new", "h")}, "T": s["T"]},
        lambda c: (cdiv(s["V"], c["BV"]), s["B"] * s["H"]), ("new", "h"), reference,
        {**constants(s), "GATED": True}, 4.0 * s["B"] * s["T"] * s["H"] * s["K"] * s["V"],
    )  # fmt: skip


@triton.autotune(configs=value_blocks(*LIST), key=["K", "V"])
@triton.jit
def delta_output_kernel(
    q_ptr, k_ptr, v_ptr, h_ptr, g_ptr, o_ptr, scale, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """o = scale (exp(g) q h + tril(q kᵀ exp(g − gᵀ)) v): a loop with two products into two accumulators."""
    i_v, i_t, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b = i_bh // H
    i_h = i_bh % H
    chunks = tl.cdiv(T, BT)
    b_o = tl.zeros([BT, BV], dtype=tl.float32)
    b_a = tl.zeros([BT, BT], dtype=tl.float32)
    for i_k in range(tl.cdiv(K, BK)):
        p_q = tl.make_block_ptr(
            q_ptr + (i_b * T * H + i_h) * K, (T, K), (H * K, 1), (i_t * BT, i_k * BK), (BT, BK), (1, 0)
        )
        p_k = tl.make_block_ptr(
            k_ptr + (i_b * T * H + i_h) * K, (K, T), (1, H * K), (i_k * BK, i_t * BT), (BK, BT), (0, 1)
        )
        p_h = tl.make_block_ptr(
            h_ptr + ((i_b * chunks + i_t) * H + i_h) * K * V, (K, V), (V, 1), (i_k * BK, i_v * BV), (BK, BV), (1, 0)
        )
        b_q = tl.load(p_q, boundary_check=(0, 1))
        b_k = tl.load(p_k, boundary_check=(0, 1))
        b_h = tl.load(p_h, boundary_check=(0, 1))
        b_o += tl.dot(b_q, b_h)
        b_a += tl.dot(b_q, b_k)
    rows = tl.arange(0, BT)
    b_g = tl.load(g_ptr + (i_b * T + i_t * BT + rows) * H + i_h)
    b_o = b_o * tl.exp(b_g)[:, None]
    b_a = tl.where(rows[:, None] >= rows[None, :], b_a * tl.exp(b_g[:, None] - b_g[None, :]), 0.0)
    p_v = tl.make_block_ptr(v_ptr + (i_b * T * H + i_h) * V, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
    p_o = tl.make_block_ptr(o_ptr + (i_b * T * H + i_h) * V, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
    b_v = tl.load(p_v, boundary_check=(0, 1))
    b_o = b_o * scale + tl.dot(b_a.to(b_v.dtype), b_v) * scale
    tl.store(p_o, b_o.to(p_o.dtype.element_ty), boundary_check=(0, 1))


@entry(delta_output_kernel, BLOCK, SIZES, family=LINEAR, choices=CHOICES)
def delta_chunk_output(s: Sizes, dtype: str) -> Problem:
    scale = s["K"] ** -0.5

    def reference(t: Tensors) -> Any:
        q, k, v, g = (by_chunk(t[name]) for name in "qkvg")
        weights = (q @ k.transpose(-1, -2) * (g[..., None] - g[..., None, :]).exp()).tril()
        return back((g.exp()[..., None] * (q @ t["h"].float().movedim(2, 1)) + weights @ v) * scale)

    whole = (s["B"], s["T"], s["H"])
    return Problem(
        {"q": heads(s, "K", dtype), "k": heads(s, "K", dtype), "v": heads(s, "V", dtype),
         "h": Tensor(states(s, dtype).shape, dtype), "g": Tensor(whole, "float32", "uniform", -0.5),
         "o": output(*whole, s["V"], dtype=dtype)},
        {**{f"{name}_ptr": name for name in "qkvhgo"}, "scale": scale, "T": s["T"]}, chunk_grid(s), ("o",), reference,
        constants(s), 2.0 * s["B"] * s["T"] * s["H"] * (s["K"] * s["V"] + CHUNK * (s["K"] + s["V"])),
    )  # fmt: skip
