"""``packed_attention`` with its gradients: flash-attention's variable-length form, planned.

>>> import torch
>>> from warpplan.kernels import packed_attention
>>> q = torch.randn(9, 4, 64, requires_grad=True)
>>> k, v = torch.randn(9, 2, 64), torch.randn(9, 2, 64)
>>> starts = torch.tensor([0, 5, 9], dtype=torch.int32)
>>> packed_attention(q, k, v, starts, starts, 5, 5, causal=True).sum().backward()
>>> q.grad.shape
torch.Size([9, 4, 64])

Both passes are custom operators, ``warpplan::packed_attention`` and ``warpplan::packed_attention_backward``, eagerly
too; graphs of ``torch.compile`` keep them whole.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils.flop_counter import register_flop_formula, sdpa_backward_flop_count, sdpa_flop_count

from warpplan.kernels.attention_bwd.space import HEAD_DIMS as BACKWARD_HEAD_DIMS
from warpplan.kernels.attention_fwd.launch import checked_scale, require_window
from warpplan.kernels.attention_fwd.packed_launch import require_lengths
from warpplan.kernels.attention_layer.autograd import cast_for_autocast, runs_on
from warpplan.kernels.attention_layer.packed_passes import attend_packed, attend_packed_backward, require_usable
from warpplan.kernels.attention_layer.planned_passes import empty_result
from warpplan.kernels.torch_types import AutogradContext, Tensor
from warpplan.planner.errors import InvalidShape


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, *, causal: bool = False, window: int | None = None, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """softmax(``scale`` · query · keyᵀ + mask) · value of each head of each packed sequence: ``query`` [rows, H, D],
    ``key`` and ``value`` [keys, G, D] → [rows, H, D] in the operands' dtype, differentiable, whole under
    ``torch.compile(fullgraph=True)``. H / G adjacent heads of ``query`` share one of the others.

    ``cu_seqlens_q`` and ``cu_seqlens_k``, contiguous int32 [sequences + 1] on the operands' device, say where each
    sequence begins, and at last where the last one ends; ``max_seqlen_q`` and ``max_seqlen_k`` bound their lengths. The
    host reads no length: both passes run with the configurations that
    :func:`~warpplan.kernels.plan_source.configuration` has for lengths guessed from these bounds and the sizes of the
    tensors. Rows of no sequence have results and gradients of zero. The mask is flash-attention's: the last query of a
    sequence stands at its last key, ``causal`` hides the keys behind a query's position, ``window`` those further than
    so many before it, and behind it unless ``causal``.

    On a Hopper GPU operands are bfloat16 or float16, after autocast; those that TMA cannot address are copied. Heads of
    64 and 128 have gradients, heads of 256 have not. The query's has other last bits from run to run, except under
    ``torch.use_deterministic_algorithms``. Nothing is differentiated twice. On a CPU both passes are slow references,
    for tests of models. Raises :class:`InvalidShape` and :class:`UnknownName` before any launch.
    """
    query, key, value = cast_for_autocast(query, key, value)
    require_usable(query, key, value, cu_seqlens_q, cu_seqlens_k)
    if query.is_cuda and not runs_on(query.device.index):
        raise InvalidShape(f"q is on {query.device}: packed attention runs on Hopper GPUs, and on a CPU", field="q")
    require_lengths(max_seqlen_q, max_seqlen_k)
    require_window(window)
    head_dim = query.shape[2]
    differentiable = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    if differentiable and head_dim not in BACKWARD_HEAD_DIMS:
        raise InvalidShape(
            f"D={head_dim} has no gradients, which heads of {' and '.join(map(str, BACKWARD_HEAD_DIMS))} have: call it "
            "under torch.no_grad()",
            field="D", value=head_dim, limit=list(BACKWARD_HEAD_DIMS),
        )  # fmt: skip
    factor = head_dim**-0.5 if scale is None else checked_scale(scale)
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return packed_operator(query, key, value, *lengths, causal, window, factor)[0]


def _save(ctx: AutogradContext, inputs: tuple[object, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, q_starts, k_starts, *ctx.numbers = inputs
    ctx.save_for_backward(query, key, value, *output, q_starts, k_starts)


def _gradients(ctx: AutogradContext, grad: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    """Nothing is differentiated by the log-sum-exp."""
    found = packed_backward_operator(grad, *ctx.saved_tensors, *ctx.numbers)
    needed = (t if need else None for t, need in zip(found, ctx.needs_input_grad, strict=False))
    return (*needed, *(None,) * (2 + len(ctx.numbers)))


def _like_attention(
    query: Tensor, key: Tensor, value: Tensor, q_starts: Tensor, k_starts: Tensor, *numbers: object
) -> tuple[Tensor, Tensor]:
    return empty_result(query), query.new_empty((query.shape[1], query.shape[0]), dtype=torch.float32)


def _like_operands(do: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: object) -> tuple[Tensor, ...]:
    return empty_result(query), empty_result(key), empty_result(value)


_LENGTHS = (
    "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, bool causal, int? window, "
    "float scale"
)
packed_operator = torch.library.custom_op(
    "warpplan::packed_attention", attend_packed, mutates_args=(),
    schema=f"(Tensor query, Tensor key, Tensor value, {_LENGTHS}) -> (Tensor, Tensor)",
)  # fmt: skip
"""``torch.ops.warpplan.packed_attention``: (result, log-sum-exp [H, rows])."""
packed_operator.register_fake(_like_attention)
packed_operator.register_autograd(_gradients, setup_context=_save)
packed_backward_operator = torch.library.custom_op(
    "warpplan::packed_attention_backward", attend_packed_backward, mutates_args=(),
    schema=f"(Tensor do, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, {_LENGTHS}) -> "
    "(Tensor, Tensor, Tensor)",
)  # fmt: skip
"""``torch.ops.warpplan.packed_attention_backward``: the gradients of query, key and value."""
packed_backward_operator.register_fake(_like_operands)


@register_flop_formula(torch.ops.warpplan.packed_attention, get_raw=True)  # type: ignore[untyped-decorator]
def _flops(
    query: Tensor, key: Tensor, value: Tensor, q_starts: Tensor, k_starts: Tensor, most_q: int, most_k: int,
    *others: object, out_val: object,
) -> int:  # fmt: skip
    """As ``torch.utils.flop_counter`` counts: causal masks and windows as if there were none. It reads the lengths from
    the device; where they have no values they are taken to be the longest."""
    lengths = zip(_lengths(q_starts, most_q), _lengths(k_starts, most_k), strict=True)
    flops: int = sum(sdpa_flop_count(*_one_sequence(query, q, k)) for q, k in lengths)
    return flops


@register_flop_formula(torch.ops.warpplan.packed_attention_backward, get_raw=True)  # type: ignore[untyped-decorator]
def _backward_flops(
    do: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, q_starts: Tensor,
    k_starts: Tensor, most_q: int, most_k: int, *others: object, out_val: object,
) -> int:  # fmt: skip
    lengths = zip(_lengths(q_starts, most_q), _lengths(k_starts, most_k), strict=True)
    shapes = (_one_sequence(query, q, k) for q, k in lengths)
    flops: int = sum(sdpa_backward_flop_count(shape[0], *shape) for shape in shapes)
    return flops


def _lengths(starts: Tensor, most: int) -> list[int]:
    if starts.device.type == "meta" or isinstance(starts, FakeTensor | FunctionalTensor):
        return [most] * (starts.shape[0] - 1)
    return [int(length) for length in starts.diff().tolist()]


def _one_sequence(query: Tensor, rows: int, keys: int) -> tuple[tuple[int, int, int, int], ...]:
    """The shapes of query, key and value of a sequence, (1, heads, length, D), as if no heads shared keys."""
    _, heads, d = query.shape
    return (1, heads, rows, d), (1, heads, keys, d), (1, heads, keys, d)
