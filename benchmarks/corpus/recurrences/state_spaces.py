"""State-space duality in spans of tokens, a kernel a step.

Tensors are [B, T, H, P] and [B, T, G, N], as in their libraries. T is a whole number of spans.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from corpus_entry import AFFINE, Argument, Problem, Sizes, Tensor, Tensors, cdiv, entry, output

SPACE = "state space"
SPACES = {"B": 8, "T": 4096, "H": 32, "G": 1, "P": 64, "N": 128}
SPACE_CHOICES = {"B": (1, 2), "T": (256, 512), "H": (2, 4), "P": (64,), "N": (64, 128)}
SPAN = 256
"""Tokens of a span."""


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
