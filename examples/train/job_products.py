"""The products of the model that are not ``nn.Linear``: the two that add the residual, and the head's.

``add_planned`` runs ``gemm_bias_act`` with the residual in its epilogue, as one operator under ``torch.compile``;
``add_with_torch`` is the same by torch. ``pointer_product`` launches somebody else's kernel. Where there is no Hopper
GPU the first two are equal, and the third is torch's.

SwiGLU, which ``gemm_bias_act`` has as well, is not fused: its backward needs the product before the activation, which
a fused forward does not keep.
"""

from __future__ import annotations

import torch
from job_shapes import residual_shape
from torch import Tensor
from torch.nn import functional as F

from warpplan.kernels.linear_layer.autograd import linear_operator
from warpplan.kernels.linear_layer.products import hopper
from warpplan.kernels.plan_source import configuration


def add_with_torch(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """x · weightᵀ + residual, rounded once."""
    return torch.addmm(residual, x, weight.t())


@torch.library.custom_op("warpplan_example::add_product", mutates_args=())
def add_planned(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """x [T, K] · weight [N, K]ᵀ + residual [T, N], rounded once; differentiable by each."""
    if not hopper(x.device.index if x.is_cuda else None):
        return add_with_torch(x, weight, residual)
    # Needs Triton, which a CPU's installation of torch lacks.
    from warpplan.kernels.gemm_bias_act.launch import gemm_bias_act

    shape = residual_shape(x.shape[0], *weight.shape)
    dtype = str(x.dtype).removeprefix("torch.")
    config = configuration("gemm_bias_act", shape, dtype, torch.cuda.get_device_name(x.device))
    return gemm_bias_act(x.contiguous(), weight, config, residual=residual)


@add_planned.register_fake
def _(x, weight, residual):
    return torch.empty_like(residual)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])


def _gradients(ctx, gradient):
    """dx = dy · W and dW = dyᵀ · x, each planned for its own sizes and for operands as they lie."""
    x, weight = ctx.saved_tensors
    dy = gradient.contiguous()
    return linear_operator(dy, weight.t(), None), linear_operator(dy.t(), x.t(), None), gradient


add_planned.register_autograd(_gradients, setup_context=_save)


class _PointerProduct(torch.autograd.Function):
    """Forward and both gradients by one kernel: its strides say how operands lie."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return _launched(x, weight.t())

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return _launched(gradient, weight), _launched(gradient.t(), x)


def pointer_product(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, K] · weight [N, K]ᵀ by the pointer kernel on a GPU, by torch elsewhere."""
    return _PointerProduct.apply(x, weight) if x.is_cuda else F.linear(x, weight)


def _launched(a: Tensor, b: Tensor) -> Tensor:
    """A [M, K] · B [K, N]."""
    import triton
    from pointer_matmul import matmul

    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype, device=a.device)
    matmul[lambda meta: (triton.cdiv(m, meta["BLOCK_SIZE_M"]) * triton.cdiv(n, meta["BLOCK_SIZE_N"]),)](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride()
    )
    return c
