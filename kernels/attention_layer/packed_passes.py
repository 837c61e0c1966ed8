"""The two passes of attention on packed sequences by planned kernels, without autograd: as
:mod:`~warpplan.kernels.attention_layer.planned_passes` has them for sequences of one length.

The host never reads the lengths, so that the configuration is one for lengths that it guesses, from sizes that it
knows: :func:`guessed_shape`. On a CPU both passes are the references'.
"""

from __future__ import annotations

import torch

from warpplan.kernels.attention_bwd.kernel import ATTENTION_BWD
from warpplan.kernels.attention_bwd.reference import packed_gradients
from warpplan.kernels.attention_fwd.kernel import ATTENTION_FWD
from warpplan.kernels.attention_fwd.packed_launch import require_sequences
from warpplan.kernels.attention_fwd.reference import packed_reference
from warpplan.kernels.attention_layer.planned_passes import DTYPES, addressed, empty_result
from warpplan.kernels.declaration import MAX_ELEMENTS, Shape
from warpplan.kernels.operands.gpus import hopper_name
from warpplan.kernels.plan_source import configuration
from warpplan.kernels.torch_types import Tensor
from warpplan.planner.errors import InvalidShape

CPU_DTYPES = (*DTYPES.values(), "float32", "float64")
GUESSED_BITS = 3
"""Of guessed lengths, and of how many: eight plans from one power of two to the next. With the lengths as they are,
choices lose as much by the time model, 1 to 2 % (over lists of lengths as in the tests, November 2026)."""
MOST_GUESSED = 32
"""Sequences behind the longest in a guess. Twice as many make a shape longer and its choices no better (the same
lists)."""


def attend_packed(
    query: Tensor, key: Tensor, value: Tensor, q_starts: Tensor, k_starts: Tensor, longest_q: int, longest_k: int,
    causal: bool, window: int | None, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(the result, its log-sum-exp, contiguous float32 [H, rows]) without a gradient. Rows of no sequence have zeros
    and minus infinity. Operands that TMA cannot address are copied."""
    require_usable(query, key, value, q_starts, k_starts)
    out = empty_result(query)
    if not query.is_cuda:
        starts = _read_starts(q_starts, k_starts, query, key)
        found, lse = packed_reference(query, key, value, *starts, causal=causal, window=window, scale=scale)
        _clear(lse.T, starts[0], float("-inf"))
        return _clear(out.copy_(found), starts[0]), lse.float().contiguous()
    # Needs Triton, which a CPU's installation of torch lacks.
    from warpplan.kernels.attention_fwd.packed_launch import prepare_packed

    shape = guessed_shape(query, key, q_starts.shape[0] - 1, longest_q, longest_k, causal, window)
    config = configuration(ATTENTION_FWD.name, shape, DTYPES[query.dtype], hopper_name(query.device.index))
    query, key, value = addressed(query, key, value)
    lse = query.new_full((query.shape[1], query.shape[0]), float("-inf"), dtype=torch.float32)
    prepare_packed(
        query, key, value, q_starts, k_starts, longest_q, longest_k, config, out, lse, causal=causal, window=window,
        scale=scale,
    )()  # fmt: skip
    clear_rows(out, q_starts)
    return out, lse


def attend_packed_backward(
    do: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, q_starts: Tensor, k_starts: Tensor,
    longest_q: int, longest_k: int, causal: bool, window: int | None, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of query, key and value by ``do``, the gradient of ``out``; ``out`` and ``lse`` are what
    :func:`attend_packed` gave. Rows and keys of no sequence have gradients of zero. The rest is as
    :func:`~warpplan.kernels.attention_layer.planned_passes.attend_backward` has it: each lies as its operand does, and
    bits repeat under ``torch.use_deterministic_algorithms``."""
    require_usable(query, key, value, q_starts, k_starts)
    results = empty_result(query), empty_result(key), empty_result(value)
    if not query.is_cuda:
        of_q, of_k = _read_starts(q_starts, k_starts, query, key)
        right = packed_gradients(do, query, key, value, out, of_q, of_k, causal=causal, window=window, scale=scale)
        for result, found, listed in zip(results, right, (of_q, of_k, of_k), strict=True):
            _clear(result.copy_(found), listed)
        return results
    # Needs Triton, which a CPU's installation of torch lacks.
    from warpplan.kernels.attention_bwd.packed_sequences.launch import prepare_packed

    repeats = torch.are_deterministic_algorithms_enabled()
    shape = guessed_shape(query, key, q_starts.shape[0] - 1, longest_q, longest_k, causal, window)
    shape = (*shape, *(["deterministic=yes"] if repeats else []))
    config = configuration(ATTENTION_BWD.name, shape, DTYPES[query.dtype], hopper_name(query.device.index))
    do, query, key, value, out = addressed(do, query, key, value, out)
    prepare_packed(
        do, query, key, value, out, lse.contiguous(), q_starts, k_starts, longest_q, longest_k, config, *results,
        causal=causal, window=window, scale=scale, deterministic=repeats,
    )()  # fmt: skip
    for result, starts in zip(results, (q_starts, k_starts, k_starts), strict=True):
        clear_rows(result, starts)
    return results


def guessed_shape(
    query: Tensor, key: Tensor, sequences: int, longest_q: int, longest_k: int, causal: bool, window: int | None
) -> Shape:
    """The shape that a configuration is looked up by: one sequence as long as the longest, and the other rows shared
    out evenly, all rounded up to :data:`GUESSED_BITS` binary digits after the first, so that a job whose lengths change
    in each step plans a few dozen times."""
    (rows, heads, head_dim), (keys, kv_heads, _) = query.shape, key.shape
    longest, k_length = (max(min(n, total), 1) for n, total in ((longest_q, rows), (longest_k, keys)))
    more = _rounded(k_length) - _rounded(longest)
    others = sequences - 1
    mean = _rounded(max(-(-(rows - longest) // others), 0)) if others else 0
    longest = _rounded(longest)
    listed = min(_rounded(others), MOST_GUESSED, max(MAX_ELEMENTS // (heads * max(longest, longest + more)) - 1, 0))
    sizes = ",".join(map(str, (longest, *[min(mean, longest)] * listed)))
    options = {
        "mask=causal": causal,
        f"kv_heads={kv_heads}": kv_heads != heads,
        f"kv_length={longest + more}": more != 0,
        f"window={window}": window is not None,
        f"sizes={sizes}": True,
    }
    return (listed + 1, heads, longest, head_dim, *(option for option, given in options.items() if given))


def _rounded(number: int) -> int:
    """``number`` rounded up to :data:`GUESSED_BITS` binary digits after the first."""
    step = 1 << max(number.bit_length() - 1 - GUESSED_BITS, 0)
    return -(-number // step) * step


def require_usable(query: Tensor, key: Tensor, value: Tensor, q_starts: Tensor, k_starts: Tensor) -> None:
    """Raise :class:`InvalidShape` or :class:`UnknownName` unless these are operands of packed sequences, on a CPU also
    of 32 and 64 bits. Nothing is read but forms."""
    dtypes = tuple(DTYPES.values()) if query.is_cuda else CPU_DTYPES
    require_sequences(query, key, value, q_starts, k_starts, dtypes, on_gpu=False)


def _read_starts(q_starts: Tensor, k_starts: Tensor, query: Tensor, key: Tensor) -> tuple[list[int], list[int]]:
    """The starts as numbers, of tensors on a CPU. Raises :class:`InvalidShape` where they do not ascend within the
    tensors, which goes unnoticed on a GPU."""
    listed = q_starts.tolist(), k_starts.tolist()
    for name, starts, rows in zip(("cu_seqlens_q", "cu_seqlens_k"), listed, (query, key), strict=True):
        count = rows.shape[0]
        for i, (before, start) in enumerate(zip([0, *starts], starts, strict=False)):
            if not before <= start <= count:
                raise InvalidShape(
                    f"{name}[{i}]={start} does not ascend from {before} to at most {count}, the rows of its tensor",
                    field=name, value=start, limit=[before, count],
                )  # fmt: skip
    return listed


def clear_rows(tensor: Tensor, starts: Tensor) -> None:
    """Fill the rows of ``tensor`` [rows, H, D] that belong to no sequence with zeros, on its GPU, without waiting."""
    # Needs Triton, which a CPU's installation of torch lacks.
    from warpplan.kernels.attention_layer import tl
    from warpplan.kernels.gemm.launch import run_kernel

    rows, heads, head_dim = tensor.shape
    if not rows:
        return
    arguments = (tensor, starts, starts.shape[0] - 1, rows, tensor.stride(0), tensor.stride(1))
    keywords: dict[str, object] = {"HEAD_DIM": head_dim, "ROWS": tl.ROWS, "num_warps": tl.NUM_WARPS}
    run_kernel(tl.clear_rows_kernel[(-(-rows // tl.ROWS), heads)], arguments, keywords, tensor)


def _clear(tensor: Tensor, starts: list[int], empty: float = 0.0) -> Tensor:
    """The same on a CPU, with ``empty``; ``tensor``."""
    tensor[: starts[0]] = empty
    tensor[starts[-1] :] = empty
    return tensor
