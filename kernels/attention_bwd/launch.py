"""Run attention backward: check the tensors, describe them to TMA, launch the kernels of a plan one after another.

    dq, dk, dv = attention_backward(do, q, k, v, o, lse, config, causal=True)
    run = prepare(do, q, k, v, o, lse, config, dq, dk, dv, causal=True); run()    # may be captured in a CUDA graph

``o`` and ``lse`` are what :func:`warpplan.kernels.attention_fwd.launch.attention` made of q, k and v under the same
mask and scale; forms, strides and masks are those of that function. ``config`` is an :class:`AttentionBwdConfig` or the
:class:`TuningConfig` that training jobs receive. A row that sees no key adds nothing, and its dq is zero.

dk and dv are summed in one order always. dq is where the plan's ``dq`` is "separate"; where it is "reduce", CTAs add
fp32 blocks in whatever order they finish, and its last bits differ from run to run. ``deterministic`` takes the plan's
like with a kernel of its own for dq instead.

Sequences of unlike lengths, packed: :mod:`warpplan.kernels.attention_bwd.packed_sequences.launch`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch

from warpplan.kernels.attention_bwd.space import (
    ALIGNED_ROWS,
    HEAD_DIMS,
    AttentionBwdConfig,
    config_of,
    deterministic,
    require_valid,
)
from warpplan.kernels.attention_fwd.attention_shape import MAX_LENGTH, AttentionShape
from warpplan.kernels.attention_fwd.launch import (
    LOG2_E,
    checked_scale,
    describe,
    dtype_name,
    overlaps,
    require_addressable,
    require_fitting,
    require_lse,
    require_operands,
    require_window,
)
from warpplan.kernels.attention_fwd.packed_launch import describe_ragged
from warpplan.kernels.gemm.launch import run_kernel
from warpplan.kernels.operands.contexts import bind_context
from warpplan.kernels.operands.gpus import device_limits, sm_count
from warpplan.kernels.torch_types import Tensor
from warpplan.kernels.triton_types import GluonLayout, TmaDescriptor
from warpplan.planner.errors import InvalidShape
from warpplan.planner.values.tuning import TuningConfig

Gradients = tuple[Tensor, Tensor, Tensor]
UNBOUNDED = 1 << 29
"""Keys behind its position that a row of packed sequences sees where none are hidden; sums with row numbers are still
an int32."""


class SequenceStarts(NamedTuple):
    """Where packed sequences begin in queries and in keys, int32, and at last where the last one ends."""

    q: Tensor
    k: Tensor


def attention_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, config: AttentionBwdConfig | TuningConfig, *,
    causal: bool = False, window: int | None = None, scale: float | None = None, deterministic: bool = False,
) -> Gradients:  # fmt: skip
    """(dq, dk, dv) in the operands' dtype, on the current stream. Raises :class:`InvalidShape` for tensors that cannot
    be used and :class:`InvalidConfig` for a plan that does not fit, before any launch."""
    require_operands(q, k, v)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    run = prepare(
        do, q, k, v, o, lse, config, dq, dk, dv, causal=causal, window=window, scale=scale, deterministic=deterministic
    )
    run()
    return dq, dk, dv


def prepare(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, config: AttentionBwdConfig | TuningConfig,
    dq: Tensor, dk: Tensor, dv: Tensor, *, causal: bool = False, window: int | None = None, scale: float | None = None,
    deterministic: bool = False,
) -> Callable[[], None]:  # fmt: skip
    """A call that computes ``dq``, ``dk`` and ``dv`` from the operands where they lie now, without waiting for the
    device; the first call may compile the kernels. It keeps fp32 memory of its own: two numbers a query row, and where
    dq is reduced, a matrix of dq's size. Otherwise as :func:`attention_backward`."""
    require_operands(q, k, v)
    require_results({"do": do, "o": o, "dq": dq}, {"dk": dk, "dv": dv}, q, k)
    require_lse(lse, tuple(q.shape[:3]), q)
    require_window(window)
    factor = q.shape[3] ** -0.5 if scale is None else checked_scale(scale)
    batch, heads, q_length, head_dim = q.shape
    chosen = checked(config, q, deterministic, packed=False)
    shape = AttentionShape(batch, heads, q_length, head_dim, k.shape[1], k.shape[2], causal, window)
    tensors = {"do": do, "q": q, "k": k, "v": v, "o": o, "dq": dq, "dk": dk, "dv": dv}
    return gradient_launches(tensors, lse, chosen, shape, factor)


def band(shape: AttentionShape, packed: bool = False) -> tuple[int, int]:
    """(low, high): the rows that see key k are those from k - low to k + high, where the mask is bounded; of packed
    sequences the device adds how many more keys each has than queries. Beyond the longest sequence every window is
    alike; so the device's sums stay within 32 bits."""
    if packed:
        right = UNBOUNDED if shape.right is None else min(shape.right, MAX_LENGTH)
        return right, min(shape.left or 0, MAX_LENGTH)
    shift = shape.k_length - shape.q_length
    return min(shape.right or 0, MAX_LENGTH) + shift, min(shape.left or 0, MAX_LENGTH) - shift


def grid_size(config: AttentionBwdConfig, units: int, sm_count: int) -> int:
    """CTAs of a launch: one for each unit of work, or, persistent, no more than are resident."""
    return min(config.ctas_per_sm * sm_count, units) if config.persistent else units


def tile_count(config: AttentionBwdConfig, length: int, sequences: int) -> int:
    """Tiles of a head of ``length`` rows; of packed sequences, as many as there may be."""
    return length // config.keys + sequences if config.packed else -(-length // config.keys)


def spread_rows(config: AttentionBwdConfig, rows: int, sequences: int) -> int:
    """Rows of the statistics and of the fp32 dQ, which lie spread where sequences are packed."""
    return -(-(rows + config.gap_rows * sequences) // ALIGNED_ROWS) * ALIGNED_ROWS


def gradient_launches(
    tensors: dict[str, Tensor], lse: Tensor, config: AttentionBwdConfig, shape: AttentionShape, scale: float,
    starts: SequenceStarts | None = None,
) -> Callable[[], None]:  # fmt: skip
    """A call that runs the kernels one after the other. ``tensors`` by their names; of packed sequences, as many as
    the batch of ``shape``, its lengths are those of all."""
    q, lines = tensors["q"], shape.heads if config.packed else shape.batch_heads
    rows = spread_rows(config, shape.q_length, shape.batch)
    statistics = torch.empty((2 * lines, rows), dtype=torch.float32, device=q.device)
    summed = None
    if config.dq == "reduce":
        summed = torch.empty((lines, rows, shape.head_dim), dtype=torch.float32, device=q.device)
    given = _Spread(config, shape, scale, starts, statistics, summed)
    launches = [_row_statistics(tensors["o"], tensors["do"], lse, given), _key_gradients(tensors, given)]
    launches.append(_query_gradients(tensors, given) if summed is None else _converted_queries(tensors["dq"], given))

    def run() -> None:
        for launch in launches:
            launch()

    return run


class _Spread(NamedTuple):
    """What the launches of one pass share."""

    config: AttentionBwdConfig
    shape: AttentionShape
    scale: float
    starts: SequenceStarts | None
    statistics: Tensor
    summed: Tensor | None

    def strides(self, tensor: Tensor) -> tuple[int, int, int]:
        """Of batches, heads and rows."""
        if self.config.packed:
            return 0, tensor.stride(1), tensor.stride(0)
        return tensor.stride(0), tensor.stride(1), tensor.stride(2)

    def described(self, tensor: Tensor, box: tuple[int, ...]) -> TmaDescriptor:
        return describe_ragged(tensor, box) if self.config.packed else describe(tensor, box)

    def extents(self, heads: int, in_batch: int, length: int) -> tuple[int, ...]:
        """The numbers of the Gluon kernels: ``length`` rows are divided into tiles, of ``heads`` in all."""
        shape, tiles = self.shape, tile_count(self.config, length, self.shape.batch)
        return (
            shape.batch,
            heads * tiles,
            tiles,
            heads,
            in_batch,
            shape.heads // shape.kv_heads,
            shape.q_length,
            shape.k_length,
            *band(shape, self.config.packed),
            min(self.config.head_group, heads),
        )


def _row_statistics(o: Tensor, do: Tensor, lse: Tensor, given: _Spread) -> Callable[[], None]:
    from warpplan.kernels.attention_bwd import tl

    shape, (lines, rows) = given.shape, given.statistics.shape
    numbers = (shape.batch, shape.heads, shape.q_length, rows, *given.strides(o), *given.strides(do))
    starts = None if given.starts is None else given.starts.q
    arguments = (o, do, lse, given.statistics, given.summed, starts, *numbers, given.config.gap_rows)
    keywords: dict[str, object] = {**tl.constants(given.config), **tl.LAUNCH_OPTIONS}
    launch = tl.row_statistics_kernel[(lines // 2, -(-rows // tl.ROWS))]
    return lambda: run_kernel(launch, arguments, keywords, o)


def _converted_queries(dq: Tensor, given: _Spread) -> Callable[[], None]:
    from warpplan.kernels.attention_bwd import tl

    shape, (lines, rows) = given.shape, given.statistics.shape
    numbers = (shape.batch, shape.heads, shape.q_length, rows, *given.strides(dq), given.config.gap_rows)
    starts = None if given.starts is None else given.starts.q
    arguments = (given.summed, dq, starts, *numbers, given.scale)
    keywords: dict[str, object] = {**tl.constants(given.config), **tl.LAUNCH_OPTIONS}
    launch = tl.converted_queries_kernel[(lines // 2, -(-shape.q_length // tl.ROWS))]
    return lambda: run_kernel(launch, arguments, keywords, dq)


def _key_gradients(tensors: dict[str, Tensor], given: _Spread) -> Callable[[], None]:
    from warpplan.kernels.attention_bwd import gluon

    config, shape = given.config, given.shape
    boxes, q = gluon.descriptor_boxes(config), tensors["q"]
    key_heads = shape.kv_heads if config.packed else shape.batch * shape.kv_heads
    rows = given.statistics.shape[1] if config.packed else shape.q_length
    extents = given.extents(key_heads, shape.kv_heads, shape.k_length)
    arguments = (
        *(given.described(tensors[name], boxes[f"{name}_desc"]) for name in ("q", "k", "v", "do")),
        _describe_sums(given.statistics[:, :rows], boxes["statistics"]),
        *(given.described(tensors[name], boxes[f"{name}_desc"]) for name in ("dk", "dv")),
        None if given.summed is None else _describe_sums(given.summed[:, :rows], boxes["dq_desc"]),
        *(given.starts or (None, None)),
        *extents,
        given.scale,
        given.scale * LOG2_E,
    )
    constants = gluon.constants(config, shape.left is not None, shape.right is not None, shape.batch)
    launch = gluon.key_gradients_kernel[(grid_size(config, extents[1], sm_count(q.device.index)),)]
    keywords = {**constants, **gluon.launch_options(config)}
    return lambda: run_kernel(launch, arguments, keywords, q)


def _query_gradients(tensors: dict[str, Tensor], given: _Spread) -> Callable[[], None]:
    from warpplan.kernels.attention_bwd.query_gradients import gluon

    config, shape = given.config, given.shape
    boxes, q = gluon.descriptor_boxes(config), tensors["q"]
    heads = shape.heads if config.packed else shape.batch_heads
    extents = given.extents(heads, shape.heads, shape.q_length)
    arguments = (
        *(given.described(tensors[name], boxes[f"{name}_desc"]) for name in ("q", "k", "v", "do", "dq")),
        given.statistics,
        *(given.starts or (None, None)),
        given.statistics.shape[1],
        *extents,
        given.scale,
        given.scale * LOG2_E,
    )
    constants = gluon.constants(config, shape.left is not None, shape.right is not None, shape.batch)
    launch = gluon.query_gradients_kernel[(grid_size(config, extents[1], sm_count(q.device.index)),)]
    keywords = {**constants, **gluon.launch_options(config)}
    return lambda: run_kernel(launch, arguments, keywords, q)


def checked(config: AttentionBwdConfig | TuningConfig, q: Tensor, repeats: bool, packed: bool) -> AttentionBwdConfig:
    """``config`` once it is known to be valid for the heads of ``q``, packed or not. Raises :class:`InvalidShape` for
    heads that no configuration has, :class:`InvalidConfig` for one that does not fit."""
    head_dim = q.shape[-1]
    if head_dim not in HEAD_DIMS:
        raise InvalidShape(
            f"D={head_dim} is none of {', '.join(map(str, HEAD_DIMS))}: dK and dV of heads of 256 exceed the registers "
            "of a thread",
            field="D", value=head_dim, limit=list(HEAD_DIMS),
        )  # fmt: skip
    chosen = _checked(config, dtype_name(q.dtype), q.device.index, repeats)
    require_fitting(chosen, head_dim, packed)
    return chosen


@lru_cache(maxsize=1024)
def _checked(config: AttentionBwdConfig | TuningConfig, dtype: str, device: int, repeats: bool) -> AttentionBwdConfig:
    """``config`` once it is known to be valid, its like without reductions where every run must give the same bits; a
    training job launches a few configurations many times."""
    if isinstance(config, TuningConfig):
        config = config_of(config)
    if repeats:
        config = deterministic(config)
    require_valid(config, dtype, device_limits(device))
    return config


@lru_cache(maxsize=1024)
def _sums_layout(box: tuple[int, ...]) -> GluonLayout:
    from warpplan.kernels.device.epilogue import shared_layout
    from warpplan.kernels.triton_compat import gl

    return shared_layout(box, gl.float32)


def _describe_sums(tensor: Tensor, box: tuple[int, ...]) -> TmaDescriptor:
    """The TMA descriptor of an fp32 ``tensor`` with boxes of ``box``."""
    from warpplan.kernels.triton_compat import TensorDescriptor

    bind_context(tensor.device)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(box), _sums_layout(box))


def require_results(by_query: dict[str, Tensor], by_key: dict[str, Tensor], q: Tensor, k: Tensor) -> None:
    """Raise :class:`InvalidShape` unless each tensor, by its name, has the form of ``q`` or of ``k``, and those that
    are written no two elements at one address."""
    for tensors, like in ((by_query, q), (by_key, k)):
        for name, tensor in tensors.items():
            _require_like(name, tensor, like)
    for name, tensor in (by_query | by_key).items():
        if name.startswith("d") and name != "do":
            _require_own_elements(name, tensor)


def _require_like(name: str, tensor: Tensor, like: Tensor) -> None:
    if tensor.shape != like.shape or tensor.dtype != like.dtype or tensor.device != like.device:
        raise InvalidShape(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}: expected {like.dtype} "
            f"{tuple(like.shape)} on {like.device}",
            field=name,
        )
    if tensor.numel():
        require_addressable(name, tensor)


def _require_own_elements(name: str, tensor: Tensor) -> None:
    if overlaps(tensor):
        raise InvalidShape(
            f"{name} has strides {tuple(tensor.stride())} with {tuple(tensor.shape)} elements: some share an address",
            field=name, value=tuple(tensor.stride()),
        )  # fmt: skip
