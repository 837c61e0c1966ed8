"""``linear`` with its gradients: a drop-in for ``torch.nn.functional.linear``.

Eager calls go through a ``torch.autograd.Function``; under ``torch.compile`` and dispatch modes the same formulas stand
behind the custom operator ``warpplan::linear``, which graphs keep whole. Eager calls avoid the operator: it takes 61 µs
of the host a differentiable call where the function takes 13 (without a launch; torch 2.13 on a CPU, November 2026).
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear as torch_linear
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils.flop_counter import register_flop_formula

from warpplan.kernels.linear_layer.products import ALIGNMENT, DTYPES, hopper, multiply
from warpplan.kernels.operands.tensor_forms import active_transform, is_batched, special_form
from warpplan.kernels.torch_types import AutogradContext, Dtype, Tensor, TorchShape

# The answer is a fact of the machine: a graph holds it as a constant.
_runs_on = torch.compiler.assume_constant_result(hopper)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias, as ``torch.nn.functional.linear``: ``x`` [..., K], ``weight`` [N, K], ``bias`` [N] → [..., N]
    in the operands' dtype, differentiable (twice, too), whole under ``torch.compile(fullgraph=True)``.

    On a Hopper GPU bfloat16 and float16 operands are multiplied by ``gemm`` (``gemm_bias_act`` with a bias), forward,
    dgrad and wgrad each with the configuration that
    :func:`~warpplan.kernels.plan_source.configuration` has for its sizes; sums are fp32. The same operands give the
    same bits. Autocast casts the operands as it does for torch's own. Everything else is torch's own product, with its
    results, gradients and errors: other devices and dtypes, K or N that are no multiple of 8, empty tensors, tensor
    subclasses, sparse and nested tensors, ``torch.func`` transforms, forward-mode differentiation, batched gradients,
    rows that do not start on 16 bytes, and shapes that no configuration fits.
    """
    operands = _planned_operands(x, weight, bias)
    if operands is None:
        return torch_linear(x, weight, bias)
    x, weight, bias = operands
    if x.dim() == 2:
        return _product(x, weight, bias)
    # A copy only where the leading dimensions are no view of rows; torch folds them in the same way.
    rows = x.reshape(-1, x.shape[-1])
    return _product(rows, weight, bias).view(*x.shape[:-1], weight.shape[0])


def _planned_operands(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """The operands in the dtype to multiply in, or ``None`` where the product is torch's."""
    if not _runs_on(x.device.index if x.is_cuda else None):
        return None
    if active_transform():
        return None
    if special_form(x) or special_form(weight) or (bias is not None and special_form(bias)):
        return None
    if weight.dim() != 2 or x.dim() == 0 or x.numel() == 0:
        return None
    columns, depth = weight.shape
    if x.shape[-1] != depth or columns % ALIGNMENT or depth % ALIGNMENT or columns == 0:
        return None
    if bias is not None and bias.shape != (columns,):
        return None
    x, weight, bias = _cast(x, weight, bias)
    if x.dtype not in DTYPES or weight.dtype != x.dtype or weight.device != x.device:
        return None
    if bias is not None and (bias.dtype != x.dtype or bias.device != x.device):
        return None
    return x, weight, bias


def _cast(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The operands as autocast has them for torch's own product: all but float64 ones in its dtype."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return x, weight, bias
    dtype = torch.get_autocast_dtype(kind)
    return _cast_one(x, dtype), _cast_one(weight, dtype), None if bias is None else _cast_one(bias, dtype)


def _cast_one(tensor: Tensor, dtype: Dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """A[M, K] · B[N, K]ᵀ + bias, differentiable."""
    if _in_a_graph():
        return linear_operator(a, b, bias)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad)):
        return _Product.apply(a, b, bias)
    return multiply(a, b, bias)


def _in_a_graph() -> bool:
    """Whether calls are traced or seen by a dispatch mode: then they go through the operator."""
    return bool(torch.compiler.is_compiling() or is_in_torch_dispatch_mode())


def _save(ctx: AutogradContext, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    a, b, _ = inputs
    # By index: an operator's context has an element more here.
    ctx.save_for_backward(a if ctx.needs_input_grad[1] else None, b if ctx.needs_input_grad[0] else None)


def _gradients(ctx: AutogradContext, dc: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dA = dC · B and dB = dCᵀ · A: the same product of operands as they lie."""
    a, b = ctx.saved_tensors
    # Of a sum's gradient every element is the same one: TMA reads no stride of zero.
    dc = dc.contiguous()
    torchs = not _in_a_graph() and (special_form(dc) or is_batched(dc) or active_transform())
    product = torch_linear if torchs else _product
    return (
        product(dc, b.t()) if ctx.needs_input_grad[0] else None,
        product(dc.t(), a.t()) if ctx.needs_input_grad[1] else None,
        dc.sum(0) if ctx.needs_input_grad[2] else None,  # torch sums 16-bit elements in fp32
    )


class _Product(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    @staticmethod
    def forward(ctx: AutogradContext, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        _save(ctx, (a, b, bias), None)
        return multiply(a, b, bias)

    backward = staticmethod(_gradients)


linear_operator = torch.library.custom_op(
    "warpplan::linear", multiply, mutates_args=(), schema="(Tensor a, Tensor b, Tensor? bias) -> Tensor"
)
"""``torch.ops.warpplan.linear`` of matrices: A[M, K] · B[N, K]ᵀ + bias[N]."""
linear_operator.register_fake(lambda a, b, bias: a.new_empty(a.shape[0], b.shape[0]))
linear_operator.register_autograd(_gradients, setup_context=_save)


@register_flop_formula(torch.ops.warpplan.linear)  # type: ignore[untyped-decorator]
def _flops(a: TorchShape, b: TorchShape, bias: TorchShape | None, *, out_shape: TorchShape) -> int:
    """Multiplications and additions, as ``torch.utils.flop_counter`` counts those of torch's own product."""
    flops: int = 2 * a[0] * a[1] * b[0]  # a symbol stays one
    return flops
