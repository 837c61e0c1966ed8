"""Linear attention in chunks: gated, a kernel a step, and retention, one kernel.

Tensors are [B, T, H, D], as in their libraries. T is a whole number of chunks.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from corpus_entry import AFFINE, BLOCK, Problem, Sizes, Tensor, Tensors, cdiv, entry, output

LINEAR = "linear attention"
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
