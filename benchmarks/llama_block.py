"""A decoder block of Llama 3 8B as torch writes it: norms, rotary positions, grouped-query attention, SwiGLU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Attention = Callable[..., Tensor]
"""As ``torch.nn.functional.scaled_dot_product_attention``: (q, k, v, is_causal=, enable_gqa=)."""
EPSILON = 1e-5
ROTARY_BASE = 500_000.0


@dataclass(frozen=True)
class BlockSizes:
    """Llama 3 8B's by default (Grattafiori et al. 2024, table 3)."""

    batch: int
    length: int
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14336

    @property
    def head(self) -> int:
        return self.width // self.heads

    @property
    def flops(self) -> int:
        """Of products and causal attention, forward and backward; the backward pass has 2 and 2.5 times as many."""
        tokens = self.batch * self.length
        weights = self.width * (self.width + 2 * self.kv_heads * self.head + self.width + 3 * self.hidden)
        attention = 2 * self.batch * self.heads * self.length**2 * self.head  # half of 4 · L² · D
        return 3 * 2 * tokens * weights + round(3.5 * attention)


class DecoderBlock(nn.Module):
    """[batch, length, width] → the same."""

    def __init__(self, sizes: BlockSizes, attention: Attention) -> None:
        super().__init__()
        self.sizes, self.attention = sizes, attention
        width, kv = sizes.width, sizes.kv_heads * sizes.head
        self.attention_norm, self.feed_norm = nn.RMSNorm(width, EPSILON), nn.RMSNorm(width, EPSILON)
        self.qkv = nn.Linear(width, width + 2 * kv, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, width, bias=False)
        speeds = ROTARY_BASE ** (-torch.arange(0, sizes.head, 2).double() / sizes.head)
        angles = torch.outer(torch.arange(sizes.length).double(), speeds)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self._mixed(self.qkv(self.attention_norm(x))))
        gate, up = self.gate_up(self.feed_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    def _mixed(self, qkv: Tensor) -> Tensor:
        s = self.sizes
        heads = qkv.view(s.batch, s.length, s.heads + 2 * s.kv_heads, s.head).transpose(1, 2)
        q, k, v = heads.split([s.heads, s.kv_heads, s.kv_heads], dim=1)
        mixed = self.attention(self._turned(q), self._turned(k), v, is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2).reshape(s.batch, s.length, s.width)

    def _turned(self, x: Tensor) -> Tensor:
        """Rotary positions (Su et al. 2021) on [batch, heads, length, head], in float32."""
        first, second = x.float().chunk(2, dim=-1)
        cos, sin = self.cos.to(first), self.sin.to(first)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def block(sizes: BlockSizes, attention: Attention, device: str, dtype: torch.dtype) -> DecoderBlock:
    """The same weights for the same sizes, whatever the attention and the dtype: drawn in bfloat16."""
    torch.manual_seed(0)
    with torch.device(device):
        made = DecoderBlock(sizes, attention)
    for weight in made.parameters():
        weight.data = weight.data.bfloat16().to(dtype)
    return made


def gradients(step: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor, dy: Tensor) -> dict[str, Tensor]:
    """The block's output, the gradient of what it reads, and of its weights by their names."""
    x = x.detach().requires_grad_()
    module.zero_grad(set_to_none=True)
    y = step(x)
    y.backward(dy)
    found: dict[str, Any] = {"output": y.detach(), "input": x.grad}
    return found | {name: weight.grad for name, weight in module.named_parameters()}


def relative_errors(found: dict[str, Tensor], right: dict[str, Tensor]) -> dict[str, float]:
    """‖found − right‖ / ‖right‖ of each, in float32; infinite where something is no number."""
    errors = {}
    for name, exact in right.items():
        error = ((found[name].float() - exact.float()).norm() / exact.float().norm()).item()
        errors[name] = error if error == error else float("inf")
    return errors
