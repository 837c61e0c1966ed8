"""Chunked recurrences: gated linear attention, the delta rule, retention, and state-space duality, a kernel a step.

Tensors of linear attention are [B, T, H, D], those of state spaces [B, T, H, P] and [B, T, G, N], as in their
libraries. T is a whole number of chunks.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from corpus_entry import AFFINE, BLOCK, Argument, Problem, Sizes, Tensor, Tensors, cdiv, entry, output

LINEAR, SPACE = "linear attention", "state space"
SIZES = {"B": 8, "T": 4096, "H": 16, "K": 128, "V": 128}
CHOICES = {"B": (1, 2), "T": (128, 192, 512), "H": (2, 3), "K": (64, 128), "V": (64, 128)}
CHUNK = 64


def value_blocks(*wanted: tuple[int, int, int, int]) -> list[triton.Config]:
    """(BK, BV, stages, warps) each."""
    return [triton.Config({"BK": k, "BV": v}, num_stages=stages, num_warps=warps) for k, v, stages, warps in wanted]


LIST = ((64, 64, 3, 4), (64, 64, 2, 2), (32, 64, 4, 4), (64, 32, 3, 4))


def heads(s: Sizes, size: str, dtype: str = "bfloat16", **more: Any) -> Tensor:
    return Tensor((s["B"], s["T"], s["H"], s[size]), dtype, **more)


def gates(s: Sizes) -> Tensor:
    return heads(s, "K", "float32", fill="uniform", scale=-0.5)


def by_chunk(x: Any) -> Any:
    """[B, T, H, ...] as fp32 [B, H, chunks, CHUNK, ...]."""
    return x.float().unflatten(1, (-1, CHUNK)).movedim(3, 1)


def back(x: Any) -> Any:
    """The inverse of :func:`by_chunk`."""
    return x.movedim(1, 3).flatten(1, 2)


def chunk_count(s: Sizes) -> int:
    return s["T"] // CHUNK


def states(s: Sizes, dtype: str) -> Tensor:
    """The state before each chunk."""
    return output(s["B"], chunk_count(s), s["H"], s["K"], s["V"], dtype=dtype)


@triton.autotune(configs=value_blocks(*LIST), key=["K", "V"])
@triton.jit
def gated_states_kernel(
    k_ptr, v_ptr, g_ptr, h_ptr, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """h = diag(exp g) h + kᵀv over chunks, one gate a key dimension; g is summed inside of each chunk."""
    i_k, i_v, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b = i_bh // H
    i_h = i_bh % H
    chunks = tl.cdiv(T, BT)
    dims = i_k * BK + tl.arange(0, BK)
    b_h = tl.zeros([BK, BV], dtype=tl.float32)
    for i_t in range(chunks):
        p_k = tl.make_block_ptr(
            k_ptr + (i_b * T * H + i_h) * K, (K, T), (1, H * K), (i_k * BK, i_t * BT), (BK, BT), (0, 1)
        )
        p_v = tl.make_block_ptr(
            v_ptr + (i_b * T * H + i_h) * V, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0)
        )
        p_g = tl.make_block_ptr(
            g_ptr + (i_b * T * H + i_h) * K, (K, T), (1, H * K), (i_k * BK, i_t * BT), (BK, BT), (0, 1)
        )
        p_h = tl.make_block_ptr(
            h_ptr + ((i_b * chunks + i_t) * H + i_h) * K * V, (K, V), (V, 1), (i_k * BK, i_v * BV), (BK, BV), (1, 0)
        )
        tl.store(p_h, b_h.to(p_h.dtype.element_ty), boundary_check=(0, 1))
        b_k = tl.load(p_k, boundary_check=(0, 1))
        b_v = tl.load(p_v, boundary_check=(0, 1))
        b_g = tl.load(p_g, boundary_check=(0, 1))
        last = min((i_t + 1) * BT, T) - 1
        b_last = tl.load(g_ptr + ((i_b * T + last) * H + i_h) * K + dims, mask=dims < K, other=0.0)
        b_h *= tl.exp(b_last)[:, None]
        b_k = (b_k * tl.exp(b_last[:, None] - b_g)).to(b_k.dtype)
        b_h += tl.dot(b_k, b_v)


def state_grid(s: Sizes) -> Any:
    return lambda c: (cdiv(s["K"], c["BK"]), cdiv(s["V"], c["BV"]), s["B"] * s["H"])


def constants(s: Sizes) -> dict[str, Any]:
    return {"H": s["H"], "K": s["K"], "V": s["V"], "BT": CHUNK}


@entry(gated_states_kernel, BLOCK, SIZES, family=LINEAR, choices=CHOICES, tolerance=2e-2)
def gated_chunk_states(s: Sizes, dtype: str) -> Problem:
    def reference(t: Tensors) -> Any:
        import torch

        k, v, g = (by_chunk(t[name]) for name in "kvg")
        state = torch.zeros(s["B"], s["H"], s["K"], s["V"], device=k.device)
        found = []
        for i in range(chunk_count(s)):
            found.append(state)
            last = g[:, :, i, -1]
            decayed = k[:, :, i] * (last[:, :, None] - g[:, :, i]).exp()
            state = state * last.exp()[..., None] + decayed.transpose(-1, -2) @ v[:, :, i]
        return torch.stack(found, 1)

    return Problem(
        {"k": heads(s, "K", dtype), "v": heads(s, "V", dtype), "g": gates(s),
         "h": states(s, dtype)},
        {"k_ptr": "k", "v_ptr": "v", "g_ptr": "g", "h_ptr": "h", "T": s["T"]}, state_grid(s), ("h",), reference,
        constants(s), 2.0 * s["B"] * s["T"] * s["H"] * s["K"] * s["V"],
    )  # fmt: skip


@triton.autotune(configs=value_blocks(*LIST), key=["K", "V"])
@triton.jit
def gated_output_kernel(
    q_ptr, v_ptr, g_ptr, h_ptr, a_ptr, o_ptr, scale, T, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """o = scale · (q exp g) h + tril(A) v: a loop over key blocks, one product after it."""
    i_v, i_t, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b = i_bh // H
    i_h = i_bh % H
    chunks = tl.cdiv(T, BT)
    b_o = tl.zeros([BT, BV], dtype=tl.float32)
    for i_k in range(tl.cdiv(K, BK)):
        p_q = tl.make_block_ptr(
            q_ptr + (i_b * T * H + i_h) * K, (T, K), (H * K, 1), (i_t * BT, i_k * BK), (BT, BK), (1, 0)
        )
        p_g = tl.make_block_ptr(
            g_ptr + (i_b * T * H + i_h) * K, (T, K), (H * K, 1), (i_t * BT, i_k * BK), (BT, BK), (1, 0)
        )
        p_h = tl.make_block_ptr(
            h_ptr + ((i_b * chunks + i_t) * H + i_h) * K * V, (K, V), (V, 1), (i_k * BK, i_v * BV), (BK, BV), (1, 0)
        )
        b_q = tl.load(p_q, boundary_check=(0, 1))
        b_g = tl.load(p_g, boundary_check=(0, 1))
        b_q = (b_q * scale * tl.exp(b_g)).to(b_q.dtype)
        b_h = tl.load(p_h, boundary_check=(0, 1))
        b_o += tl.dot(b_q, b_h.to(b_q.dtype))
    p_v = tl.make_block_ptr(v_ptr + (i_b * T * H + i_h) * V, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
    p_a = tl.make_block_ptr(a_ptr + (i_b * T * H + i_h) * BT, (T, BT), (H * BT, 1), (i_t * BT, 0), (BT, BT), (1, 0))
    p_o = tl.make_block_ptr(o_ptr + (i_b * T * H + i_h) * V, (T, V), (H * V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0))
    b_v = tl.load(p_v, boundary_check=(0, 1))
    b_a = tl.load(p_a, boundary_check=(0, 1))
    b_a = tl.where(tl.arange(0, BT)[:, None] >= tl.arange(0, BT)[None, :], b_a, 0.0).to(b_v.dtype)
    b_o += tl.dot(b_a, b_v)
    tl.store(p_o, b_o.to(p_o.dtype.element_ty), boundary_check=(0, 1))


def chunk_grid(s: Sizes) -> Any:
    return lambda c: (cdiv(s["V"], c["BV"]), chunk_count(s), s["B"] * s["H"])


def inside(s: Sizes, dtype: str) -> Tensor:
    """A chunk's square of weights, a row a token."""
    return Tensor((s["B"], s["T"], s["H"], CHUNK), dtype, scale=0.2)


@entry(gated_output_kernel, BLOCK, SIZES, family=LINEAR, choices=CHOICES)
def gated_chunk_output(s: Sizes, dtype: str) -> Problem:
    scale = s["K"] ** -0.5

    def reference(t: Tensors) -> Any:
        q, v, g, a = (by_chunk(t[name]) for name in "qvga")
        return back((q * scale * g.exp()) @ t["h"].float().movedim(2, 1) + a.tril() @ v)

    return Problem(
        {"q": heads(s, "K", dtype), "v": heads(s, "V", dtype), "g": gates(s),
         "h": Tensor(states(s, dtype).shape, dtype), "a": inside(s, dtype),
         "o": output(s["B"], s["T"], s["H"], s["V"], dtype=dtype)},
        {**{f"{name}_ptr": name for name in "qvghao"}, "scale": scale, "T": s["T"]}, chunk_grid(s), ("o",), reference,
        constants(s), 2.0 * s["B"] * s["T"] * s["H"] * s["V"] * (s["K"] + CHUNK),
    )  # fmt: skip


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


@triton.autotune(configs=[triton.Config({"BV": v}, num_stages=n, num_warps=w) for v, n, w in
                          ((64, 2, 4), (32, 3, 4), (64, 3, 8))], key=["K", "V"])  # fmt: skip
@triton.jit
def retention_kernel(
    q_ptr, k_ptr, v_ptr, decay_ptr, o_ptr, T, H, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """A fixed decay a head; the state stays in registers and four products read one chunk, by pointers that move on."""
    i_v = tl.program_id(0)
    i_bh = tl.program_id(1)
    base = i_bh // H * T * H + i_bh % H
    rate = tl.load(decay_ptr + i_bh % H)
    rows = tl.arange(0, BT)
    dims = tl.arange(0, K)
    columns = i_v * BV + tl.arange(0, BV)
    q_ptrs = q_ptr + base * K + rows[:, None] * (H * K) + dims[None, :]
    kt_ptrs = k_ptr + base * K + rows[None, :] * (H * K) + dims[:, None]
    v_ptrs = v_ptr + base * V + rows[:, None] * (H * V) + columns[None, :]
    o_ptrs = o_ptr + base * V + rows[:, None] * (H * V) + columns[None, :]
    away = rows[:, None] - rows[None, :]
    inside_decay = tl.where(away >= 0, tl.exp(-rate * away), 0.0)
    from_state = tl.exp(-rate * (rows + 1))
    to_state = tl.exp(-rate * (BT - 1 - rows))
    whole_decay = tl.exp(-rate * BT)
    kv = tl.zeros([K, BV], dtype=tl.float32)
    for _ in range(tl.cdiv(T, BT)):
        q = tl.load(q_ptrs)
        kt = tl.load(kt_ptrs)
        v = tl.load(v_ptrs)
        weights = tl.dot(q, kt) * inside_decay
        o = tl.dot(weights.to(v.dtype), v)
        o += tl.dot(q, kv.to(q.dtype)) * from_state[:, None]
        kv = kv * whole_decay + tl.dot((kt * to_state[None, :]).to(v.dtype), v)
        tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty))
        q_ptrs += BT * H * K
        kt_ptrs += BT * H * K
        v_ptrs += BT * H * V
        o_ptrs += BT * H * V


@entry(retention_kernel, AFFINE, SIZES, family=LINEAR, choices=CHOICES, tolerance=2e-2)
def retention_forward(s: Sizes, dtype: str) -> Problem:
    def reference(t: Tensors) -> Any:
        import torch

        q, k, v = (t[name].float().transpose(1, 2) for name in "qkv")
        at = torch.arange(s["T"], device=q.device)
        decay = torch.exp(-t["decay"][:, None, None] * (at[:, None] - at)).tril()
        return (((q @ k.transpose(-1, -2)) * decay) @ v).transpose(1, 2)

    return Problem(
        {"q": heads(s, "K", dtype, scale=0.3), "k": heads(s, "K", dtype, scale=0.3), "v": heads(s, "V", dtype),
         "decay": Tensor((s["H"],), "float32", "uniform", 0.1),
         "o": output(s["B"], s["T"], s["H"], s["V"], dtype=dtype)},
        {**{f"{name}_ptr": name for name in ("q", "k", "v", "decay", "o")}, "T": s["T"], "H": s["H"]},
        lambda c: (cdiv(s["V"], c["BV"]), s["B"] * s["H"]), ("o",), reference,
        {"K": s["K"], "V": s["V"], "BT": CHUNK},
        2.0 * s["B"] * s["T"] * s["H"] * (CHUNK * (s["K"] + s["V"]) + 2 * s["K"] * s["V"]),
    )  # fmt: skip


SPACES = {"B": 8, "T": 4096, "H": 32, "G": 1, "P": 64, "N": 128}
SPACE_CHOICES = {"B": (1, 2), "T": (256, 512), "H": (2, 4), "P": (64,), "N": (64, 128)}
SPAN = 256
"""Tokens of a chunk of a state space."""


def square(*wanted: tuple[int, int, int, int, int]) -> list[triton.Config]:
    """(BLOCK_M, BLOCK_N, BLOCK_K, stages, warps) each."""
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_stages=stages, num_warps=warps)
        for m, n, k, stages, warps in wanted
    ]


SQUARE = square((64, 128, 64, 3, 4), (128, 64, 32, 4, 4), (64, 64, 32, 4, 4), (64, 64, 64, 3, 4), (128, 64, 64, 3, 8))


def in_spans(x: Any) -> Any:
    """[B, T, H, ...] as fp32 [B, spans, H, SPAN, ...]."""
    return x.float().unflatten(1, (-1, SPAN)).movedim(3, 2)


def space_tensors(s: Sizes, dtype: str) -> dict[str, Tensor]:
    """Step sizes and their decays summed inside of each span are [B, H, spans, SPAN]."""
    b, spans = s["B"], s["T"] // SPAN
    row = (b, s["H"], spans, SPAN)
    shared = Tensor((b, s["T"], s["G"], s["N"]), dtype, scale=0.3)
    return {
        "x": Tensor((b, s["T"], s["H"], s["P"]), dtype), "B": shared, "C": shared,
        "dt": Tensor(row, "float32", "uniform"), "da": Tensor(row, "float32", "uniform", -2.0),
    }  # fmt: skip


@triton.autotune(configs=SQUARE, key=["P", "N"])
@triton.jit
def span_states_kernel(
    x_ptr, b_ptr, states_ptr, dt_ptr, da_ptr, T, H, P, N, SPAN: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """xᵀ (B · exp(da_last − da) · dt) of each span: the sum runs over its tokens, B is scaled in the loop."""
    i_bs = tl.program_id(1)
    i_h = tl.program_id(2)
    spans = T // SPAN
    i_b = i_bs // spans
    i_s = i_bs % spans
    across = tl.cdiv(N, BLOCK_N)
    rows = tl.program_id(0) // across * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens = tl.arange(0, BLOCK_K)
    first = i_b * T + i_s * SPAN
    x_ptrs = x_ptr + ((first + tokens)[None, :] * H + i_h) * P + rows[:, None]
    b_ptrs = b_ptr + (first + tokens)[:, None] * N + columns[None, :]
    at = ((i_b * H + i_h) * spans + i_s) * SPAN
    dt_ptrs = dt_ptr + at + tokens
    da_ptrs = da_ptr + at + tokens
    last = tl.load(da_ptr + at + SPAN - 1)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, SPAN, BLOCK_K):
        x = tl.load(x_ptrs, mask=(rows[:, None] < P) & (tokens[None, :] < SPAN - k), other=0.0)
        b = tl.load(b_ptrs, mask=(tokens[:, None] < SPAN - k) & (columns[None, :] < N), other=0.0).to(tl.float32)
        da = tl.load(da_ptrs, mask=tokens < SPAN - k, other=0.0)
        dt = tl.load(dt_ptrs, mask=tokens < SPAN - k, other=0.0)
        b *= (tl.exp(last - da) * dt)[:, None]
        acc += tl.dot(x, b.to(x.dtype))
        x_ptrs += BLOCK_K * H * P
        b_ptrs += BLOCK_K * N
        dt_ptrs += BLOCK_K
        da_ptrs += BLOCK_K
    out = states_ptr + (i_bs * H + i_h) * P * N + rows[:, None] * N + columns[None, :]
    tl.store(out, acc.to(states_ptr.dtype.element_ty), mask=(rows[:, None] < P) & (columns[None, :] < N))


@entry(span_states_kernel, AFFINE, SPACES, family=SPACE, choices=SPACE_CHOICES)
def space_chunk_states(s: Sizes, dtype: str) -> Problem:
    spans = s["T"] // SPAN

    def reference(t: Tensors) -> Any:
        weight = ((t["da"][..., -1:] - t["da"]).exp() * t["dt"]).transpose(1, 2)
        return in_spans(t["x"]).transpose(-1, -2) @ (in_spans(t["B"]) * weight[..., None])

    tensors = space_tensors(s, dtype)
    kept = {name: tensors[name] for name in ("x", "B", "dt", "da")}
    return Problem(
        {**kept, "states": output(s["B"], spans, s["H"], s["P"], s["N"], dtype="float32")},
        {"x_ptr": "x", "b_ptr": "B", "states_ptr": "states", "dt_ptr": "dt", "da_ptr": "da", "T": s["T"], "H": s["H"],
         "P": s["P"], "N": s["N"]},
        lambda c: (cdiv(s["P"], c["BLOCK_M"]) * cdiv(s["N"], c["BLOCK_N"]), s["B"] * spans, s["H"]), ("states",),
        reference, {"SPAN": SPAN}, 2.0 * s["B"] * s["T"] * s["H"] * s["P"] * s["N"],
    )  # fmt: skip


@triton.autotune(configs=SQUARE, key=["N"])
@triton.jit
def span_products_kernel(
    c_ptr, b_ptr, cb_ptr, T, N, SPAN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """C Bᵀ inside of each span; tiles above the diagonal are skipped."""
    across = tl.cdiv(SPAN, BLOCK_N)
    pid_m = tl.program_id(0) // across
    pid_n = tl.program_id(0) % across
    if pid_n * BLOCK_N >= (pid_m + 1) * BLOCK_M:
        return
    first = tl.program_id(1) * SPAN
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    c_ptrs = c_ptr + (first + rows)[:, None] * N + depth[None, :]
    b_ptrs = b_ptr + (first + columns)[None, :] * N + depth[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(N, BLOCK_K)):
        c = tl.load(c_ptrs, mask=(rows[:, None] < SPAN) & (depth[None, :] < N - k * BLOCK_K), other=0.0)
        b = tl.load(b_ptrs, mask=(columns[None, :] < SPAN) & (depth[:, None] < N - k * BLOCK_K), other=0.0)
        acc += tl.dot(c, b)
        c_ptrs += BLOCK_K
        b_ptrs += BLOCK_K
    out = cb_ptr + tl.program_id(1) * SPAN * SPAN + rows[:, None] * SPAN + columns[None, :]
    tl.store(out, tl.where(rows[:, None] >= columns[None, :], acc, 0.0).to(cb_ptr.dtype.element_ty))


@entry(span_products_kernel, AFFINE, SPACES, family=SPACE, choices=SPACE_CHOICES)
def space_chunk_products(s: Sizes, dtype: str) -> Problem:
    spans = s["B"] * s["T"] // SPAN
    tensors = space_tensors(s, dtype)

    def reference(t: Tensors) -> Any:
        c, b = (t[name].float().reshape(spans, SPAN, s["N"]) for name in "CB")
        return (c @ b.transpose(-1, -2)).tril()

    return Problem(
        {"C": tensors["C"], "B": tensors["B"], "cb": Tensor((spans, SPAN, SPAN), "float32", "zero")},
        {"c_ptr": "C", "b_ptr": "B", "cb_ptr": "cb", "T": s["T"], "N": s["N"]},
        lambda c: (cdiv(SPAN, c["BLOCK_M"]) * cdiv(SPAN, c["BLOCK_N"]), spans), ("cb",), reference, {"SPAN": SPAN},
        2.0 * spans * SPAN * SPAN * s["N"],
    )  # fmt: skip


@triton.autotune(configs=SQUARE, key=["P", "N"])
@triton.jit
def span_scan_kernel(
    cb_ptr, x_ptr, dt_ptr, da_ptr, c_ptr, states_ptr, o_ptr, T, H, P, N: tl.constexpr, SPAN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """What comes in with the state, one product; then a loop over the tokens before, their weights made in the loop."""
    i_bs = tl.program_id(1)
    i_h = tl.program_id(2)
    spans = T // SPAN
    i_b = i_bs // spans
    i_s = i_bs % spans
    across = tl.cdiv(P, BLOCK_N)
    pid_m = tl.program_id(0) // across
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    first = i_b * T + i_s * SPAN
    at = ((i_b * H + i_h) * spans + i_s) * SPAN
    da_m = tl.load(da_ptr + at + rows)
    state_at = tl.arange(0, N)
    c = tl.load(c_ptr + (first + rows)[:, None] * N + state_at[None, :])
    state_ptrs = states_ptr + (i_bs * H + i_h) * P * N + columns[None, :] * N + state_at[:, None]
    state = tl.load(state_ptrs, mask=columns[None, :] < P, other=0.0).to(c.dtype)
    acc = tl.dot(c, state) * tl.exp(da_m)[:, None]
    tokens = tl.arange(0, BLOCK_K)
    cb_ptrs = cb_ptr + i_bs * SPAN * SPAN + rows[:, None] * SPAN + tokens[None, :]
    x_ptrs = x_ptr + ((first + tokens)[:, None] * H + i_h) * P + columns[None, :]
    for k in range(0, min((pid_m + 1) * BLOCK_M, SPAN), BLOCK_K):
        cb = tl.load(cb_ptrs, mask=tokens[None, :] < SPAN - k, other=0.0).to(tl.float32)
        da_k = tl.load(da_ptr + at + k + tokens, mask=tokens < SPAN - k, other=0.0)
        dt_k = tl.load(dt_ptr + at + k + tokens, mask=tokens < SPAN - k, other=0.0)
        cb *= tl.exp(tl.minimum(da_m[:, None] - da_k[None, :], 0.0)) * dt_k[None, :]
        cb = tl.where(rows[:, None] >= (k + tokens)[None, :], cb, 0.0)
        x = tl.load(x_ptrs, mask=(tokens[:, None] < SPAN - k) & (columns[None, :] < P), other=0.0)
        acc += tl.dot(cb.to(x.dtype), x)
        cb_ptrs += BLOCK_K
        x_ptrs += BLOCK_K * H * P
    out = o_ptr + ((first + rows)[:, None] * H + i_h) * P + columns[None, :]
    tl.store(out, acc.to(o_ptr.dtype.element_ty), mask=columns[None, :] < P)


@entry(span_scan_kernel, AFFINE, SPACES, family=SPACE, choices=SPACE_CHOICES)
def space_chunk_scan(s: Sizes, dtype: str) -> Problem:
    spans = s["T"] // SPAN
    tensors = space_tensors(s, dtype)
    kept = {name: tensors[name] for name in ("x", "dt", "da", "C")}

    def reference(t: Tensors) -> Any:
        da, dt = (t[name].transpose(1, 2) for name in ("da", "dt"))
        weights = t["cb"].float().view(s["B"], spans, 1, SPAN, SPAN)
        weights = weights * (da[..., None] - da[..., None, :]).clamp(max=0).exp() * dt[..., None, :]
        entering = (in_spans(t["C"]) @ t["states"].float().transpose(-1, -2)) * da.exp()[..., None]
        return (weights.tril() @ in_spans(t["x"]) + entering).movedim(2, 3).flatten(1, 2)

    arguments: dict[str, Argument] = {
        "cb_ptr": "cb", "x_ptr": "x", "dt_ptr": "dt", "da_ptr": "da", "c_ptr": "C", "states_ptr": "states",
        "o_ptr": "o", "T": s["T"], "H": s["H"], "P": s["P"],
    }  # fmt: skip
    return Problem(
        {**kept, "cb": Tensor((s["B"] * spans, SPAN, SPAN), "float32", scale=0.3),
         "states": Tensor((s["B"], spans, s["H"], s["P"], s["N"]), dtype),
         "o": output(s["B"], s["T"], s["H"], s["P"], dtype=dtype)},
        arguments,
        lambda c: (cdiv(SPAN, c["BLOCK_M"]) * cdiv(s["P"], c["BLOCK_N"]), s["B"] * spans, s["H"]), ("o",), reference,
        {"N": s["N"], "SPAN": SPAN}, 2.0 * s["B"] * s["T"] * s["H"] * s["P"] * (s["N"] + SPAN / 2),
    )  # fmt: skip


@triton.jit
def state_passing_kernel(states_ptr, out_ptr, da_ptr, spans, size, BLOCK: tl.constexpr):
    """The recurrence over spans, elementwise."""
    i_bh = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    state = tl.zeros((BLOCK,), dtype=tl.float32)
    for span in range(spans):
        where = (i_bh * spans + span) * size + at
        new = tl.load(states_ptr + where, mask=at < size, other=0.0)
        tl.store(out_ptr + where, state, mask=at < size)
        state = state * tl.exp(tl.load(da_ptr + i_bh * spans + span)) + new


@entry(state_passing_kernel, AFFINE, {"B": 256, "T": 16, "N": 8192}, family=SPACE, has_dot=False,
       choices={"B": (2, 3), "T": (3, 8), "N": (64, 1000, 8192)},
       configs=[triton.Config({"BLOCK": n}, num_warps=w) for n, w in ((256, 4), (1024, 8))])  # fmt: skip
def space_state_passing(s: Sizes, dtype: str) -> Problem:
    def reference(t: Tensors) -> Any:
        import torch

        found = [torch.zeros_like(t["states"][:, 0])]
        for span in range(s["T"] - 1):
            found.append(found[-1] * t["da"][:, span, None].exp() + t["states"][:, span])
        return torch.stack(found, 1)

    whole = (s["B"], s["T"], s["N"])
    return Problem(
        {"states": Tensor(whole, "float32"), "da": Tensor(whole[:2], "float32", "uniform", -1.0),
         "out": output(*whole, dtype="float32")},
        {"states_ptr": "states", "out_ptr": "out", "da_ptr": "da", "spans": s["T"], "size": s["N"]},
        lambda c: (cdiv(s["N"], c["BLOCK"]), s["B"]), ("out",), reference,
    )  # fmt: skip
