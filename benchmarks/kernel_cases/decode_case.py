"""Decoding attention in bfloat16: one query or a few, long keys, shared key heads.

Peers: PyTorch's attention by cuDNN and by its flash backend, and flex decoding (compiled flex attention). Of several
queries, PyTorch's causal mask is aligned upper left, where a query would see other keys: FlashAttention's own operator
aligns it bottom right, so that it is the only peer of such a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernel_cases.bench_case import ELEMENT_BYTES, Launch, Work, like, norm_ratio
from kernel_cases.bench_rows import BenchRow, make_row
from warpplan.kernels.attention_decode.kernel import decode_shape

CHECK_KEYS = 1500
"""Of a check: no whole blocks, several of the largest."""


@dataclass(frozen=True, eq=False)
class DecodeOperands:
    """``q`` and ``out`` [B, H, L, D], ``k`` and ``v`` [B, G, N, D]."""

    q: Any
    k: Any
    v: Any
    out: Any


class DecodeCase:
    """attention_decode and what computes the same."""

    def work(self, row: BenchRow) -> Work:
        asked = decode_shape(row.shape)
        return Work(asked.flops, asked.moved_bytes(ELEMENT_BYTES[row.dtype]))

    def check_row(self, row: BenchRow) -> BenchRow:
        asked = decode_shape(row.shape)
        sharers = asked.heads // asked.kv_heads
        options = {"queries": row.option("queries")} | ({"kv_heads": "8"} if sharers > 1 else {})
        sizes = (2, 8 * sharers, like(asked.keys, CHECK_KEYS), asked.head_dim)
        return make_row(row.table, row.kernel, sizes, row.dtype, row.split, **options)

    def operands(self, row: BenchRow) -> DecodeOperands:
        import torch

        asked, dtype = decode_shape(row.shape), getattr(torch, row.dtype)

        def made(heads: int, length: int) -> Any:
            return torch.randn(asked.batch, heads, length, asked.head_dim, device="cuda", dtype=dtype)

        q = made(asked.heads, asked.queries)
        k, v = (made(asked.kv_heads, asked.keys) for _ in range(2))
        return DecodeOperands(q, k, v, torch.full_like(q, float("nan")))

    def ours(self, row: BenchRow, config: Any, operands: DecodeOperands) -> Launch:
        from warpplan.kernels.attention_decode.launch import prepare

        o = operands
        return prepare(o.q, o.k, o.v, config, o.out)

    def relative_error(self, row: BenchRow, config: Any, operands: DecodeOperands) -> float:
        from warpplan.kernels.attention_decode.reference import reference

        o = operands
        o.out.fill_(float("nan"))
        self.ours(row, config, o)()
        wanted, _ = reference(o.q, o.k, o.v)
        return norm_ratio(o.out, wanted.float())

    def peers(self, row: BenchRow) -> Mapping[str, Callable[[DecodeOperands], Launch]]:
        several = decode_shape(row.shape).queries > 1
        return {"FlashAttention-2": _flash} if several else {"FlashAttention-2": _flash, "cuDNN": _cudnn, "flex": _flex}

    def uncaptured(self, row: BenchRow) -> Mapping[str, Callable[[DecodeOperands], Launch]]:
        return {}


def _flash(o: DecodeOperands) -> Launch:
    """PyTorch's operator behind its flash backend, [B, L, H, D], which splits the keys as well."""
    import torch

    q, k, v = (tensor.transpose(1, 2) for tensor in (o.q, o.k, o.v))
    return lambda: torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, q.shape[1] > 1, False
    )


def _cudnn(o: DecodeOperands) -> Launch:
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(o.q, o.k, o.v, enable_gqa=o.q.shape[1] != o.k.shape[1])

    return run


def _flex(o: DecodeOperands) -> Launch:
    """Compiled flex attention takes its decoding kernel where there are few queries."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(o.q, o.k, o.v, enable_gqa=o.q.shape[1] != o.k.shape[1])


CASE = DecodeCase()
