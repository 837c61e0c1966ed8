"""Attention forward in bfloat16 and fp8: causal and not, head sizes 64 to 256, shared key heads, a sliding window.

Peers: cuDNN and FlashAttention-2 as PyTorch ships them. PyTorch's attention has no window; FlashAttention's own
operator has, so that it is the only peer of such a row. PyTorch ships no attention in fp8: there the peers have the
same operands in bfloat16, before they were rounded. Ours has one scale for each tensor, and the pass over V is within
its time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernel_cases.bench_case import ELEMENT_BYTES, Launch, Work, like, norm_ratio
from kernel_cases.bench_rows import BenchRow, make_row
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.attention_fwd.kernel import attention_shape

CHECK_LENGTH = 400
"""Of a check: no whole tiles, several of the largest."""
E4M3_MAX = 448.0
"""The largest number of float8_e4m3fn."""


@dataclass(frozen=True, eq=False)
class AttentionOperands:
    """``q`` and ``out`` [B, H, L, D], ``k`` and ``v`` [B, G, L, D]; of fp8 their ``scales``. ``plain`` are Q, K and V
    as peers take them."""

    q: Any
    k: Any
    v: Any
    out: Any
    plain: tuple[Any, Any, Any]
    scales: tuple[Any, Any, Any] | None = None


class AttentionCase:
    """attention_fwd and what computes the same."""

    def work(self, row: BenchRow) -> Work:
        asked = attention_shape(row.shape)
        return Work(asked.flops, asked.moved_bytes(ELEMENT_BYTES[row.dtype]))

    def check_row(self, row: BenchRow) -> BenchRow:
        asked = attention_shape(row.shape)
        heads = like(asked.heads, 8)
        options = {"mask": row.option("mask")}
        if asked.window is not None:
            options["window"] = str(CHECK_LENGTH // 4)
        if asked.kv_heads != asked.heads:
            options["kv_heads"] = "1"
        sizes = (1, heads, like(asked.q_length, CHECK_LENGTH), asked.head_dim)
        return make_row(row.table, row.kernel, sizes, row.dtype, row.split, **options)

    def operands(self, row: BenchRow) -> AttentionOperands:
        import torch

        asked = attention_shape(row.shape)

        def made(heads: int, length: int) -> Any:
            return torch.randn(asked.batch, heads, length, asked.head_dim, device="cuda", dtype=torch.bfloat16)

        plain = (made(asked.heads, asked.q_length), *(made(asked.kv_heads, asked.k_length) for _ in range(2)))
        out = torch.full_like(plain[0], float("nan"))
        if row.dtype != "float8_e4m3fn":
            return AttentionOperands(*plain, out, plain)
        scales = tuple(tensor.abs().amax().float() / E4M3_MAX for tensor in plain)
        q, k, v = ((t.float() / s).to(torch.float8_e4m3fn) for t, s in zip(plain, scales, strict=True))
        return AttentionOperands(q, k, v, out, plain, scales)

    def ours(self, row: BenchRow, config: Any, operands: AttentionOperands) -> Launch:
        from warpplan.kernels.attention_fwd.launch import prepare

        o, asked = operands, attention_shape(row.shape)
        return prepare(o.q, o.k, o.v, config, o.out, causal=asked.causal, window=asked.window, scales=o.scales)

    def relative_error(self, row: BenchRow, config: Any, operands: AttentionOperands) -> float:
        from warpplan.kernels.attention_fwd.reference import reference

        o, asked = operands, attention_shape(row.shape)
        o.out.fill_(float("nan"))
        self.ours(row, config, o)()
        wanted, _ = reference(o.q, o.k, o.v, causal=asked.causal, window=asked.window, scales=o.scales)
        return norm_ratio(o.out, wanted.float())

    def peers(self, row: BenchRow) -> Mapping[str, Callable[[AttentionOperands], Launch]]:
        asked = attention_shape(row.shape)
        peers: dict[str, Callable[[AttentionOperands], Launch]] = {"FlashAttention-2": lambda o: _flash(o, asked)}
        if asked.window is None:
            peers = {"cuDNN": lambda o: _cudnn(o, asked), **peers}
        wide = " bfloat16" if row.dtype == "float8_e4m3fn" else ""
        return {name + wide: make for name, make in peers.items()}

    def uncaptured(self, row: BenchRow) -> Mapping[str, Callable[[AttentionOperands], Launch]]:
        return {}


def _cudnn(o: AttentionOperands, asked: AttentionShape) -> Launch:
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(
                *o.plain, is_causal=asked.causal, enable_gqa=asked.kv_heads != asked.heads
            )

    return run


def _flash(o: AttentionOperands, asked: AttentionShape) -> Launch:
    """PyTorch's operator behind its flash backend: [B, L, H, D], and windows to the left and to the right."""
    import torch

    q, k, v = (tensor.transpose(1, 2) for tensor in o.plain)
    sides = {"window_size_left": asked.left, "window_size_right": asked.right} if asked.window is not None else {}
    return lambda: torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, asked.q_length, asked.k_length, 0.0, asked.causal, False, **sides
    )


CASE = AttentionCase()
