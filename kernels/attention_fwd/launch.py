"""Run attention forward: check the tensors, describe them to TMA, launch one kernel for all heads.

    out = attention(q, k, v, config)                            # q [B, H, L, D], k, v [B, G, M, D] -> [B, H, L, D]
    out = attention(q, k, v, config, causal=True, lse=lse)      # and the log-sum-exp, float32 [B, H, L]
    run = prepare(q, k, v, config, out, causal=True); run()     # may be captured in a CUDA graph
    out = attention(q, k, v, config, scales=(of_q, of_k, of_v)) # of float8_e4m3fn; out is bfloat16

Sequences of unlike lengths, packed: :mod:`warpplan.kernels.attention_fwd.packed_launch`.

Tensors may lie in any order of their dimensions but the last, [B, L, H, D] transposed included. ``config`` is an
:class:`AttentionConfig` or the :class:`TuningConfig` that training jobs receive.

The mask is aligned bottom right: the last query stands at the last key, so that query i of L stands at key i + M - L.
That is what flash-attention does from 2.1 on, and ``torch.nn.attention.bias.causal_lower_right``; the ``is_causal`` of
``torch.nn.functional.scaled_dot_product_attention`` is aligned upper left, which is another mask where L and M differ.
``window`` counts the keys before its position that a query sees besides its own, and as many behind it unless the mask
is causal: flash-attention's ``window_size=(window, 0)`` or ``(window, window)``. A query that sees no key has a result
of zeros and a log-sum-exp of minus infinity.

fp8 operands stand for their values times ``scales``: float32 on the GPU, each of one element, [H] (of k and v [G]) or
[B, H], above zero. The weights, the exponentials of the scores, are rounded to e4m3 too, before which they are made 2^8
times as large: those within 2^-14 of a row's largest keep three bits of fraction, an error of 2^-4 of each at most, and
those below 2^-18 of it are lost. Over many keys these errors cancel: that of the result is 1.4 % to 1.7 % of its norm
where the tests play the kernel on random numbers. The sums of weights are of those that are not rounded, in fp32. The
tensor cores add up fp8 products with fewer bits than fp32 has, around 14 (DeepSeek-V3, arXiv 2412.19437, section
3.3.2): a result may lose up to 2^-13 of its magnitude for each 32 keys, 1.6 % at 4,096 keys and 6 % at 16,384.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

import torch

from warpplan.kernels.attention_fwd.attention_shape import MAX_LENGTH, AttentionShape
from warpplan.kernels.attention_fwd.fp8.head_scales import head_scales
from warpplan.kernels.attention_fwd.kernel import attention_shape
from warpplan.kernels.attention_fwd.space import (
    ELEMENT_BYTES,
    HEAD_DIMS,
    SIXTEEN_BIT,
    AttentionConfig,
    config_of,
    require_valid,
)
from warpplan.kernels.declaration import Shape, require_elements
from warpplan.kernels.operands.contexts import bind_context
from warpplan.kernels.operands.gpus import device_limits, sm_count
from warpplan.kernels.operands.matrices import TMA_ALIGNMENT_BYTES
from warpplan.kernels.torch_types import Tensor
from warpplan.kernels.triton_types import GluonLayout, TmaDescriptor
from warpplan.planner.errors import InvalidConfig, InvalidShape, UnknownName
from warpplan.planner.values.tuning import TuningConfig

LOG2_E = math.log2(math.e)
Scales = tuple[Tensor, Tensor, Tensor]
FORMS = {"q": "[B, H, L, D]", "k": "[B, G, M, D]", "v": "[B, G, M, D]"}


def attention(
    q: Tensor, k: Tensor, v: Tensor, config: AttentionConfig | TuningConfig, *, causal: bool = False,
    window: int | None = None, scale: float | None = None, out: Tensor | None = None, lse: Tensor | None = None,
    scales: Scales | None = None,
) -> Tensor:  # fmt: skip
    """softmax(``scale`` · q · kᵀ + mask) · v of each head, in the operands' dtype, bfloat16 of fp8, on the current
    stream.

    G divides H: H / G adjacent heads of q share one of k and v. ``scale`` is 1 / √D by default. ``lse``, contiguous
    float32 [B, H, L], receives the natural logarithm of each row's sum of exponentials. Raises :class:`InvalidShape`
    for tensors that cannot be used and :class:`InvalidConfig` for a plan that does not fit, before any launch.
    """
    if out is None:
        require_operands(q, k, v, ELEMENT_BYTES)
        out = torch.empty_like(q, dtype=result_dtype(q))
    prepare(q, k, v, config, out, lse, causal=causal, window=window, scale=scale, scales=scales)()
    return out


def prepare(
    q: Tensor, k: Tensor, v: Tensor, config: AttentionConfig | TuningConfig, out: Tensor, lse: Tensor | None = None, *,
    causal: bool = False, window: int | None = None, scale: float | None = None, scales: Scales | None = None,
) -> Callable[[], None]:  # fmt: skip
    """A call that computes ``out`` from the operands where they lie now, without waiting for the device; the first call
    may compile the kernel. Of fp8 it holds memory for a second V. Otherwise as :func:`attention`."""
    require_operands(q, k, v, ELEMENT_BYTES)
    require_out(q, out)
    require_lse(lse, tuple(q.shape[:3]), q)
    require_window(window)
    factor = q.shape[3] ** -0.5 if scale is None else checked_scale(scale)
    config = checked(config, dtype_name(q.dtype), q.device.index)
    require_fitting(config, q.shape[3], packed=False)
    batch, heads, q_length, head_dim = q.shape
    shape = AttentionShape(batch, heads, q_length, head_dim, k.shape[1], k.shape[2], causal, window)
    return _launch(q, k, v, out, lse, config, shape, factor, scales)


class _FitsHeads(Protocol):
    """A configuration of one of attention's kernels."""

    @property
    def head_dim(self) -> int: ...

    @property
    def packed(self) -> bool: ...


def require_fitting(config: _FitsHeads, head_dim: int, packed: bool) -> None:
    """Raise :class:`InvalidConfig` unless ``config`` is for heads of ``head_dim``, packed or not."""
    if config.head_dim != head_dim:
        raise InvalidConfig(
            f"the configuration is for heads of {config.head_dim}, and q has {head_dim}: plan with D={head_dim}",
            field="HEAD_DIM", value=config.head_dim, limit=head_dim,
        )  # fmt: skip
    if config.packed != packed:
        kinds = ("sequences of one length", "packed sequences")
        raise InvalidConfig(
            f"the configuration is for {kinds[config.packed]}, and these are {kinds[packed]}: plan with "
            f"sizes={'equal' if packed else 'padded'}",
            field="PACKED", value=config.packed, limit=packed,
        )  # fmt: skip


def grid_size(config: AttentionConfig, shape: AttentionShape, sm_count: int) -> int:
    """CTAs of a launch: one for each unit of work, or, persistent, no more than SMs."""
    units = shape.batch_heads * -(-shape.q_length // config.tile_rows)
    return min(sm_count, units) if config.persistent else units


def _launch(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, config: AttentionConfig, shape: AttentionShape,
    scale: float, scales: Scales | None,
) -> Callable[[], None]:  # fmt: skip
    from warpplan.kernels.attention_fwd import gluon
    from warpplan.kernels.compile import element_type
    from warpplan.kernels.gemm.launch import run_kernel

    pointers, strides = head_scales(scales, q, shape.batch, shape.heads, shape.kv_heads)
    lay_out = None
    if q.element_size() == 1:
        from warpplan.kernels.attention_fwd.fp8.transposed_values import prepare_values

        v, lay_out = prepare_values(v)
    boxes = gluon.descriptor_boxes(config, element_type(dtype_name(q.dtype)))
    arguments = (
        *(describe(tensor, box) for tensor, box in zip((q, k, v, out), boxes.values(), strict=True)),
        lse,
        None,
        None,
        *pointers,
        shape.batch,
        shape.batch_heads,
        shape.heads,
        shape.heads // shape.kv_heads,
        shape.q_length,
        shape.k_length,
        *band(shape),
        min(config.head_group, shape.batch_heads),
        *strides,
        scale * LOG2_E,
    )
    constants = gluon.constants(config, shape.left is not None, shape.right is not None)
    launch = gluon.attention_fwd_kernel[(grid_size(config, shape, sm_count(q.device.index)),)]
    keywords = {**constants, **gluon.launch_options(config)}

    def run() -> None:
        if lay_out is not None:
            lay_out()
        run_kernel(launch, arguments, keywords, q)

    return run


def random_launch(shape: Shape, dtype: str, config: TuningConfig) -> Callable[[], None]:
    """A launch on random operands of ``shape`` (of :class:`~warpplan.kernels.attention_fwd.kernel.AttentionFwd`), for
    timing."""
    from warpplan.kernels.attention_fwd.packed_launch import prepare_packed

    asked = attention_shape(shape)
    batch, kind = asked.batch, getattr(torch, dtype)
    if asked.sizes is None:
        keys = (batch, asked.kv_heads, asked.k_length, asked.head_dim)
        forms = ((batch, asked.heads, asked.q_length, asked.head_dim), keys, keys)
        q, k, v = (torch.randn(form, device="cuda", dtype=torch.bfloat16).to(kind) for form in forms)
        out = torch.empty_like(q, dtype=result_dtype(q))
        scales = (q.new_ones(1, dtype=torch.float32),) * 3 if q.element_size() == 1 else None
        return prepare(q, k, v, config, out, causal=asked.causal, window=asked.window, scales=scales)
    more = asked.k_length - asked.q_length
    ends = [list(accumulate(sizes)) for sizes in (asked.sizes, [max(size + more, 0) for size in asked.sizes])]
    q_starts, k_starts = (torch.tensor([0, *listed], dtype=torch.int32, device="cuda") for listed in ends)
    heads = (asked.heads, asked.kv_heads, asked.kv_heads)
    rows = (ends[0][-1], ends[1][-1], ends[1][-1])
    q, k, v = (
        torch.randn(row, head, asked.head_dim, device="cuda", dtype=kind) for row, head in zip(rows, heads, strict=True)
    )
    return prepare_packed(
        q, k, v, q_starts, k_starts, asked.q_length, asked.k_length, config, torch.empty_like(q), causal=asked.causal,
        window=asked.window,
    )  # fmt: skip


def band(shape: AttentionShape) -> tuple[int, int]:
    """How far a query sees to the left and to the right, where that is bounded. Beyond the longest sequence every
    window is alike; so the device's sums stay within 32 bits."""
    return min(shape.left or 0, MAX_LENGTH), min(shape.right or 0, MAX_LENGTH)


@lru_cache(maxsize=1024)
def checked(config: AttentionConfig | TuningConfig, dtype: str, device: int) -> AttentionConfig:
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
def shared_box_layout(box: tuple[int, ...], dtype: torch.dtype) -> GluonLayout:
    from warpplan.kernels.attention_fwd.gluon import TYPES
    from warpplan.kernels.compile import element_type
    from warpplan.kernels.device.epilogue import shared_layout

    return shared_layout(box, TYPES[element_type(dtype_name(dtype))])


def describe(tensor: Tensor, box: tuple[int, ...]) -> TmaDescriptor:
    """The TMA descriptor of ``tensor`` with boxes of ``box``."""
    from warpplan.kernels.triton_compat import TensorDescriptor

    bind_context(tensor.device)
    return TensorDescriptor(
        tensor, list(tensor.shape), tma_strides(tensor), list(box), shared_box_layout(box, tensor.dtype)
    )


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


def require_operands(q: Tensor, k: Tensor, v: Tensor, dtypes: Collection[str] = SIXTEEN_BIT) -> None:
    require_alike(q, k, v, FORMS, dtypes)
    _require_sizes(q, k, v)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        require_addressable(name, tensor)


def require_alike(
    q: Tensor, k: Tensor, v: Tensor, forms: Mapping[str, str], dtypes: Collection[str] = SIXTEEN_BIT,
    on_gpu: bool = True,
) -> None:  # fmt: skip
    """Raise :class:`InvalidShape` unless the operands have the dimensions of ``forms``, by their names, and one dtype
    on one device, a GPU where ``on_gpu``, :class:`UnknownName` where it is none of ``dtypes``."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != forms[name].count(",") + 1:
            raise InvalidShape(f"{name} has {tensor.dim()} dimensions, expected {forms[name]}", field=name)
        if dtype_name(tensor.dtype) not in dtypes:
            raise UnknownName("dtype", dtype_name(tensor.dtype), dtypes)
        if on_gpu:
            require_gpu(name, tensor)
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise InvalidShape(
                f"q is {q.dtype} on {q.device} and {name} {tensor.dtype} on {tensor.device}: expected the same",
                field=name,
            )


def require_gpu(name: str, tensor: Tensor) -> None:
    if not tensor.is_cuda:
        raise InvalidShape(f"{name} is on {tensor.device}: move it to a GPU, {name}.cuda()", field=name)


def _require_sizes(q: Tensor, k: Tensor, v: Tensor) -> None:
    if k.shape != v.shape:
        raise InvalidShape(f"k is {tuple(k.shape)} and v {tuple(v.shape)}: expected the same shape", field="v")
    if q.shape[0] < 1:
        raise InvalidShape("B=0: expected 1 or more", field="B", value=0, limit=1)
    if q.shape[0] != k.shape[0]:
        raise InvalidShape(
            f"q is {tuple(q.shape)} and k {tuple(k.shape)}: B must agree",
            field="B", value=k.shape[0], limit=q.shape[0],
        )  # fmt: skip
    for name, size in (("L", q.shape[2]), ("M", k.shape[2])):
        if not 1 <= size <= MAX_LENGTH:
            raise InvalidShape(f"{name}={size}: expected 1 to {MAX_LENGTH}", field=name, value=size, limit=MAX_LENGTH)
    require_heads(q.shape[1], k.shape[1], q.shape[3], k.shape[3])
    require_elements("rows of q", q.shape[0] * q.shape[1], q.shape[2])
    require_elements("rows of k", k.shape[0] * k.shape[1], k.shape[2])


def require_heads(heads: int, kv_heads: int, head_dim: int, k_head_dim: int) -> None:
    """Raise :class:`InvalidShape` for heads, of Q and of K, that the kernel does not have."""
    for name, size in (("H", heads), ("G", kv_heads)):
        if size < 1:
            raise InvalidShape(f"{name}={size}: expected 1 or more", field=name, value=size, limit=1)
    if head_dim not in HEAD_DIMS:
        raise InvalidShape(
            f"D={head_dim} is none of {', '.join(map(str, HEAD_DIMS))}: pad the heads with zeros to the next",
            field="D", value=head_dim, limit=list(HEAD_DIMS),
        )  # fmt: skip
    if head_dim != k_head_dim:
        raise InvalidShape(
            f"q has heads of {head_dim} and k of {k_head_dim}: D must agree",
            field="D",
            value=k_head_dim,
            limit=head_dim,
        )
    if heads % kv_heads:
        raise InvalidShape(
            f"q has H={heads} heads and k G={kv_heads}: G must divide H, as many heads of q share each",
            field="G", value=kv_heads, limit=heads,
        )  # fmt: skip


def require_addressable(name: str, tensor: Tensor) -> None:
    if not addressable(tensor):
        copy = "clone" if tensor.is_contiguous() else "contiguous"
        raise InvalidShape(
            f"{name} has strides {tuple(tensor.stride())} and starts {tensor.data_ptr() % TMA_ALIGNMENT_BYTES} bytes "
            f"off: TMA needs the last dimension adjacent and the others apart in multiples of {TMA_ALIGNMENT_BYTES} "
            f"bytes; copy it first, {name}.{copy}()",
            field=name, value=tuple(tensor.stride()), limit=TMA_ALIGNMENT_BYTES,
        )  # fmt: skip


def require_out(q: Tensor, out: Tensor) -> None:
    """Raise :class:`InvalidShape` unless ``out`` can receive the result of ``q``."""
    dtype = result_dtype(q)
    if out.shape != q.shape or out.dtype != dtype or out.device != q.device:
        raise InvalidShape(
            f"out is {out.dtype} {tuple(out.shape)} on {out.device}: expected {dtype} {tuple(q.shape)} on {q.device}",
            field="out",
        )
    if out.numel():
        require_addressable("out", out)
    if overlaps(out):
        raise InvalidShape(
            f"out has strides {tuple(out.stride())} with {tuple(out.shape)} elements: some share an address",
            field="out", value=tuple(out.stride()),
        )  # fmt: skip


def result_dtype(q: Tensor) -> torch.dtype:
    """Of the result of operands like ``q``."""
    return torch.bfloat16 if q.element_size() == 1 else q.dtype


def require_lse(lse: Tensor | None, form: tuple[int, ...], q: Tensor) -> None:
    """Raise :class:`InvalidShape` unless ``lse`` is ``None`` or contiguous float32 of ``form`` beside ``q``."""
    if lse is None:
        return
    if lse.shape != form or lse.dtype != torch.float32 or lse.device != q.device or not lse.is_contiguous():
        raise InvalidShape(
            f"lse is {lse.dtype} {tuple(lse.shape)} on {lse.device} with strides {tuple(lse.stride())}: expected "
            f"contiguous torch.float32 {tuple(form)} on {q.device}",
            field="lse",
        )


def require_window(window: int | None) -> None:
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 0):
        raise InvalidShape(
            f"window={window!r}: expected a whole number of 0 or more, or None", field="window", value=window, limit=0
        )


def dtype_name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
