"""Run attention forward on packed sequences of unlike lengths: flash-attention's variable-length form, planned.

    out = packed_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, config, causal=True)
    run = prepare_packed(…, config, out, lse); run()            # may be captured in a CUDA graph

``q`` is [rows, H, D], ``k`` and ``v`` [keys, G, D]: the sequences' rows one behind the other. ``cu_seqlens_q`` and
``cu_seqlens_k``, int32 [sequences + 1] on the same GPU, say where each begins, and at last where the last one ends; the
host never reads them. Sequences may be empty. Rows of no sequence are left as they are. Numbers that do not ascend, or
lie outside of the tensors, make other sequences than were meant, and nothing outside the tensors is touched. A sequence
reads nothing of its neighbours', whatever lies there. The mask is that of
:mod:`warpplan.kernels.attention_fwd.launch`, for each sequence: its last query stands at its last key.

With gradients, and planned: :func:`warpplan.kernels.attention_layer.packed_autograd.packed_attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

from warpplan.kernels.attention_fwd.attention_shape import MAX_LENGTH, AttentionShape
from warpplan.kernels.attention_fwd.fp8.head_scales import NO_SCALES
from warpplan.kernels.attention_fwd.launch import (
    LOG2_E,
    band,
    checked,
    checked_scale,
    dtype_name,
    require_addressable,
    require_alike,
    require_fitting,
    require_heads,
    require_lse,
    require_out,
    require_window,
    shared_box_layout,
    tma_strides,
)
from warpplan.kernels.attention_fwd.space import SIXTEEN_BIT, AttentionConfig
from warpplan.kernels.operands.contexts import bind_context
from warpplan.kernels.operands.gpus import sm_count
from warpplan.kernels.torch_types import Tensor
from warpplan.kernels.triton_types import TmaDescriptor
from warpplan.planner.errors import InvalidShape
from warpplan.planner.values.tuning import TuningConfig

MAX_ROWS = 1 << 30
"""Of all sequences together: what a ragged descriptor reaches."""
FORMS = {"q": "[rows, H, D]", "k": "[keys, G, D]", "v": "[keys, G, D]"}


def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    config: AttentionConfig | TuningConfig, *, causal: bool = False, window: int | None = None,
    scale: float | None = None, out: Tensor | None = None, lse: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """softmax(``scale`` · q · kᵀ + mask) · v of each head of each sequence, [rows, H, D] in the operands' dtype, of 16
    bits, on the current stream.

    ``max_seqlen_q`` bounds the queries of a sequence: it limits how many blocks are launched, and a smaller number
    than the truth costs time, not rows; ``max_seqlen_k`` is what flash-attention takes. ``lse``, contiguous float32
    [H, rows], receives each row's log-sum-exp. Raises :class:`InvalidShape` for tensors that cannot be used and
    :class:`InvalidConfig` for a plan that does not fit, before any launch.
    """
    if out is None:
        require_packed(q, k, v, cu_seqlens_q, cu_seqlens_k)
        out = torch.empty_like(q)
    prepare_packed(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, config, out, lse, causal=causal,
        window=window, scale=scale,
    )()  # fmt: skip
    return out


def prepare_packed(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    config: AttentionConfig | TuningConfig, out: Tensor, lse: Tensor | None = None, *, causal: bool = False,
    window: int | None = None, scale: float | None = None,
) -> Callable[[], None]:  # fmt: skip
    """A call that computes ``out`` from the operands where they lie now, without waiting for the device; the first call
    may compile the kernel. Otherwise as :func:`packed_attention`."""
    require_packed(q, k, v, cu_seqlens_q, cu_seqlens_k)
    require_lengths(max_seqlen_q, max_seqlen_k)
    require_out(q, out)
    require_lse(lse, (q.shape[1], q.shape[0]), q)
    require_window(window)
    factor = q.shape[2] ** -0.5 if scale is None else checked_scale(scale)
    config = checked(config, dtype_name(q.dtype), q.device.index)
    require_fitting(config, q.shape[2], packed=True)
    if not q.shape[0]:
        return lambda: None
    if not k.shape[0]:
        # Nothing to see, and TMA describes no empty tensor.
        return lambda: _see_nothing(out, lse)
    sequences, (rows, heads, head_dim) = cu_seqlens_q.shape[0] - 1, q.shape
    shape = AttentionShape(sequences, heads, rows, head_dim, k.shape[1], k.shape[0], causal, window)
    return _launch(q, k, v, cu_seqlens_q, cu_seqlens_k, out, lse, config, shape, max_seqlen_q, factor)


def packed_grid(config: AttentionConfig, shape: AttentionShape, longest: int, sm_count: int) -> int:
    """CTAs of a launch: as many as there may be units, or, persistent, no more than SMs. ``shape`` has the rows of all
    sequences, of which none has more than ``longest``."""
    tiles = min(shape.q_length // config.tile_rows + shape.batch, shape.batch * -(-longest // config.tile_rows))
    units = shape.heads * max(tiles, 1)
    return min(sm_count, units) if config.persistent else units


def _launch(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, out: Tensor, lse: Tensor | None,
    config: AttentionConfig, shape: AttentionShape, longest: int, scale: float,
) -> Callable[[], None]:  # fmt: skip
    from warpplan.kernels.attention_fwd import gluon
    from warpplan.kernels.compile import element_type
    from warpplan.kernels.gemm.launch import run_kernel

    pointers, strides = NO_SCALES
    boxes = gluon.descriptor_boxes(config, element_type(dtype_name(q.dtype)))
    arguments = (
        *(describe_ragged(tensor, box) for tensor, box in zip((q, k, v, out), boxes.values(), strict=True)),
        lse,
        q_starts,
        k_starts,
        *pointers,
        shape.batch,
        0,
        shape.heads,
        shape.heads // shape.kv_heads,
        shape.q_length,
        shape.k_length,
        *band(shape),
        min(config.head_group, shape.heads),
        *strides,
        scale * LOG2_E,
    )
    constants = gluon.constants(config, shape.left is not None, shape.right is not None, shape.batch)
    launch = gluon.attention_fwd_kernel[(packed_grid(config, shape, longest, sm_count(q.device.index)),)]
    keywords = {**constants, **gluon.launch_options(config)}
    return lambda: run_kernel(launch, arguments, keywords, q)


def _see_nothing(out: Tensor, lse: Tensor | None) -> None:
    out.zero_()
    if lse is not None:
        lse.fill_(float("-inf"))


def describe_ragged(tensor: Tensor, box: tuple[int, ...]) -> TmaDescriptor:
    """The ragged TMA descriptor of ``tensor`` [rows, heads, D] with boxes of ``box``."""
    from warpplan.kernels.device.boxes import ragged_form
    from warpplan.kernels.triton_compat import TensorDescriptor

    form = ragged_form(list(tensor.shape), tma_strides(tensor))
    bind_context(tensor.device)
    return TensorDescriptor(tensor, *form, list(box), shared_box_layout(box, tensor.dtype))


def require_lengths(max_seqlen_q: int, max_seqlen_k: int) -> None:
    """Raise :class:`InvalidShape` for bounds of sequences that the kernels do not have."""
    for name, length in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if isinstance(length, torch.Tensor):
            raise InvalidShape(f"{name} is a tensor: give a number, so that no device is waited for", field=name)
        if length is None or isinstance(length, float | str) or not 0 <= length <= MAX_LENGTH:
            raise InvalidShape(
                f"{name}={length!r}: expected a whole number from 0 to {MAX_LENGTH}",
                field=name, value=length, limit=MAX_LENGTH,
            )  # fmt: skip


def require_packed(q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor) -> None:
    """Raise :class:`InvalidShape` unless these are operands of packed sequences, on a GPU where TMA can address them,
    and where each begins."""
    require_sequences(q, k, v, q_starts, k_starts)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.numel():
            require_addressable(name, tensor)


def require_sequences(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, dtypes: Collection[str] = SIXTEEN_BIT,
    on_gpu: bool = True,
) -> None:  # fmt: skip
    """Raise :class:`InvalidShape` unless these have the forms of packed sequences and of where each begins, on one
    device, a GPU where ``on_gpu``, :class:`UnknownName` where the dtype is none of ``dtypes``. No address is read."""
    require_alike(q, k, v, FORMS, dtypes, on_gpu)
    if k.shape != v.shape:
        raise InvalidShape(f"k is {tuple(k.shape)} and v {tuple(v.shape)}: expected the same shape", field="v")
    require_heads(q.shape[1], k.shape[1], q.shape[2], k.shape[2])
    for name, tensor in (("q", q), ("k", k)):
        if tensor.shape[0] > MAX_ROWS:
            raise InvalidShape(f"{name} has {tensor.shape[0]} rows: expected {MAX_ROWS} or less", field=name)
    for name, starts in (("cu_seqlens_q", q_starts), ("cu_seqlens_k", k_starts)):
        _require_starts(name, starts, q)
    if q_starts.shape != k_starts.shape or q_starts.shape[0] < 2:
        raise InvalidShape(
            f"cu_seqlens_q has {q_starts.shape[0]} numbers and cu_seqlens_k {k_starts.shape[0]}: expected one more "
            "than sequences each",
            field="cu_seqlens_k", value=k_starts.shape[0], limit=q_starts.shape[0],
        )  # fmt: skip


def _require_starts(name: str, starts: Tensor, q: Tensor) -> None:
    if not isinstance(starts, torch.Tensor):
        raise InvalidShape(
            f"{name} is a {type(starts).__name__}: expected a tensor, torch.int32 [sequences + 1] on {q.device}",
            field=name,
        )
    if starts.dim() != 1 or starts.dtype != torch.int32 or starts.device != q.device or not starts.is_contiguous():
        raise InvalidShape(
            f"{name} is {starts.dtype} {tuple(starts.shape)} on {starts.device}: expected contiguous torch.int32 "
            f"[sequences + 1] on {q.device}",
            field=name,
        )
