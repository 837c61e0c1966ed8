"""``attention`` with its gradients: a drop-in for ``torch.nn.functional.scaled_dot_product_attention``.

>>> import torch
>>> from warpplan.kernels import attention
>>> from warpplan.kernels.attention_layer.autograd import why_torch
>>> q = torch.randn(2, 8, 100, 64)
>>> attention(q, q, q, is_causal=True).shape
torch.Size([2, 8, 100, 64])
>>> why_torch(q, q, q, dropout_p=0.1)
'dropout'

Eager calls go through a ``torch.autograd.Function``; under ``torch.compile`` and dispatch modes the same formulas stand
behind the custom operators ``warpplan::attention`` and ``warpplan::attention_backward``, which graphs keep whole.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import scaled_dot_product_attention as torch_attention
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils.flop_counter import register_flop_formula, sdpa_backward_flop_count, sdpa_flop_count

from warpplan.kernels.attention_bwd.space import HEAD_DIMS as BACKWARD_HEAD_DIMS
from warpplan.kernels.attention_fwd.attention_shape import MAX_LENGTH
from warpplan.kernels.attention_fwd.space import HEAD_DIMS
from warpplan.kernels.attention_layer.planned_passes import DTYPES, attend, attend_backward, empty_result
from warpplan.kernels.declaration import MAX_ELEMENTS
from warpplan.kernels.operands.gpus import hopper_name
from warpplan.kernels.operands.tensor_forms import active_transform, is_batched, special_form
from warpplan.kernels.torch_types import AutogradContext, Dtype, Tensor, TorchShape


def _on_hopper(index: int | None) -> bool:
    return index is not None and bool(hopper_name(index))


# The answer is a fact of the machine: a graph holds it as a constant.
runs_on = torch.compiler.assume_constant_result(_on_hopper)


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(``scale`` · query · keyᵀ + mask) · value, as ``torch.nn.functional.scaled_dot_product_attention``:
    ``query`` [B, H, L, D], ``key`` and ``value`` [B, G, M, D] → [B, H, L, D] in the operands' dtype, differentiable,
    whole under ``torch.compile(fullgraph=True)``.

    On a Hopper GPU bfloat16 and float16 operands go to ``attention_fwd``, or where there is one query to
    ``attention_decode``, with the configuration that :func:`~warpplan.kernels.plan_source.configuration` has for their
    sizes; sums are fp32, and the same operands give the same bits. ``is_causal`` is torch's: query i sees the keys 0 to
    i, also where L and M differ. Autocast casts the operands as it does for torch's own.

    Gradients of heads of 64 and 128 are ``attention_bwd``'s, planned alike; the query's has other last bits from run to
    run, except under ``torch.use_deterministic_algorithms``. The others, and those that are differentiated again, are
    torch's: its attention runs anew in the backward pass. Everything else is torch's own attention, with its results,
    gradients and errors; :func:`why_torch` and :func:`why_torch_backward` say which.
    """
    if why_torch(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
        return torch_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    query, key, value = cast_for_autocast(query, key, value)
    if is_causal and key.shape[2] > query.shape[2]:
        # No query sees the others; of what is left, upper left and bottom right are the same.
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    factor = query.shape[3] ** -0.5 if scale is None else float(scale)
    if _in_a_graph():
        return attention_operator(query, key, value, is_causal, factor)[0]
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return _Attention.apply(query, key, value, is_causal, factor)
    return attend(query, key, value, is_causal, factor)[0]


def _in_a_graph() -> bool:
    """Whether calls are traced or seen by a dispatch mode: then they go through the operators."""
    return bool(torch.compiler.is_compiling() or is_in_torch_dispatch_mode())


def why_torch(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> str:  # fmt: skip
    """Why :func:`attention` leaves these operands to torch, in a few words; empty where it does not. The answer follows
    from sizes, dtypes and arguments, never from a measurement."""
    return (
        _unplanned_arguments(attn_mask, dropout_p, scale)
        or _unplanned_tensors(query, key, value)
        or _unplanned_sizes(query, key, value, is_causal, enable_gqa)
    )


def why_torch_backward(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> str:  # fmt: skip
    """Why the gradients of :func:`attention` are torch's, in a few words; empty where ``attention_bwd`` computes them.
    Torch's are also those that are differentiated again or batched, and those by a gradient in a tensor subclass:
    operands say nothing of these."""
    return why_torch(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa) or _unplanned_gradients(
        query
    )


def _unplanned_gradients(query: Tensor) -> str:
    return "" if query.shape[3] in BACKWARD_HEAD_DIMS else f"heads of {query.shape[3]}"


def _unplanned_arguments(attn_mask: Tensor | None, dropout_p: float, scale: float | None) -> str:
    if attn_mask is not None:
        return "a mask given as a tensor"
    if dropout_p:
        return "dropout"
    if scale is not None and not (isinstance(scale, int | float) and math.isfinite(scale) and scale > 0):
        return f"scale={scale}"
    return str(active_transform())


def _unplanned_tensors(*operands: Tensor) -> str:
    query = operands[0]
    for tensor in operands:
        if form := special_form(tensor):
            return form
    dtypes = {_autocast_dtype(tensor) for tensor in operands}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)) + " operands"
    if any(tensor.device != query.device for tensor in operands):
        return "operands on several devices"
    if not runs_on(query.device.index if query.is_cuda else None):
        return "no Hopper GPU"
    return ""


def _unplanned_sizes(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, enable_gqa: bool) -> str:
    if query.dim() != 4 or key.dim() != 4 or key.shape != value.shape:
        return "operands that are not [B, H, L, D], [B, G, M, D], [B, G, M, D]"
    (batch, heads, q_length, head_dim), (key_batch, kv_heads, k_length, key_dim) = query.shape, key.shape
    if batch != key_batch or head_dim != key_dim or (heads != kv_heads and not enable_gqa):
        return "sizes that do not agree"
    if not batch * heads * q_length * kv_heads * k_length:
        return "empty operands"
    if heads % kv_heads:
        return "heads that G does not divide"
    if head_dim not in HEAD_DIMS:
        return f"heads of {head_dim}"
    if (
        max(q_length, k_length) > MAX_LENGTH
        or max(batch * heads * q_length, batch * kv_heads * k_length) > MAX_ELEMENTS
    ):
        return "operands that 32-bit coordinates do not reach"
    if is_causal and q_length > k_length:
        return "a causal mask with more queries than keys"
    return ""


def _autocast_dtype(tensor: Tensor) -> Dtype:
    """The dtype in which autocast has torch's own attention compute ``tensor``: any but float64 in its own. Meta
    tensors have none."""
    kind = tensor.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return tensor.dtype
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor.dtype
    return torch.get_autocast_dtype(kind)


def cast_for_autocast(*operands: Tensor) -> list[Tensor]:
    """The operands in the dtypes in which autocast has torch's own attention compute them."""
    return [tensor.to(_autocast_dtype(tensor)) for tensor in operands]


def _save(
    ctx: AutogradContext, inputs: tuple[Tensor, Tensor, Tensor, bool, float], output: tuple[Tensor, Tensor]
) -> None:
    query, key, value, ctx.causal, ctx.scale = inputs
    # Torch's backward pass computes torch's forward anew, and needs no result of this one.
    ctx.save_for_backward(query, key, value, *(() if _unplanned_gradients(query) else output))


def _gradients(
    ctx: AutogradContext, grad: Tensor, grad_lse: Tensor | None = None
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
    """Nothing is differentiated by the log-sum-exp."""
    query, key, value, *result = ctx.saved_tensors
    needs = ctx.needs_input_grad[:3]
    in_a_graph = _in_a_graph()
    fits = in_a_graph or not (special_form(grad) or is_batched(grad) or active_transform())
    if result and fits and not torch.is_grad_enabled():
        out, lse = result
        compute = backward_operator if in_a_graph else attend_backward
        found = compute(grad, query, key, value, out, lse, ctx.causal, ctx.scale)
    else:
        found = _torch_gradients(grad, (query, key, value), needs, ctx.causal, ctx.scale)
    of_query, of_key, of_value = (t if need else None for t, need in zip(found, needs, strict=True))
    return of_query, of_key, of_value, None, None


def _torch_gradients(
    grad: Tensor, operands: tuple[Tensor, ...], needs: tuple[bool, ...], causal: bool, scale: float
) -> tuple[Tensor | None, ...]:
    """Torch's own, of its attention computed anew; differentiable where gradients are recorded."""
    twice = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = [
            t if twice and t.requires_grad else t.detach().requires_grad_(need)
            for t, need in zip(operands, needs, strict=True)
        ]
        query, key, value = inputs
        out = torch_attention(
            query, key, value, is_causal=causal, scale=scale, enable_gqa=bool(query.shape[1] != key.shape[1])
        )
        wanted = [t for t, need in zip(inputs, needs, strict=True) if need]
        found = iter(torch.autograd.grad(out, wanted, grad, create_graph=twice))
    return tuple(next(found) if need else None for need in needs)


class _Attention(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    @staticmethod
    def forward(ctx: AutogradContext, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Tensor:
        output = attend(query, key, value, causal, scale)
        _save(ctx, (query, key, value, causal, scale), output)
        return output[0]

    backward = staticmethod(_gradients)


def _like_attention(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    return empty_result(query), query.new_empty(query.shape[:3], dtype=torch.float32)


attention_operator = torch.library.custom_op(
    "warpplan::attention", attend, mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, bool causal, float scale) -> (Tensor, Tensor)",
)  # fmt: skip
"""``torch.ops.warpplan.attention``: (result, log-sum-exp), the last query at the last key."""
attention_operator.register_fake(_like_attention)
attention_operator.register_autograd(_gradients, setup_context=_save)
backward_operator = torch.library.custom_op(
    "warpplan::attention_backward", attend_backward, mutates_args=(),
    schema="(Tensor do, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, bool causal, float scale) -> "
    "(Tensor, Tensor, Tensor)",
)  # fmt: skip
"""``torch.ops.warpplan.attention_backward``: the gradients of query, key and value."""
backward_operator.register_fake(
    lambda do, query, key, value, out, lse, causal, scale: tuple(empty_result(t) for t in (query, key, value))
)


def _ungrouped(query: TorchShape, key: TorchShape, value: TorchShape) -> tuple[TorchShape, TorchShape]:
    """Shapes of ``key`` and ``value`` with as many heads as ``query``: older torch counts no others."""
    return (key[0], query[1], *key[2:]), (value[0], query[1], *value[2:])


@register_flop_formula(torch.ops.warpplan.attention)  # type: ignore[untyped-decorator]
def _flops(query: TorchShape, key: TorchShape, value: TorchShape, *others: object, out_shape: object) -> int:
    """Of both products, as ``torch.utils.flop_counter`` counts those of torch's attention: a causal one whole."""
    flops: int = sdpa_flop_count(query, *_ungrouped(query, key, value))
    return flops


@register_flop_formula(torch.ops.warpplan.attention_backward)  # type: ignore[untyped-decorator]
def _backward_flops(
    do: TorchShape, query: TorchShape, key: TorchShape, value: TorchShape, *others: object, out_shape: object
) -> int:
    flops: int = sdpa_backward_flop_count(do, query, *_ungrouped(query, key, value))
    return flops
