"""The two passes of attention by planned kernels, without autograd: each finds the configuration for its sizes, copies
what TMA cannot address, and launches. On a CPU they are the references'.

Only the configuration is kept between launches, by shape: TMA descriptors hold addresses, and a training step's tensors
lie elsewhere each time.
"""

from __future__ import annotations

import torch

from warpplan.kernels.attention_bwd.kernel import ATTENTION_BWD
from warpplan.kernels.attention_bwd.reference import gradients
from warpplan.kernels.attention_decode.kernel import ATTENTION_DECODE
from warpplan.kernels.attention_decode.space import MAX_ROWS
from warpplan.kernels.attention_fwd.attention_shape import MAX_LENGTH
from warpplan.kernels.attention_fwd.kernel import ATTENTION_FWD
from warpplan.kernels.attention_fwd.reference import reference
from warpplan.kernels.declaration import Shape
from warpplan.kernels.operands.gpus import hopper_name
from warpplan.kernels.plan_source import configuration
from warpplan.kernels.torch_types import Dtype, Tensor

DTYPES: dict[Dtype, str] = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
"""What the planned kernels take, by the names that plans have."""
PLANNED_BITS = 4
"""Of the number of keys that decoding is planned for: 16 plans from one power of two to the next."""


def attend(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """(the result, its log-sum-exp, contiguous float32 [B, H, L]) without a gradient; the last query stands at the last
    key. Operands that TMA cannot address are copied. On a CPU they are the reference's."""
    out = empty_result(query)
    if not query.is_cuda:
        found, lse = reference(query, key, value, causal=causal, scale=scale)
        return out.copy_(found), lse.float().contiguous()
    # Needs Triton, which a CPU's installation of torch lacks.
    from warpplan.kernels.attention_fwd.launch import prepare

    query, key, value = addressed(query, key, value)
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


def attend_backward(
    do: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value by ``do``, the gradient of ``out``; ``out`` and ``lse`` are what
    :func:`attend` gave. Each lies as its operand does, and all three are computed, whichever are wanted.

    The query's may be added up in whatever order blocks finish, so that its last bits differ from run to run, except
    under ``torch.use_deterministic_algorithms``. Operands that TMA cannot address, the gradient of a sum among them,
    are copied.
    """
    of_query, of_key, of_value = (empty_result(tensor) for tensor in (query, key, value))
    if not query.is_cuda:
        dq, dk, dv = gradients(do, query, key, value, out, causal=causal, scale=scale)
        return of_query.copy_(dq), of_key.copy_(dk), of_value.copy_(dv)
    # Needs Triton, which a CPU's installation of torch lacks.
    from warpplan.kernels.attention_bwd.launch import prepare

    repeats = torch.are_deterministic_algorithms_enabled()
    shape = gradients_shape(query, key, causal, repeats)
    config = configuration(ATTENTION_BWD.name, shape, DTYPES[query.dtype], hopper_name(query.device.index))
    do, query, key, value, out = addressed(do, query, key, value, out)
    prepare(
        do, query, key, value, out, lse.contiguous(), config, of_query, of_key, of_value, causal=causal, scale=scale,
        deterministic=repeats,
    )()  # fmt: skip
    return of_query, of_key, of_value


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


def gradients_shape(query: Tensor, key: Tensor, causal: bool, deterministic: bool) -> Shape:
    """The shape that the backward pass's configuration is looked up by."""
    return (*planned_shape(query, key, causal), *(["deterministic=yes"] if deterministic else []))


def empty_result(operand: Tensor) -> Tensor:
    """What a result of the form of ``operand`` is written to: in the order of its dimensions where its heads' elements
    are adjacent."""
    like = torch.empty_like(operand)
    if like.stride(-1) == 1:
        return like
    return torch.empty_like(operand, memory_format=torch.contiguous_format)


def addressed(*tensors: Tensor) -> list[Tensor]:
    """Each tensor, or a copy that TMA can address: ``contiguous()`` would leave one that starts off 16 bytes."""
    from warpplan.kernels.attention_fwd.launch import addressable

    return [t if addressable(t) else t.clone(memory_format=torch.contiguous_format) for t in tensors]
