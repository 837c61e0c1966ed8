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
behind the custom operator ``warpplan::attention``, which graphs keep whole.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import scaled_dot_product_attention as torch_attention
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from warpplan.kernels.attention_decode.kernel import ATTENTION_DECODE
from warpplan.kernels.attention_decode.space import MAX_ROWS
from warpplan.kernels.attention_fwd.attention_shape import MAX_LENGTH
from warpplan.kernels.attention_fwd.kernel import ATTENTION_FWD
from warpplan.kernels.attention_fwd.reference import reference
from warpplan.kernels.attention_fwd.space import HEAD_DIMS
from warpplan.kernels.declaration import MAX_ELEMENTS, Shape
from warpplan.kernels.operands.gpus import hopper_name
from warpplan.kernels.plan_source import configuration
from warpplan.kernels.torch_types import AutogradContext, Dtype, Tensor

DTYPES: dict[Dtype, str] = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
"""What the planned kernel takes, by the names that plans have."""
PLANNED_BITS = 4
"""Of the number of keys that decoding is planned for: 16 plans from one power of two to the next."""
PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Not their subclasses (DTensor, nested tensors): those have an attention of their own."""


def _on_hopper(index: int | None) -> bool:
    return index is not None and bool(hopper_name(index))


# The answer is a fact of the machine: a graph holds it as a constant.
_runs_on = torch.compiler.assume_constant_result(_on_hopper)


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(``scale`` · query · keyᵀ + mask) · value, as ``torch.nn.functional.scaled_dot_product_attention``:
    ``query`` [B, H, L, D], ``key`` and ``value`` [B, G, M, D] → [B, H, L, D] in the operands' dtype, differentiable,
    whole under ``torch.compile(fullgraph=True)``.

    On a Hopper GPU bfloat16 and float16 operands go to ``attention_fwd``, or where there is one query to
    ``attention_decode``, with the configuration that :func:`~warpplan.kernels.plan_source.configuration` has for their
    sizes; sums are fp32, and the same operands give
    the same bits. ``is_causal`` is torch's: query i sees the keys 0 to i, also where L and M differ. Gradients are
    torch's own: its attention runs anew in the backward pass. Autocast casts the operands as it does for torch's own.
    Everything else is torch's own attention, with its results, gradients and errors; :func:`why_torch` says which.
    """
    if why_torch(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
        return torch_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    query, key, value = _cast(query, key, value)
    if is_causal and key.shape[2] > query.shape[2]:
        # No query sees the others; of what is left, upper left and bottom right are the same.
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    factor = query.shape[3] ** -0.5 if scale is None else float(scale)
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        return attention_operator(query, key, value, is_causal, factor)[0]
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return _Attention.apply(query, key, value, is_causal, factor)
    return attend(query, key, value, is_causal, factor)[0]


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


def _unplanned_arguments(attn_mask: Tensor | None, dropout_p: float, scale: float | None) -> str:
    if attn_mask is not None:
        return "a mask given as a tensor"
    if dropout_p:
        return "dropout"
    if scale is not None and not (isinstance(scale, int | float) and math.isfinite(scale) and scale > 0):
        return f"scale={scale}"
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return "a torch.func transform"
    return ""


def _unplanned_tensors(*operands: Tensor) -> str:
    query = operands[0]
    for tensor in operands:
        if type(tensor) not in PLAIN:
            return f"a {type(tensor).__name__}"
    dtypes = {_autocast_dtype(tensor) for tensor in operands}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)) + " operands"
    if any(tensor.device != query.device for tensor in operands):
        return "operands on several devices"
    if not _runs_on(query.device.index if query.is_cuda else None):
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
    """The dtype in which autocast has torch's own attention compute ``tensor``: any but float64 in its own."""
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind) and tensor.is_floating_point() and tensor.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
    return tensor.dtype


def _cast(*operands: Tensor) -> list[Tensor]:
    return [tensor.to(_autocast_dtype(tensor)) for tensor in operands]


def attend(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """(the result, its log-sum-exp float32 [B, H, L]) without a gradient; the last query stands at the last key.
    Operands that TMA cannot address are copied. On a CPU they are the reference's."""
    out = _empty_result(query)
    if not query.is_cuda:
        found, lse = reference(query, key, value, causal=causal, scale=scale)
        return out.copy_(found), lse.float()
    # Needs Triton, which a CPU's installation of torch lacks.
    from warpplan.kernels.attention_fwd.launch import addressable, prepare

    query, key, value = (
        tensor if addressable(tensor) else tensor.clone(memory_format=torch.contiguous_format)
        for tensor in (query, key, value)
    )
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    dtype, device = DTYPES[query.dtype], hopper_name(query.device.index)
    if decodes(query, key, value):
        from warpplan.kernels.attention_decode.launch import prepare as prepare_decode

        # The last query sees every key, causal or not.
        config = configuration(ATTENTION_DECODE.name, decoding_shape(query, key), dtype, device)
        prepare_decode(query, key, value, config, out, None, lse, scale=scale)()
        return out, lse
    config = configuration(ATTENTION_FWD.name, planned_shape(query, key, causal), dtype, device)
    prepare(query, key, value, config, out, lse, causal=causal, scale=scale)()
    return out, lse


def decodes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether one query stands before the keys, which are then split among blocks: ``attention_decode`` runs it."""
    from warpplan.kernels.attention_decode.launch import key_rows

    apart = key_rows(key)
    fits = query.shape[1] // key.shape[1] <= MAX_ROWS and apart is not None and apart == key_rows(value)
    return query.shape[2] == 1 and fits


def decoding_shape(query: Tensor, key: Tensor) -> Shape:
    """The shape that a configuration is looked up by; the number of keys, which grows by one each step, is rounded up
    to :data:`PLANNED_BITS` binary digits after the first."""
    (batch, heads, _, head_dim), (_, kv_heads, keys, _) = query.shape, key.shape
    step = 1 << max(keys.bit_length() - 1 - PLANNED_BITS, 0)
    rounded = min(-(-keys // step) * step, MAX_LENGTH)
    return (batch, heads, rounded, head_dim, *([] if kv_heads == heads else [f"kv_heads={kv_heads}"]))


def planned_shape(query: Tensor, key: Tensor, causal: bool) -> Shape:
    """The shape that a configuration is looked up by."""
    (batch, heads, length, head_dim), (_, kv_heads, k_length, _) = query.shape, key.shape
    options = {"mask=causal": causal, f"kv_heads={kv_heads}": kv_heads != heads,
               f"kv_length={k_length}": k_length != length}  # fmt: skip
    return (batch, heads, length, head_dim, *(option for option, given in options.items() if given))


def _empty_result(query: Tensor) -> Tensor:
    """What the result is written to: in the order of the query's dimensions where its heads' elements are adjacent."""
    like = torch.empty_like(query)
    if like.stride(-1) == 1:
        return like
    return torch.empty_like(query, memory_format=torch.contiguous_format)


def _save(ctx: AutogradContext, inputs: tuple[Tensor, Tensor, Tensor, bool, float], output: object) -> None:
    query, key, value, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(query, key, value)


def _gradients(
    ctx: AutogradContext, grad: Tensor, grad_lse: Tensor | None = None
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
    """Torch's own, of its attention computed anew. Nothing is differentiated by the log-sum-exp."""
    needs = ctx.needs_input_grad[:3]
    twice = torch.is_grad_enabled()
    given = ctx.saved_tensors
    with torch.enable_grad():
        inputs = [
            t if twice and t.requires_grad else t.detach().requires_grad_(n) for t, n in zip(given, needs, strict=True)
        ]
        query, key, value = inputs
        out = torch_attention(
            query, key, value, is_causal=ctx.causal, scale=ctx.scale, enable_gqa=bool(query.shape[1] != key.shape[1])
        )
        wanted = [t for t, need in zip(inputs, needs, strict=True) if need]
        found = iter(torch.autograd.grad(out, wanted, grad, create_graph=twice))
    of_query, of_key, of_value = (next(found) if need else None for need in needs)
    return of_query, of_key, of_value, None, None


class _Attention(torch.autograd.Function):  # type: ignore[misc]  # torch has no types here
    @staticmethod
    def forward(ctx: AutogradContext, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Tensor:
        _save(ctx, (query, key, value, causal, scale), None)
        return attend(query, key, value, causal, scale)[0]

    backward = staticmethod(_gradients)


def _like_attention(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    return _empty_result(query), query.new_empty(query.shape[:3], dtype=torch.float32)


attention_operator = torch.library.custom_op(
    "warpplan::attention", attend, mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, bool causal, float scale) -> (Tensor, Tensor)",
)  # fmt: skip
"""``torch.ops.warpplan.attention``: (result, log-sum-exp), the last query at the last key."""
attention_operator.register_fake(_like_attention)
attention_operator.register_autograd(_gradients, setup_context=_save)
