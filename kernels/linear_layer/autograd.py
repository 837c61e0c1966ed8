"""``linear`` with its gradients: a drop-in for ``torch.nn.functional.linear``.

Eager calls go through a ``torch.autograd.Function``; under ``torch.compile`` and dispatch modes the same formulas stand
behind the custom operator ``warpplan::linear``, which graphs keep whole. Eager calls avoid the operator: it takes 61 µs
of the host a differentiable call where the function takes 13 (without a launch; torch 2.13 on a CPU, November 2026).
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear as torch_linear
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from warpplan.kernels.linear_layer.products import ALIGNMENT, DTYPES, hopper, multiply
from warpplan.kernels.torch_types import AutogradContext, Dtype, Tensor

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Not their subclasses (DTensor, quantised weights): those have a product of their own."""

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
    subclasses, rows that do not start on 16 bytes, and shapes that no configuration fits.
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
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if not _runs_on(x.device.index if x.is_cuda else None) or any(type(t) not in PLAIN for t in tensors):
        return None
    if weight.dim() != 2 or x.dim() == 0 or x.shape[-1] != weight.shape[1] or x.numel() == 0 or weight.numel() == 0:
        return None
    if (
        weight.shape[0] % ALIGNMENT
        or weight.shape[1] % ALIGNMENT
        or (bias is not None and bias.shape != weight.shape[:1])
    ):
        return None
    dtype = _autocast_dtype(x)
    if dtype is not None and all(t.is_floating_point() and t.dtype != torch.float64 for t in tensors):
        x, weight, bias = (None if t is None else t.to(dtype) for t in (x, weight, bias))
    same = all(t is None or (t.dtype == x.dtype and t.device == x.device) for t in (weight, bias))
    return (x, weight, bias) if same and x.dtype in DTYPES else None


def _autocast_dtype(x: Tensor) -> Dtype | None:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """A[M, K] · B[N, K]ᵀ + bias, differentiable."""
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        return linear_operator(a, b, bias)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad)):
        return _Product.apply(a, b, bias)
    return multiply(a, b, bias)


def _save(ctx: AutogradContext, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    a, b, _ = inputs
    # By index: an operator's context has an element more here.
    ctx.save_for_backward(a if ctx.needs_input_grad[1] else None, b if ctx.needs_input_grad[0] else None)


def _gradients(ctx: AutogradContext, dc: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """dA = dC · B and dB = dCᵀ · A: the same product of operands as they lie."""
    a, b = ctx.saved_tensors
    # Of a sum's gradient every element is the same one: TMA reads no stride of zero.
    dc = dc.contiguous()
    return (
        _product(dc, b.t()) if ctx.needs_input_grad[0] else None,
        _product(dc.t(), a.t()) if ctx.needs_input_grad[1] else None,
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
