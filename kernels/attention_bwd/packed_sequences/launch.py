"""Run attention backward on packed sequences of unlike lengths: flash-attention's variable-length form, planned.

    dq, dk, dv = packed_backward(do, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, config)
    run = prepare_packed(…, config, dq, dk, dv, causal=True); run()         # may be captured in a CUDA graph

``o`` and ``lse``, [rows, H, D] and [H, rows], are what
:func:`warpplan.kernels.attention_fwd.packed_launch.packed_attention` made of q, k and v under the same mask and scale;
forms, starts, strides and masks are those of that function. Rows and keys of no sequence keep what dq, dk and dv held.
What is summed in which order is said in :mod:`warpplan.kernels.attention_bwd.launch`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from warpplan.kernels.attention_bwd.launch import (
    Gradients,
    SequenceStarts,
    checked,
    gradient_launches,
    require_results,
)
from warpplan.kernels.attention_bwd.space import AttentionBwdConfig
from warpplan.kernels.attention_fwd.attention_shape import AttentionShape
from warpplan.kernels.attention_fwd.launch import checked_scale, require_lse, require_window
from warpplan.kernels.attention_fwd.packed_launch import require_lengths, require_packed
from warpplan.kernels.torch_types import Tensor
from warpplan.planner.values.tuning import TuningConfig


def packed_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, config: AttentionBwdConfig | TuningConfig, *, causal: bool = False,
    window: int | None = None, scale: float | None = None, deterministic: bool = False,
) -> Gradients:  # fmt: skip
    """(dq, dk, dv) in the operands' dtype, on the current stream. ``max_seqlen_q`` and ``max_seqlen_k`` are what
    flash-attention takes; nothing depends on them. Raises :class:`InvalidShape` for tensors that cannot be used and
    :class:`InvalidConfig` for a plan that does not fit, before any launch."""
    require_packed(q, k, v, cu_seqlens_q, cu_seqlens_k)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    prepare_packed(
        do, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, config, dq, dk, dv, causal=causal,
        window=window, scale=scale, deterministic=deterministic,
    )()  # fmt: skip
    return dq, dk, dv


def prepare_packed(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, config: AttentionBwdConfig | TuningConfig, dq: Tensor, dk: Tensor,
    dv: Tensor, *, causal: bool = False, window: int | None = None, scale: float | None = None,
    deterministic: bool = False,
) -> Callable[[], None]:  # fmt: skip
    """A call that computes ``dq``, ``dk`` and ``dv`` from the operands where they lie now, without waiting for the
    device; the first call may compile the kernels. It keeps fp32 memory of its own: two numbers, and where dq is
    reduced, D more, for each query row of each head, and for some rows more a sequence. Otherwise as
    :func:`packed_backward`."""
    require_packed(q, k, v, cu_seqlens_q, cu_seqlens_k)
    require_lengths(max_seqlen_q, max_seqlen_k)
    require_results({"do": do, "o": o, "dq": dq}, {"dk": dk, "dv": dv}, q, k)
    (rows, heads, head_dim), (keys, kv_heads, _) = q.shape, k.shape
    require_lse(lse, (heads, rows), q)
    require_window(window)
    factor = head_dim**-0.5 if scale is None else checked_scale(scale)
    chosen = checked(config, q, deterministic, packed=True)
    if not rows or not keys:
        # Nothing is seen, and TMA describes no empty tensor.
        return lambda: _zero(dq, dk, dv)
    shape = AttentionShape(cu_seqlens_q.shape[0] - 1, heads, rows, head_dim, kv_heads, keys, causal, window)
    tensors = {"do": do, "q": q, "k": k, "v": v, "o": o, "dq": dq, "dk": dk, "dv": dv}
    starts = SequenceStarts(cu_seqlens_q, cu_seqlens_k)
    return gradient_launches(tensors, lse, chosen, shape, factor, starts)


def _zero(*tensors: Tensor) -> None:
    for tensor in tensors:
        tensor.zero_()
