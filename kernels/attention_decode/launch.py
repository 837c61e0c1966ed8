"""Run decoding attention: check the tensors, describe K and V to TMA, launch one kernel, or two where keys are split.

    out = attention_decode(q, k, v, config)              # q [B, H, L, D], k, v [B, G, N, D] -> [B, H, L, D]
    out = attention_decode(q, k, v, config, lengths)     # sequence b has the first lengths[b] keys
    run = prepare(q, k, v, config, out, lengths); run()  # may be captured in a CUDA graph

``q`` has 1 to 16 queries L, and 64 rows of the heads that share a key head, or fewer. The last query stands at its
sequence's last key, and each sees the keys up to its own. ``lengths``, int32 [B] on the same GPU, is read by the device
alone, at every launch; numbers outside of 0 to N are held within. What lies behind a sequence's keys is never read. A
query that sees no key has a result of zeros and a log-sum-exp of minus infinity. Two runs give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from warpplan.kernels.attention_decode.kernel import decode_shape
from warpplan.kernels.attention_decode.space import (
    MAX_QUERIES,
    MAX_ROWS,
    DecodeConfig,
    config_of,
    require_valid,
)
from warpplan.kernels.attention_fwd.launch import (
    FORMS,
    LOG2_E,
    checked_scale,
    dtype_name,
    require_addressable,
    require_alike,
    require_heads,
    require_lse,
    require_out,
    shared_box_layout,
    tma_strides,
)
from warpplan.kernels.declaration import Shape
from warpplan.kernels.gemm.launch import run_kernel
from warpplan.kernels.operands.contexts import bind_context
from warpplan.kernels.operands.gpus import device_limits
from warpplan.kernels.torch_types import Tensor
from warpplan.kernels.triton_types import TmaDescriptor
from warpplan.planner.errors import InvalidConfig, InvalidShape
from warpplan.planner.values.tuning import TuningConfig

MAX_KEY_ROWS = 1 << 30
"""Of all sequences together, gaps between them included: what a ragged descriptor reaches."""


def attention_decode(
    q: Tensor, k: Tensor, v: Tensor, config: DecodeConfig | TuningConfig, lengths: Tensor | None = None, *,
    scale: float | None = None, out: Tensor | None = None, lse: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """softmax(``scale`` · q · kᵀ + mask) · v of each head, in the operands' dtype, on the current stream.

    G divides H: H / G adjacent heads of q share one of k and v. ``scale`` is 1 / √D by default. ``lse``, contiguous
    float32 [B, H, L], receives each row's log-sum-exp. Raises :class:`InvalidShape` for tensors that cannot be used and
    :class:`InvalidConfig` for a plan that does not fit, before any launch.
    """
    if out is None:
        _require_decode(q, k, v, lengths)
        out = torch.empty_like(q)
    prepare(q, k, v, config, out, lengths, lse, scale=scale)()
    return out


def prepare(
    q: Tensor, k: Tensor, v: Tensor, config: DecodeConfig | TuningConfig, out: Tensor, lengths: Tensor | None = None,
    lse: Tensor | None = None, *, scale: float | None = None,
) -> Callable[[], None]:  # fmt: skip
    """A call that computes ``out`` from the operands where they lie now, without waiting for the device; the first call
    may compile the kernels. It holds the memory that splits leave their results in. Otherwise as
    :func:`attention_decode`."""
    _require_decode(q, k, v, lengths)
    require_out(q, out)
    require_lse(lse, tuple(q.shape[:3]), q)
    factor = q.shape[3] ** -0.5 if scale is None else checked_scale(scale)
    config = _checked(config, dtype_name(q.dtype), q.device.index)
    if config.head_dim != q.shape[3]:
        raise InvalidConfig(
            f"the configuration is for heads of {config.head_dim}, and q has {q.shape[3]}: plan with D={q.shape[3]}",
            field="HEAD_DIM", value=config.head_dim, limit=q.shape[3],
        )  # fmt: skip
    return _launch(q, k, v, lengths, out, lse, config, factor)


def random_launch(shape: Shape, dtype: str, config: TuningConfig) -> Callable[[], None]:
    """A launch on random operands of ``shape`` (of :class:`~warpplan.kernels.attention_decode.kernel.AttentionDecode`),
    for timing."""
    asked, kind = decode_shape(shape), getattr(torch, dtype)
    q = torch.randn(asked.batch, asked.heads, asked.queries, asked.head_dim, device="cuda", dtype=kind)
    form = (asked.batch, asked.kv_heads, asked.keys, asked.head_dim)
    k, v = (torch.randn(form, device="cuda", dtype=kind) for _ in range(2))
    return prepare(q, k, v, config, torch.empty_like(q))


def key_rows(tensor: Tensor) -> int | None:
    """Rows of K or V [B, G, N, D] from one sequence's first key to the next one's, 0 where there is one sequence;
    ``None`` where it is no whole number, so that a descriptor cannot count them."""
    batch, _, row, _ = tma_strides(tensor)
    if tensor.shape[0] == 1:
        return 0
    return None if batch % row else batch // row


def _launch(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, out: Tensor, lse: Tensor | None, config: DecodeConfig,
    scale: float,
) -> Callable[[], None]:  # fmt: skip
    from warpplan.kernels.attention_decode import gluon

    (batch, heads, queries, head_dim), (_, kv_heads, keys, _) = q.shape, k.shape
    sharers, splits = heads // kv_heads, config.splits
    box = gluon.descriptor_box(config)
    result, statistics = out, lse
    if splits > 1:
        form = (batch, kv_heads, splits, sharers * queries)
        result, statistics = (q.new_empty(f, dtype=torch.float32) for f in ((*form, head_dim), form))
    apart = tma_strides(out)[:3]
    arguments = (
        *(_describe_rows(tensor, box) for tensor in (k, v)),
        q,
        result,
        statistics,
        lengths,
        *tma_strides(q)[:3],
        *apart,
        sharers,
        queries,
        keys,
        key_rows(k),
        kv_heads,
        splits,
        scale * LOG2_E,
    )
    launch = gluon.attention_decode_kernel[(batch * kv_heads * splits,)]
    keywords = {**gluon.constants(config, queries > 1), **gluon.launch_options(config)}
    if splits == 1:
        return lambda: run_kernel(launch, arguments, keywords, q)

    from warpplan.kernels.attention_decode import tl

    combine = tl.combine_splits_kernel[(batch * heads * queries,)]
    parts = (result, statistics, out, lse, *apart, sharers, queries, kv_heads, splits)
    most = 1 << (splits - 1).bit_length()
    constants = {"HEAD_DIM": head_dim, "MOST_SPLITS": most, "TOGETHER": tl.TOGETHER, "num_warps": 4, "num_stages": 1}

    def run() -> None:
        run_kernel(launch, arguments, keywords, q)
        run_kernel(combine, parts, constants, q)

    return run


@lru_cache(maxsize=1024)
def _checked(config: DecodeConfig | TuningConfig, dtype: str, device: int) -> DecodeConfig:
    """``config`` once it is known to be valid; a server launches a few configurations many times."""
    if isinstance(config, TuningConfig):
        config = config_of(config)
    require_valid(config, dtype, device_limits(device))
    return config


def _describe_rows(tensor: Tensor, box: tuple[int, ...]) -> TmaDescriptor:
    """The ragged TMA descriptor of K or V [B, G, N, D]: the rows of all sequences, [rows, G, D]."""
    from warpplan.kernels.device.boxes import ragged_form
    from warpplan.kernels.triton_compat import TensorDescriptor

    _, head, row, _ = tma_strides(tensor)
    batch, kv_heads, keys, head_dim = tensor.shape
    form = ragged_form((batch * keys, kv_heads, head_dim), (row, head, 1))
    bind_context(tensor.device)
    return TensorDescriptor(tensor, *form, list(box), shared_box_layout(box, tensor.dtype))


def _require_decode(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> None:
    require_alike(q, k, v, FORMS)
    if k.shape != v.shape or q.shape[0] != k.shape[0]:
        raise InvalidShape(
            f"q is {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}: expected [B, H, L, D] and [B, G, N, D] "
            "twice",
            field="k",
        )
    require_heads(q.shape[1], k.shape[1], q.shape[3], k.shape[3])
    rows = q.shape[1] // k.shape[1] * q.shape[2]
    if not 1 <= q.shape[2] <= MAX_QUERIES or rows > MAX_ROWS:
        raise InvalidShape(
            f"q has L={q.shape[2]} queries of {q.shape[1] // k.shape[1]} heads that share a key head: expected 1 to "
            f"{MAX_QUERIES}, and {MAX_ROWS} rows together or fewer; attention_fwd takes more",
            field="L", value=q.shape[2], limit=MAX_QUERIES,
        )  # fmt: skip
    for name, size in (("B", q.shape[0]), ("N", k.shape[2])):
        if size < 1:
            raise InvalidShape(f"{name}={size}: expected 1 or more", field=name, value=size, limit=1)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        require_addressable(name, tensor)
    _require_countable(k, v)
    if lengths is not None and (
        lengths.shape != q.shape[:1] or lengths.dtype != torch.int32 or lengths.device != q.device
        or not lengths.is_contiguous()
    ):  # fmt: skip
        raise InvalidShape(
            f"lengths is {lengths.dtype} {tuple(lengths.shape)} on {lengths.device}: expected contiguous torch.int32 "
            f"[{q.shape[0]}] on {q.device}",
            field="lengths",
        )


def _require_countable(k: Tensor, v: Tensor) -> None:
    """Raise :class:`InvalidShape` unless the sequences of K and of V are the same whole number of rows apart."""
    rows = key_rows(k)
    if rows is None or rows != key_rows(v):
        raise InvalidShape(
            f"k has strides {tuple(k.stride())} and v {tuple(v.stride())}: expected sequences as many whole rows apart "
            "in both; copy them first, k.contiguous() and v.contiguous()",
            field="k", value=tuple(k.stride()),
        )  # fmt: skip
    if k.shape[0] * max(rows, k.shape[2]) > MAX_KEY_ROWS:
        raise InvalidShape(
            f"k has {k.shape[0] * rows} rows of all sequences: expected {MAX_KEY_ROWS} or fewer", field="k", value=rows
        )
