"""Run attention forward: check the tensors, describe them to TMA, launch one kernel for all heads.

    out = attention(q, k, v, config)                            # q [B, H, L, D], k, v [B, G, M, D] -> [B, H, L, D]
    out = attention(q, k, v, config, causal=True, lse=lse)      # and the log-sum-exp, float32 [B, H, L]
    run = prepare(q, k, v, config, out, causal=True); run()     # may be captured in a CUDA graph

Tensors may lie in any order of their dimensions but the last, [B, L, H, D] transposed included. ``config`` is an
:class:`AttentionConfig` or the :class:`TuningConfig` that training jobs receive.

The mask is aligned bottom right: the last query stands at the last key, so that query i of L stands at key i + M - L.
That is what flash-attention does from 2.1 on, and ``torch.nn.attention.bias.causal_lower_right``; the ``is_causal`` of
``torch.nn.functional.scaled_dot_product_attention`` is aligned upper left, which is another mask where L and M differ.
``window`` counts the keys before its position that a query sees besides its own, and as many behind it unless the mask
is causal: flash-attention's ``window_size=(window, 0)`` or ``(window, window)``. A query that sees no key has a result
of zeros and a log-sum-exp of minus infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch

from warpplan.kernels.attention_fwd.attention_shape import MAX_LENGTH, AttentionShape
from warpplan.kernels.attention_fwd.space import ELEMENT_BYTES, HEAD_DIMS, AttentionConfig, config_of, require_valid
from warpplan.kernels.compile import element_type
from warpplan.kernels.declaration import require_elements
from warpplan.kernels.gemm.launch import run_kernel
from warpplan.kernels.operands.gpus import device_limits, sm_count
from warpplan.kernels.operands.matrices import TMA_ALIGNMENT_BYTES
from warpplan.kernels.torch_types import Tensor
from warpplan.kernels.triton_types import GluonLayout, TmaDescriptor
from warpplan.planner.errors import InvalidConfig, InvalidShape, UnknownName
from warpplan.planner.values.tuning import TuningConfig

LOG2_E = math.log2(math.e)
FORMS = {"q": "[B, H, L, D]", "k": "[B, G, M, D]", "v": "[B, G, M, D]"}


def attention(
    q: Tensor, k: Tensor, v: Tensor, config: AttentionConfig | TuningConfig, *, causal: bool = False,
    window: int | None = None, scale: float | None = None, out: Tensor | None = None, lse: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """softmax(``scale`` · q · kᵀ + mask) · v of each head, in the operands' dtype, on the current stream.

    G divides H: H / G adjacent heads of q share one of k and v. ``scale`` is 1 / √D by default. ``lse``, contiguous
    float32 [B, H, L], receives the natural logarithm of each row's sum of exponentials. Raises :class:`InvalidShape`
    for tensors that cannot be used and :class:`InvalidConfig` for a plan that does not fit, before any launch.
    """
    if out is None:
        require_operands(q, k, v)
        out = torch.empty_like(q)
    prepare(q, k, v, config, out, lse, causal=causal, window=window, scale=scale)()
    return out


def prepare(
    q: Tensor, k: Tensor, v: Tensor, config: AttentionConfig | TuningConfig, out: Tensor, lse: Tensor | None = None, *,
    causal: bool = False, window: int | None = None, scale: float | None = None,
) -> Callable[[], None]:  # fmt: skip
    """A call that computes ``out`` from the operands where they lie now, without waiting for the device; the first call
    may compile the kernel. Otherwise as :func:`attention`."""
    require_operands(q, k, v)
    _require_results(q, out, lse)
    require_window(window)
    factor = q.shape[3] ** -0.5 if scale is None else checked_scale(scale)
    config = _checked(config, dtype_name(q.dtype), q.device.index)
    if config.head_dim != q.shape[3]:
        raise InvalidConfig(
            f"the configuration is for heads of {config.head_dim}, and q has {q.shape[3]}: plan with D={q.shape[3]}",
            field="HEAD_DIM", value=config.head_dim, limit=q.shape[3],
        )  # fmt: skip
    batch, heads, q_length, head_dim = q.shape
    shape = AttentionShape(batch, heads, q_length, head_dim, k.shape[1], k.shape[2], causal, window)
    return _launch(q, k, v, out, lse, config, shape, factor)


def grid_size(config: AttentionConfig, shape: AttentionShape, sm_count: int) -> int:
    """CTAs of a launch: one for each unit of work, or, persistent, no more than SMs."""
    units = shape.batch_heads * -(-shape.q_length // config.tile_rows)
    return min(sm_count, units) if config.persistent else units


def _launch(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, config: AttentionConfig, shape: AttentionShape,
    scale: float,
) -> Callable[[], None]:  # fmt: skip
    from warpplan.kernels.attention_fwd import gluon

    rows, keys = gluon.descriptor_boxes(config)
    arguments = (
        *(describe(tensor, box) for tensor, box in ((q, rows), (k, keys), (v, keys), (out, rows))),
        lse,
        shape.batch_heads,
        shape.heads,
        shape.heads // shape.kv_heads,
        shape.q_length,
        shape.k_length,
        # Beyond the longest sequence every window is alike; so the device's sums stay within 32 bits.
        min(shape.left or 0, MAX_LENGTH),
        min(shape.right or 0, MAX_LENGTH),
        min(config.head_group, shape.batch_heads),
        scale * LOG2_E,
    )
    constants = gluon.constants(config, shape.left is not None, shape.right is not None)
    launch = gluon.attention_fwd_kernel[(grid_size(config, shape, sm_count(q.device.index)),)]
    keywords = {**constants, **gluon.launch_options(config)}
    return lambda: run_kernel(launch, arguments, keywords, q)


@lru_cache(maxsize=1024)
def _checked(config: AttentionConfig | TuningConfig, dtype: str, device: int) -> AttentionConfig:
    """``config`` once it is known to be valid; a training job launches a few configurations many times."""
    if isinstance(config, TuningConfig):
        config = config_of(config)
    require_valid(config, dtype, device_limits(device))
    return config


def checked_scale(scale: float) -> float:
    if not (math.isfinite(scale) and scale > 0):
        raise InvalidShape(f"scale={scale}: expected a finite number above 0", field="scale", value=scale, limit=0)
    return float(scale)


@lru_cache(maxsize=1024)
def _layout(box: tuple[int, ...], dtype: torch.dtype) -> GluonLayout:
    from warpplan.kernels.attention_fwd.gluon import TYPES
    from warpplan.kernels.device.epilogue import shared_layout

    return shared_layout(box, TYPES[element_type(dtype_name(dtype))])


def describe(tensor: Tensor, box: tuple[int, ...]) -> TmaDescriptor:
    """The TMA descriptor of ``tensor`` with boxes of ``box``."""
    from warpplan.kernels.triton_compat import TensorDescriptor

    return TensorDescriptor(tensor, list(tensor.shape), tma_strides(tensor), list(box), _layout(box, tensor.dtype))


def tma_strides(tensor: Tensor) -> list[int]:
    """Strides in elements, with those of dimensions of one, which no address depends on, made regular."""
    sizes, regular = tensor.shape, [1]
    for size in reversed(sizes[1:]):
        regular.insert(0, regular[0] * size)
    return [s if size > 1 else r for s, size, r in zip(tensor.stride(), sizes, regular, strict=True)]


def addressable(tensor: Tensor) -> bool:
    """Whether TMA can address ``tensor``: base and strides on 16 bytes, the last dimension adjacent, no stride of 0."""
    strides = tma_strides(tensor)
    aligned = all(s > 0 and s * tensor.element_size() % TMA_ALIGNMENT_BYTES == 0 for s in strides[:-1])
    return strides[-1] == 1 and aligned and tensor.data_ptr() % TMA_ALIGNMENT_BYTES == 0


def overlaps(tensor: Tensor) -> bool:
    """Whether two elements of ``tensor`` may share an address: a dimension's stride is within what the inner ones
    span."""
    span = 1
    for stride, size in sorted((s, n) for s, n in zip(tma_strides(tensor), tensor.shape, strict=True) if n > 1):
        if stride < span:
            return True
        span += stride * (size - 1)
    return False


def require_operands(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise InvalidShape(f"{name} has {tensor.dim()} dimensions, expected {FORMS[name]}", field=name)
        if dtype_name(tensor.dtype) not in ELEMENT_BYTES:
            raise UnknownName("dtype", dtype_name(tensor.dtype), ELEMENT_BYTES)
        require_gpu(name, tensor)
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise InvalidShape(
                f"q is {q.dtype} on {q.device} and {name} {tensor.dtype} on {tensor.device}: expected the same",
                field=name,
            )
    _require_sizes(q, k, v)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        require_addressable(name, tensor)


def require_gpu(name: str, tensor: Tensor) -> None:
    if not tensor.is_cuda:
        raise InvalidShape(f"{name} is on {tensor.device}: move it to a GPU, {name}.cuda()", field=name)


def _require_sizes(q: Tensor, k: Tensor, v: Tensor) -> None:
    if k.shape != v.shape:
        raise InvalidShape(f"k is {tuple(k.shape)} and v {tuple(v.shape)}: expected the same shape", field="v")
    for name, size in (("B", q.shape[0]), ("H", q.shape[1]), ("G", k.shape[1])):
        if size < 1:
            raise InvalidShape(f"{name}={size}: expected 1 or more", field=name, value=size, limit=1)
    for name, size in (("L", q.shape[2]), ("M", k.shape[2])):
        if not 1 <= size <= MAX_LENGTH:
            raise InvalidShape(f"{name}={size}: expected 1 to {MAX_LENGTH}", field=name, value=size, limit=MAX_LENGTH)
    if q.shape[3] not in HEAD_DIMS:
        raise InvalidShape(
            f"D={q.shape[3]} is none of {', '.join(map(str, HEAD_DIMS))}: pad the heads with zeros to the next",
            field="D", value=q.shape[3], limit=list(HEAD_DIMS),
        )  # fmt: skip
    for name, axis in (("B", 0), ("D", 3)):
        if q.shape[axis] != k.shape[axis]:
            raise InvalidShape(
                f"q is {tuple(q.shape)} and k {tuple(k.shape)}: {name} must agree",
                field=name, value=k.shape[axis], limit=q.shape[axis],
            )  # fmt: skip
    if q.shape[1] % k.shape[1]:
        raise InvalidShape(
            f"q has H={q.shape[1]} heads and k G={k.shape[1]}: G must divide H, as many heads of q share each",
            field="G", value=k.shape[1], limit=q.shape[1],
        )  # fmt: skip
    require_elements("rows of q", q.shape[0] * q.shape[1], q.shape[2])
    require_elements("rows of k", k.shape[0] * k.shape[1], k.shape[2])


def require_addressable(name: str, tensor: Tensor) -> None:
    if not addressable(tensor):
        copy = "clone" if tensor.is_contiguous() else "contiguous"
        raise InvalidShape(
            f"{name} has strides {tuple(tensor.stride())} and starts {tensor.data_ptr() % TMA_ALIGNMENT_BYTES} bytes "
            f"off: TMA needs the last dimension adjacent and the others apart in multiples of {TMA_ALIGNMENT_BYTES} "
            f"bytes; copy it first, {name}.{copy}()",
            field=name, value=tuple(tensor.stride()), limit=TMA_ALIGNMENT_BYTES,
        )  # fmt: skip


def _require_results(q: Tensor, out: Tensor, lse: Tensor | None) -> None:
    if out.shape != q.shape or out.dtype != q.dtype or out.device != q.device:
        raise InvalidShape(
            f"out is {out.dtype} {tuple(out.shape)} on {out.device}: expected {q.dtype} {tuple(q.shape)} on {q.device}",
            field="out",
        )
    require_addressable("out", out)
    if overlaps(out):
        raise InvalidShape(
            f"out has strides {tuple(out.stride())} with {tuple(out.shape)} elements: some share an address",
            field="out", value=tuple(out.stride()),
        )  # fmt: skip
    if lse is None:
        return
    if lse.shape != q.shape[:3] or lse.dtype != torch.float32 or lse.device != q.device or not lse.is_contiguous():
        raise InvalidShape(
            f"lse is {lse.dtype} {tuple(lse.shape)} on {lse.device} with strides {tuple(lse.stride())}: expected "
            f"contiguous torch.float32 {tuple(q.shape[:3])} on {q.device}",
            field="lse",
        )


def require_window(window: int | None) -> None:
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 0):
        raise InvalidShape(
            f"window={window!r}: expected a whole number of 0 or more, or None", field="window", value=window, limit=0
        )


def dtype_name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
