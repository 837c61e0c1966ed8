"""Attention forward in bfloat16 on packed sequences of unlike lengths.

Peer: FlashAttention-2 as PyTorch ships it, by the operator behind ``torch.nn.attention.varlen.varlen_attn``. PyTorch
has no cuDNN attention of packed tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from kernel_cases.bench_case import ELEMENT_BYTES, Launch, Work, like, norm_ratio
from kernel_cases.bench_rows import BenchRow, make_row
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.attention_fwd.kernel import attention_shape

CHECKED_SIZES = (400, 1, 130, 77)


@dataclass(frozen=True, eq=False)
class PackedOperands:
    """``q`` and ``out`` [rows, H, D], ``k`` and ``v`` [rows, G, D]; ``starts`` of the sequences, int32."""

    q: Any
    k: Any
    v: Any
    out: Any
    starts: Any


class PackedCase:
    """attention_fwd of packed sequences and what computes the same."""

    def work(self, row: BenchRow) -> Work:
        asked = attention_shape(row.shape)
        return Work(asked.flops, asked.moved_bytes(ELEMENT_BYTES[row.dtype]))

    def check_row(self, row: BenchRow) -> BenchRow:
        asked = attention_shape(row.shape)
        options = {"mask": row.option("mask"), "sizes": ",".join(map(str, CHECKED_SIZES))}
        if asked.window is not None:
            options["window"] = str(max(CHECKED_SIZES) // 4)
        if asked.kv_heads != asked.heads:
            options["kv_heads"] = "1"
        sizes = (len(CHECKED_SIZES), like(asked.heads, 8), max(CHECKED_SIZES), asked.head_dim)
        return make_row(row.table, row.kernel, sizes, row.dtype, row.split, **options)

    def operands(self, row: BenchRow) -> PackedOperands:
        import torch

        asked, dtype = attention_shape(row.shape), getattr(torch, row.dtype)
        starts = torch.tensor([0, *accumulate(asked.sizes or ())], dtype=torch.int32, device="cuda")

        def made(heads: int) -> Any:
            return torch.randn(asked.q_rows, heads, asked.head_dim, device="cuda", dtype=dtype)

        q, k, v = made(asked.heads), made(asked.kv_heads), made(asked.kv_heads)
        return PackedOperands(q, k, v, torch.full_like(q, float("nan")), starts)

    def ours(self, row: BenchRow, config: Any, operands: PackedOperands) -> Launch:
        from warpplan.kernels.attention_fwd.packed_launch import prepare_packed

        o, asked = operands, attention_shape(row.shape)
        longest = asked.q_length
        return prepare_packed(
            o.q, o.k, o.v, o.starts, o.starts, longest, longest, config, o.out, causal=asked.causal,
            window=asked.window,
        )  # fmt: skip

    def relative_error(self, row: BenchRow, config: Any, operands: PackedOperands) -> float:
        from warpplan.kernels.attention_fwd.reference import packed_reference

        o, asked = operands, attention_shape(row.shape)
        o.out.fill_(float("nan"))
        self.ours(row, config, o)()
        starts = o.starts.tolist()
        wanted, _ = packed_reference(o.q, o.k, o.v, starts, starts, causal=asked.causal, window=asked.window)
        return norm_ratio(o.out, wanted.float())

    def peers(self, row: BenchRow) -> Mapping[str, Callable[[PackedOperands], Launch]]:
        asked = attention_shape(row.shape)
        return {"FlashAttention-2": lambda o: _flash(o, asked)}

    def uncaptured(self, row: BenchRow) -> Mapping[str, Callable[[PackedOperands], Launch]]:
        return {}


def _flash(o: PackedOperands, asked: AttentionShape) -> Launch:
    import torch

    sides = {"window_size_left": asked.left, "window_size_right": asked.right} if asked.window is not None else {}
    return lambda: torch.ops.aten._flash_attention_forward(
        o.q, o.k, o.v, o.starts, o.starts, asked.q_length, asked.q_length, 0.0, asked.causal, False, **sides
    )


CASE = PackedCase()
