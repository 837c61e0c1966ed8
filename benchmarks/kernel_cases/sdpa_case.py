"""Attention as models call it, forward and backward: ``warpplan.kernels.attention`` against torch's own.

The backward of heads of 64 and 128 is planned; that of heads of 256 is torch's, which runs torch's forward anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernel_cases.bench_case import ELEMENT_BYTES, Launch, Work, norm_ratio
from kernel_cases.bench_rows import BenchRow
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape


@dataclass(frozen=True, eq=False)
class SdpaOperands:
    """``inputs`` query [B, H, L, D], key and value [B, G, L, D] want gradients; ``grad`` is the output's."""

    inputs: tuple[Any, ...]
    grad: Any


class SdpaCase:
    """Forward and backward with the configurations that the call finds."""

    def work(self, row: BenchRow) -> Work:
        """The backward has five products where the forward has two, and moves twice its tensors."""
        asked = _asked(row)
        return Work(3.5 * asked.flops, 3.0 * asked.moved_bytes(ELEMENT_BYTES[row.dtype]))

    def check_row(self, row: BenchRow) -> BenchRow:
        """The row itself: the configuration is looked up by its own sizes."""
        return row

    def operands(self, row: BenchRow) -> SdpaOperands:
        import torch

        asked = _asked(row)

        def made(heads: int) -> Any:
            # As a model's projections leave them: a token's heads are adjacent.
            form = (asked.batch, asked.q_length, heads, asked.head_dim)
            return torch.randn(form, device="cuda", dtype=torch.bfloat16).transpose(1, 2)

        inputs = tuple(made(heads).requires_grad_() for heads in (asked.heads, asked.kv_heads, asked.kv_heads))
        return SdpaOperands(inputs, made(asked.heads))

    def ours(self, row: BenchRow, config: Any, operands: SdpaOperands) -> Launch:
        """``config`` is ignored: the call finds its own."""
        from warpplan.kernels import attention

        return _step(attention, operands, _asked(row))

    def relative_error(self, row: BenchRow, config: Any, operands: SdpaOperands) -> float:
        """Of the output and the gradients, against torch's in bfloat16: the largest."""
        found = self.ours(row, config, operands)()
        wanted = _torch(operands, _asked(row))()
        return max(norm_ratio(mine, torchs.float()) for mine, torchs in zip(found, wanted, strict=True))  # type: ignore[call-overload]

    def peers(self, row: BenchRow) -> Mapping[str, Callable[[SdpaOperands], Launch]]:
        asked = _asked(row)
        return {"torch": lambda o: _torch(o, asked)}

    def uncaptured(self, row: BenchRow) -> Mapping[str, Callable[[SdpaOperands], Launch]]:
        return {}


def _asked(row: BenchRow) -> AttentionShape:
    batch, heads, length, head_dim = row.sizes
    kv_heads = row.option("kv_heads")
    return AttentionShape(
        batch, heads, length, head_dim, heads if kv_heads == "same" else int(kv_heads), length,
        row.option("mask") == "causal",
    )  # fmt: skip


def _torch(o: SdpaOperands, asked: AttentionShape) -> Launch:
    import torch.nn.functional as F

    return _step(F.scaled_dot_product_attention, o, asked)


def _step(attend: Callable[..., Any], o: SdpaOperands, asked: AttentionShape) -> Launch:
    """(output, gradient of each input) of one step."""
    import torch

    def run() -> tuple[Any, ...]:
        out = attend(*o.inputs, is_causal=asked.causal, enable_gqa=asked.kv_heads != asked.heads)
        return (out, *torch.autograd.grad(out, o.inputs, o.grad))

    return run


CASE = SdpaCase()
