"""A mixture-of-experts layer: a router, and for each token the SwiGLU feed-forward of its best few experts.

The rows of the chosen experts are gathered in expert order, so that each projection of all experts is one grouped
product. Everything stays on the device: the host never waits for a group's size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

GroupedProduct = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(rows [M, K] in expert order, weights [G, N, K], ends int32 [G]) → [M, N]: each row times its expert's weight, where
expert g has the rows ``ends[g - 1]`` to ``ends[g]``. ``experts.py`` has four of them."""


@dataclass(frozen=True)
class LayerSizes:
    """Of one layer and its batch; the defaults are those of DeepSeek's 16B mixture of experts."""

    tokens: int = 16384
    width: int = 2048
    hidden: int = 1408
    experts: int = 64
    top_k: int = 6

    @property
    def rows(self) -> int:
        """Rows of the grouped products: every token once for each of its experts."""
        return self.tokens * self.top_k


@dataclass(frozen=True)
class Routing:
    """Which expert each row belongs to. Row ``i`` in expert order is pair ``order[i]`` of (token, choice), pairs being
    numbered token by token; ``inverse`` leads back. ``weights`` [M] float32 are the router's, in expert order."""

    order: Tensor
    inverse: Tensor
    ends: Tensor
    weights: Tensor
    balance_loss: Tensor


class Router(nn.Module):
    """Softmax over the experts, the best ``top_k`` of them, their weights made to sum to 1. Float32 throughout."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.top_k = sizes.top_k
        self.weight = nn.Parameter(torch.randn(sizes.experts, sizes.width) * sizes.width**-0.5)

    def forward(self, x: Tensor) -> Routing:
        experts = len(self.weight)
        scores = (x.float() @ self.weight.T).softmax(dim=-1)
        weights, chosen = scores.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        expert, order = chosen.flatten().sort(stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=x.device)
        # bincount and a cumulative sum would do as well, but bincount waits for the device.
        ends = torch.searchsorted(expert, torch.arange(experts, device=x.device), right=True, out_int32=True)
        # The load-balancing loss of the Switch transformer (Fedus et al. 2021): 1 where all experts are used alike.
        share = ends.diff(prepend=ends.new_zeros(1)) / len(order)
        balance_loss = experts * (share * scores.mean(dim=0)).sum()
        return Routing(order, inverse, ends, weights.flatten()[order], balance_loss)


class MoELayer(nn.Module):
    """``y[t] = Σ weight · down_e(silu(gate_e(x[t])) · up_e(x[t]))`` over the experts e of token t.

    ``product`` multiplies the rows by their experts' weights: everything else is the same for all implementations.
    """

    def __init__(self, sizes: LayerSizes, product: GroupedProduct, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.product = product
        self.router = Router(sizes)
        e, width, hidden = sizes.experts, sizes.width, sizes.hidden
        self.gate_up = nn.Parameter((torch.randn(e, 2 * hidden, width) * width**-0.5).to(dtype))
        self.down = nn.Parameter((torch.randn(e, width, hidden) * hidden**-0.5).to(dtype))

    def forward(self, x: Tensor) -> tuple[Tensor, Routing]:
        """``x`` [tokens, width] → [tokens, width], and where the tokens went."""
        routing = self.router(x)
        rows = Dispatch.apply(x, routing.order, routing.inverse, self.router.top_k)
        hidden = swiglu(self.product(rows, self.gate_up, routing.ends), routing.weights)
        rows = self.product(hidden, self.down, routing.ends)
        return Combine.apply(rows, routing.order, routing.inverse, self.router.top_k), routing


def on_gpu_compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function``, as one kernel of torch.compile for tensors on a GPU: it is a chain of element-wise operations."""
    compiled = cache(lambda: torch.compile(function, dynamic=False))
    return lambda x, *rest: (compiled() if x.is_cuda else function)(x, *rest)


@on_gpu_compiled
def swiglu(gate_up: Tensor, weights: Tensor) -> Tensor:
    """``silu(gate) · up · weight`` [M, hidden] of ``gate_up`` [M, 2 hidden] and ``weights`` [M]. The router's weight is
    applied here, where rows are shortest; the down projection is linear."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up * weights[:, None]).to(gate_up.dtype)


def gather_rows(x: Tensor, order: Tensor, top_k: int) -> Tensor:
    """Each token's row once for each of its experts, in expert order: [tokens, width] → [M, width]."""
    return x[order // top_k]


@on_gpu_compiled
def sum_of_choices(rows: Tensor, inverse: Tensor, top_k: int) -> Tensor:
    """The sum of each token's rows: [M, width] in expert order → [tokens, width]."""
    return rows[inverse].unflatten(0, (-1, top_k)).sum(dim=1)


class Dispatch(Function):
    """:func:`gather_rows`. Its adjoint is :func:`sum_of_choices`, which gathers, too: autograd's own would add into the
    tokens' gradients with atomics, in an order that changes from run to run."""

    @staticmethod
    def forward(ctx, x, order, inverse, top_k):
        ctx.save_for_backward(inverse)
        ctx.top_k = top_k
        return gather_rows(x, order, top_k)

    @staticmethod
    def backward(ctx, gradient):
        return sum_of_choices(gradient, *ctx.saved_tensors, ctx.top_k), None, None, None


class Combine(Function):
    """:func:`sum_of_choices`, whose adjoint is :func:`gather_rows`."""

    @staticmethod
    def forward(ctx, rows, order, inverse, top_k):
        ctx.save_for_backward(order)
        ctx.top_k = top_k
        return sum_of_choices(rows, inverse, top_k)

    @staticmethod
    def backward(ctx, gradient):
        return gather_rows(gradient, *ctx.saved_tensors, ctx.top_k), None, None, None
