"""Attention backward in bfloat16: causal and not, head sizes 64 and 128, shared key heads, a sliding window.

Each side has a forward pass of its own done: ours its result and log-sum-exp, the peers what PyTorch's autograd keeps.
Peers: cuDNN and FlashAttention-2 as PyTorch ships them, by their backward operators' autograd nodes. PyTorch's
attention has no window; FlashAttention's own operators have, so that they are the only peer of such a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from kernel_cases.attention_case import CHECK_LENGTH
from kernel_cases.bench_case import ELEMENT_BYTES, Launch, Work, like, norm_ratio
from kernel_cases.bench_rows import BenchRow, make_row
from kernel_cases.packed_case import CHECKED_SIZES
from warpplan.kernels.attention_bwd.kernel import masked_shape
from warpplan.kernels.attention_bwd.work import PRODUCTS, moved_bytes
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape


@dataclass(frozen=True, eq=False)
class BackwardOperands:
    """``q``, ``o`` and ``do`` [B, H, L, D], ``k`` and ``v`` [B, G, L, D], ``lse`` [B, H, L]; ``results`` are dQ, dK and
    dV, poisoned. Of packed sequences, which begin at ``starts``, [rows, H, D], [rows, G, D] and [H, rows]."""

    q: Any
    k: Any
    v: Any
    o: Any
    do: Any
    lse: Any
    results: tuple[Any, Any, Any]
    starts: Any = None


class AttentionBackwardCase:
    """attention_bwd and what computes the same."""

    def work(self, row: BenchRow) -> Work:
        asked = masked_shape(row.shape)
        return Work(PRODUCTS * asked.flops, moved_bytes(asked, ELEMENT_BYTES[row.dtype]))

    def check_row(self, row: BenchRow) -> BenchRow:
        asked = masked_shape(row.shape)
        options = {"mask": row.option("mask"), "deterministic": row.option("deterministic")}
        if asked.sizes is not None:
            options["sizes"] = ",".join(map(str, CHECKED_SIZES))
        if asked.window is not None:
            options["window"] = str(CHECK_LENGTH // 4)
        if asked.kv_heads != asked.heads:
            options["kv_heads"] = "1"
        sizes = (1, like(asked.heads, 8), like(asked.q_length, CHECK_LENGTH), asked.head_dim)
        if asked.sizes is not None:
            sizes = (len(CHECKED_SIZES), sizes[1], max(CHECKED_SIZES), asked.head_dim)
        return make_row(row.table, row.kernel, sizes, row.dtype, row.split, **options)

    def operands(self, row: BenchRow) -> BackwardOperands:
        import torch

        asked, dtype = masked_shape(row.shape), getattr(torch, row.dtype)
        if asked.sizes is not None:
            return _packed_operands(asked, dtype)

        def made(heads: int, length: int) -> Any:
            return torch.randn(asked.batch, heads, length, asked.head_dim, device="cuda", dtype=dtype)

        q, do = (made(asked.heads, asked.q_length) for _ in range(2))
        k, v = (made(asked.kv_heads, asked.k_length) for _ in range(2))
        sides = _sides(asked)
        o, lse, *_ = torch.ops.aten._flash_attention_forward(
            *(t.transpose(1, 2) for t in (q, *_shared(k, v, asked))), None, None, asked.q_length, asked.k_length, 0.0,
            asked.causal, False, **sides,
        )  # fmt: skip
        results = tuple(torch.full_like(tensor, float("nan")) for tensor in (q, k, v))
        return BackwardOperands(q, k, v, o.transpose(1, 2).contiguous(), do, lse.contiguous(), results)

    def ours(self, row: BenchRow, config: Any, operands: BackwardOperands) -> Launch:
        from warpplan.kernels.attention_bwd.launch import prepare

        o, asked = operands, masked_shape(row.shape)
        if asked.sizes is not None:
            from warpplan.kernels.attention_bwd.packed_sequences.launch import prepare_packed

            longest = asked.q_length
            return prepare_packed(
                o.do, o.q, o.k, o.v, o.o, o.lse, o.starts, o.starts, longest, longest, config, *o.results,
                causal=asked.causal, window=asked.window, deterministic=row.option("deterministic") == "yes",
            )  # fmt: skip
        return prepare(
            o.do, o.q, o.k, o.v, o.o, o.lse, config, *o.results, causal=asked.causal, window=asked.window,
            deterministic=row.option("deterministic") == "yes",
        )  # fmt: skip

    def relative_error(self, row: BenchRow, config: Any, operands: BackwardOperands) -> float:
        from warpplan.kernels.attention_bwd.reference import gradients, packed_gradients

        o, asked = operands, masked_shape(row.shape)
        for result in o.results:
            result.fill_(float("nan"))
        self.ours(row, config, o)()
        options = {"causal": asked.causal, "window": asked.window}
        if asked.sizes is None:
            wanted = gradients(o.do, o.q, o.k, o.v, o.o, **options)
        else:
            starts = o.starts.tolist()
            wanted = packed_gradients(o.do, o.q, o.k, o.v, o.o, starts, starts, **options)
        return max(norm_ratio(found, right.float()) for found, right in zip(o.results, wanted, strict=True))

    def peers(self, row: BenchRow) -> Mapping[str, Callable[[BackwardOperands], Launch]]:
        asked = masked_shape(row.shape)
        if asked.sizes is not None:
            return {"FlashAttention-2": lambda o: _packed_flash(o, asked)}
        flash: dict[str, Callable[[BackwardOperands], Launch]] = {"FlashAttention-2": lambda o: _flash(o, asked)}
        return flash if asked.window is not None else {**flash, "cuDNN": lambda o: _cudnn(o, asked)}

    def uncaptured(self, row: BenchRow) -> Mapping[str, Callable[[BackwardOperands], Launch]]:
        return {}


def _sides(asked: AttentionShape) -> dict[str, int | None]:
    return {"window_size_left": asked.left, "window_size_right": asked.right} if asked.window is not None else {}


def _shared(k: Any, v: Any, asked: AttentionShape) -> tuple[Any, Any]:
    """K and V with a head for each of Q's: FlashAttention's backward operator sums no shared heads' gradients."""
    sharers = asked.heads // asked.kv_heads
    return (k, v) if sharers == 1 else (k.repeat_interleave(sharers, 1), v.repeat_interleave(sharers, 1))


def _cudnn(o: BackwardOperands, asked: AttentionShape) -> Launch:
    """PyTorch's operator behind its cuDNN backend, which takes shared key heads as they are. By autograd it would run
    on the stream of the forward pass, which a CUDA graph that another stream captures must not wait for."""
    import torch

    out, lse, *varlen, seed, offset, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        o.q, o.k, o.v, None, True, 0.0, asked.causal
    )
    return lambda: torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        o.do, o.q, o.k, o.v, out, lse, seed, offset, None, *varlen, 0.0, asked.causal
    )


def _flash(o: BackwardOperands, asked: AttentionShape) -> Launch:
    """PyTorch's operator behind its flash backend: [B, L, H, D], and windows to the left and to the right."""
    import torch

    q, k, v, do = (t.transpose(1, 2) for t in (o.q, *_shared(o.k, o.v, asked), o.do))
    sides = _sides(asked)
    out, lse, state, unused, _ = torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, asked.q_length, asked.k_length, 0.0, asked.causal, False, **sides
    )
    return lambda: torch.ops.aten._flash_attention_backward(
        do, q, k, v, out, lse, None, None, asked.q_length, asked.k_length, 0.0, asked.causal, state, unused, **sides
    )


def _packed_operands(asked: AttentionShape, dtype: Any) -> BackwardOperands:
    """Random ones, with the result and the log-sum-exp of FlashAttention's own forward pass."""
    import torch

    starts = torch.tensor([0, *accumulate(asked.sizes or ())], dtype=torch.int32, device="cuda")

    def made(heads: int) -> Any:
        return torch.randn(asked.q_rows, heads, asked.head_dim, device="cuda", dtype=dtype)

    q, do, k, v = made(asked.heads), made(asked.heads), made(asked.kv_heads), made(asked.kv_heads)
    out, lse, *_ = _packed_forward(q, k, v, starts, asked)
    results = tuple(torch.full_like(tensor, float("nan")) for tensor in (q, k, v))
    return BackwardOperands(q, k, v, out, do, lse.contiguous(), results, starts)


def _packed_forward(q: Any, k: Any, v: Any, starts: Any, asked: AttentionShape) -> Any:
    """(result, log-sum-exp [H, rows], …) by PyTorch's operator behind its variable-length attention."""
    import torch

    sharers = asked.heads // asked.kv_heads
    wide = (t if sharers == 1 else t.repeat_interleave(sharers, 1) for t in (k, v))
    return torch.ops.aten._flash_attention_forward(
        q, *wide, starts, starts, asked.q_length, asked.q_length, 0.0, asked.causal, False, **_sides(asked)
    )


def _packed_flash(o: BackwardOperands, asked: AttentionShape) -> Launch:
    """FlashAttention's backward of packed sequences, K and V with a head for each of Q's."""
    import torch

    sharers = asked.heads // asked.kv_heads
    k, v = (t if sharers == 1 else t.repeat_interleave(sharers, 1) for t in (o.k, o.v))
    out, lse, state, unused, _ = _packed_forward(o.q, o.k, o.v, o.starts, asked)
    longest = asked.q_length
    return lambda: torch.ops.aten._flash_attention_backward(
        o.do, o.q, k, v, out, lse, o.starts, o.starts, longest, longest, 0.0, asked.causal, state, unused,
        **_sides(asked),
    )  # fmt: skip


CASE = AttentionBackwardCase()
