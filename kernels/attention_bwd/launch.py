"""Run attention backward: check the tensors, describe them to TMA, launch the kernels of a plan one after another.

    dq, dk, dv = attention_backward(do, q, k, v, o, lse, config, causal=True)
    run = prepare(do, q, k, v, o, lse, config, dq, dk, dv, causal=True); run()    # may be captured in a CUDA graph

``o`` and ``lse`` are what :func:`warpplan.kernels.attention_fwd.launch.attention` made of q, k and v under the same
mask and scale; forms, strides and masks are those of that function. ``config`` is an :class:`AttentionBwdConfig` or the
:class:`TuningConfig` that training jobs receive. A row that sees no key adds nothing, and its dq is zero.

dk and dv are summed in one order always. dq is where the plan's ``dq`` is "separate"; where it is "reduce", CTAs add
fp32 blocks in whatever order they finish, and its last bits differ from run to run. ``deterministic`` takes the plan's
like with a kernel of its own for dq instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from warpplan.kernels.attention_bwd.space import (
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
    require_operands,
    require_window,
)
from warpplan.kernels.gemm.launch import run_kernel
from warpplan.kernels.operands.gpus import device_limits, sm_count
from warpplan.kernels.torch_types import Tensor
from warpplan.kernels.triton_types import GluonLayout, TmaDescriptor
from warpplan.planner.errors import InvalidConfig, InvalidShape
from warpplan.planner.values.tuning import TuningConfig

PITCH = 4
"""Of rows of statistics in fp32 elements: TMA needs rows that start on 16 bytes."""
Gradients = tuple[Tensor, Tensor, Tensor]


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
    for name, tensor, like in (("do", do, q), ("o", o, q), ("dq", dq, q), ("dk", dk, k), ("dv", dv, v)):
        _require_like(name, tensor, like)
    for name, tensor in (("dq", dq), ("dk", dk), ("dv", dv)):
        _require_own_elements(name, tensor)
    _require_statistics(lse, q)
    require_window(window)
    factor = q.shape[3] ** -0.5 if scale is None else checked_scale(scale)
    batch, heads, q_length, head_dim = q.shape
    if head_dim not in HEAD_DIMS:
        raise InvalidShape(
            f"D={head_dim} is none of {', '.join(map(str, HEAD_DIMS))}: dK and dV of heads of 256 exceed the registers "
            "of a thread",
            field="D", value=head_dim, limit=list(HEAD_DIMS),
        )  # fmt: skip
    chosen = _checked(config, dtype_name(q.dtype), q.device.index, deterministic)
    if chosen.head_dim != head_dim:
        raise InvalidConfig(
            f"the configuration is for heads of {chosen.head_dim}, and q has {head_dim}: plan with D={head_dim}",
            field="HEAD_DIM", value=chosen.head_dim, limit=head_dim,
        )  # fmt: skip
    shape = AttentionShape(batch, heads, q_length, head_dim, k.shape[1], k.shape[2], causal, window)
    launches = _launches({"do": do, "q": q, "k": k, "v": v, "o": o, "dq": dq, "dk": dk, "dv": dv}, lse, chosen, shape,
                         factor)  # fmt: skip

    def run() -> None:
        for launch in launches:
            launch()

    return run


def band(shape: AttentionShape) -> tuple[int, int]:
    """(low, high): the rows that see key k are those from k - low to k + high, where the mask is bounded. Beyond the
    longest sequence every window is alike; so the device's sums stay within 32 bits."""
    shift = shape.k_length - shape.q_length
    return min(shape.right or 0, MAX_LENGTH) + shift, min(shape.left or 0, MAX_LENGTH) - shift


def grid_size(config: AttentionBwdConfig, units: int, sm_count: int) -> int:
    """CTAs of a launch: one for each unit of work, or, persistent, no more than are resident."""
    return min(config.ctas_per_sm * sm_count, units) if config.persistent else units


def _launches(
    tensors: dict[str, Tensor], lse: Tensor, config: AttentionBwdConfig, shape: AttentionShape, scale: float
) -> list[Callable[[], None]]:
    """The kernels in the order in which they run."""
    q, lines = tensors["q"], shape.batch_heads
    pitch = -(-shape.q_length // PITCH) * PITCH
    statistics = torch.empty((2 * lines, pitch), dtype=torch.float32, device=q.device)
    summed = None
    if config.dq == "reduce":
        summed = torch.empty((lines, shape.q_length, shape.head_dim), dtype=torch.float32, device=q.device)
    found = [_row_statistics(tensors["o"], tensors["do"], lse, statistics, summed, shape)]
    found.append(_key_gradients(tensors, statistics, summed, config, shape, scale))
    found.append(
        _converted_queries(summed, tensors["dq"], shape, scale)
        if summed is not None
        else _query_gradients(tensors, statistics, config, shape, scale)
    )
    return found


def _row_statistics(
    o: Tensor, do: Tensor, lse: Tensor, statistics: Tensor, summed: Tensor | None, shape: AttentionShape
) -> Callable[[], None]:
    from warpplan.kernels.attention_bwd import tl

    numbers = (shape.heads, shape.q_length, statistics.shape[1], *o.stride()[:3], *do.stride()[:3])
    arguments = (o, do, lse, statistics, summed, *numbers)
    keywords: dict[str, object] = {"D": shape.head_dim, "ROWS": tl.ROWS, **tl.LAUNCH_OPTIONS}
    launch = tl.row_statistics_kernel[(shape.batch_heads, -(-shape.q_length // tl.ROWS))]
    return lambda: run_kernel(launch, arguments, keywords, o)


def _converted_queries(summed: Tensor, dq: Tensor, shape: AttentionShape, scale: float) -> Callable[[], None]:
    from warpplan.kernels.attention_bwd import tl

    arguments = (summed, dq, shape.heads, shape.q_length, *dq.stride()[:3], scale)
    keywords: dict[str, object] = {"D": shape.head_dim, "ROWS": tl.ROWS, **tl.LAUNCH_OPTIONS}
    launch = tl.converted_queries_kernel[(shape.batch_heads, -(-shape.q_length // tl.ROWS))]
    return lambda: run_kernel(launch, arguments, keywords, dq)


def _key_gradients(
    tensors: dict[str, Tensor], statistics: Tensor, summed: Tensor | None, config: AttentionBwdConfig,
    shape: AttentionShape, scale: float,
) -> Callable[[], None]:  # fmt: skip
    from warpplan.kernels.attention_bwd import gluon

    boxes, q = gluon.descriptor_boxes(config), tensors["q"]
    key_heads = shape.batch * shape.kv_heads
    units = key_heads * -(-shape.k_length // config.keys)
    arguments = (
        *(describe(tensors[name], boxes[f"{name}_desc"]) for name in ("q", "k", "v", "do")),
        _describe_sums(statistics[:, : shape.q_length], boxes["statistics"]),
        *(describe(tensors[name], boxes[f"{name}_desc"]) for name in ("dk", "dv")),
        None if summed is None else _describe_sums(summed, boxes["dq_desc"]),
        units,
        key_heads,
        shape.kv_heads,
        shape.heads // shape.kv_heads,
        shape.q_length,
        shape.k_length,
        *band(shape),
        min(config.head_group, key_heads),
        scale,
        scale * LOG2_E,
    )
    constants = gluon.constants(config, shape.left is not None, shape.right is not None)
    launch = gluon.key_gradients_kernel[(grid_size(config, units, sm_count(q.device.index)),)]
    keywords = {**constants, **gluon.launch_options(config)}
    return lambda: run_kernel(launch, arguments, keywords, q)


def _query_gradients(
    tensors: dict[str, Tensor], statistics: Tensor, config: AttentionBwdConfig, shape: AttentionShape, scale: float
) -> Callable[[], None]:
    from warpplan.kernels.attention_bwd.query_gradients import gluon

    boxes, q = gluon.descriptor_boxes(config), tensors["q"]
    units = shape.batch_heads * -(-shape.q_length // config.keys)
    arguments = (
        *(describe(tensors[name], boxes[f"{name}_desc"]) for name in ("q", "k", "v", "do", "dq")),
        statistics,
        statistics.shape[1],
        units,
        shape.batch_heads,
        shape.heads,
        shape.heads // shape.kv_heads,
        shape.q_length,
        shape.k_length,
        *band(shape),
        min(config.head_group, shape.batch_heads),
        scale,
        scale * LOG2_E,
    )
    constants = gluon.constants(config, shape.left is not None, shape.right is not None)
    launch = gluon.query_gradients_kernel[(grid_size(config, units, sm_count(q.device.index)),)]
    keywords = {**constants, **gluon.launch_options(config)}
    return lambda: run_kernel(launch, arguments, keywords, q)


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

    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(box), _sums_layout(box))


def _require_like(name: str, tensor: Tensor, like: Tensor) -> None:
    if tensor.shape != like.shape or tensor.dtype != like.dtype or tensor.device != like.device:
        raise InvalidShape(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}: expected {like.dtype} "
            f"{tuple(like.shape)} on {like.device}",
            field=name,
        )
    require_addressable(name, tensor)


def _require_own_elements(name: str, tensor: Tensor) -> None:
    if overlaps(tensor):
        raise InvalidShape(
            f"{name} has strides {tuple(tensor.stride())} with {tuple(tensor.shape)} elements: some share an address",
            field=name, value=tuple(tensor.stride()),
        )  # fmt: skip


def _require_statistics(lse: Tensor, q: Tensor) -> None:
    if lse.shape != q.shape[:3] or lse.dtype != torch.float32 or lse.device != q.device or not lse.is_contiguous():
        raise InvalidShape(
            f"lse is {lse.dtype} {tuple(lse.shape)} on {lse.device} with strides {tuple(lse.stride())}: expected "
            f"contiguous torch.float32 {tuple(q.shape[:3])} on {q.device}",
            field="lse",
        )
