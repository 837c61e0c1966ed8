"""A small model in the style of Llama: RMSNorm, rotary positions, causal attention, SwiGLU, no biases.

The residual stream is a matrix, [tokens, width], from the embedding to the head, so that every product is one of
matrices and the residual can be added in a product's epilogue.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from job_shapes import LlamaSizes
from torch import Tensor, nn
from torch.nn import functional as F

EPSILON = 1e-5
ROTARY_BASE = 10_000.0
AddProduct = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x [T, K], weight [N, K], residual [T, N]) → x · weightᵀ + residual."""
Product = Callable[[Tensor, Tensor], Tensor]
"""(x [T, K], weight [N, K]) → x · weightᵀ."""


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021): each pair of elements of a head turned by an angle that grows with the
    position. Element i is paired with element i + half, as in Llama."""

    def __init__(self, length: int, head: int) -> None:
        super().__init__()
        speeds = ROTARY_BASE ** (-torch.arange(0, head, 2).float() / head)
        angles = torch.outer(torch.arange(length).float(), speeds)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, heads, length, head] → the same, computed in float32."""
        first, second = x.float().chunk(2, dim=-1)
        turned = torch.cat([first * self.cos - second * self.sin, second * self.cos + first * self.sin], dim=-1)
        return turned.to(x.dtype)


class Block(nn.Module):
    """Attention and a feed-forward network, each on the norm of the residual stream and added to it."""

    def __init__(self, sizes: LlamaSizes, add_product: AddProduct) -> None:
        super().__init__()
        self.sizes, self.add_product = sizes, add_product
        width, hidden = sizes.width, sizes.hidden
        self.attention_norm = nn.Parameter(torch.ones(width))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Parameter(torch.empty(width, width))
        self.feed_norm = nn.Parameter(torch.ones(width))
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Parameter(torch.empty(width, hidden))
        self.rotary = Rotary(sizes.length, width // sizes.heads)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self._attention(self.qkv(rms_norm(x, self.attention_norm)))
        x = self.add_product(mixed, self.out, x)
        gate, up = self.gate_up(rms_norm(x, self.feed_norm)).chunk(2, dim=-1)
        return self.add_product(F.silu(gate) * up, self.down, x)

    def _attention(self, qkv: Tensor) -> Tensor:
        sizes = self.sizes
        q, k, v = qkv.view(sizes.batch, sizes.length, 3, sizes.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(self.rotary(q), self.rotary(k), v, is_causal=True)
        return mixed.transpose(1, 2).reshape(sizes.tokens, sizes.width)


class Llama(nn.Module):
    """``trunk`` makes the last norm's rows of a batch of tokens; ``head_product`` multiplies them by the vocabulary."""

    def __init__(self, sizes: LlamaSizes, add_product: AddProduct, head_product: Product) -> None:
        super().__init__()
        self.head_product, self.cross_entropy = head_product, cross_entropy
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes, add_product) for _ in range(sizes.layers))
        self.last_norm = nn.Parameter(torch.ones(sizes.width))
        self.head = nn.Parameter(torch.empty(sizes.vocabulary, sizes.width))
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def trunk(self, tokens: Tensor) -> Tensor:
        """[batch, length] → [tokens, width]."""
        x = self.embedding(tokens).flatten(0, 1)
        for block in self.blocks:
            x = block(x)
        return rms_norm(x, self.last_norm)

    def loss(self, tokens: Tensor, successors: Tensor) -> Tensor:
        """Mean cross-entropy in nats, float32."""
        return self.cross_entropy(self.head_product(self.trunk(tokens), self.head), successors)

    def compile_around_head(self, **options: str) -> None:
        """The layers and the loss become two compiled graphs; between them the head's product is launched as it is."""
        self.trunk = torch.compile(self.trunk, fullgraph=True, dynamic=False, **options)
        self.cross_entropy = torch.compile(cross_entropy, fullgraph=True, dynamic=False, **options)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Rows over their root mean square, times ``weight``, computed in float32."""
    return (F.rms_norm(x.float(), (x.shape[-1],), eps=EPSILON) * weight.float()).to(x.dtype)


def cross_entropy(logits: Tensor, successors: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), successors.flatten())
