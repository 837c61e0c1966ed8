"""Run the GEMM: check the operands, describe them to TMA, launch the kernel that the configuration names.

    c = gemm(a, b, config)                    # a [M, K], b [N, K] -> c [M, N]
    c = gemm(a.t(), b.t(), config)            # a stored [K, M], b stored [K, N]: read as they lie
    run = prepare(a, b, config, out); run()   # descriptors made once; run() may be captured in a CUDA graph

``config`` is a :class:`GemmConfig` or the :class:`TuningConfig` that training jobs receive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor as TlDescriptor

from warpplan.kernels.compile import element_type
from warpplan.kernels.declaration import Shape
from warpplan.kernels.gemm.kernel import GEMM
from warpplan.kernels.gemm.space import SCALE_BLOCK, GemmConfig, config_of, require_valid
from warpplan.kernels.operands.contexts import bind_context
from warpplan.kernels.operands.gpus import device_limits, sm_count
from warpplan.kernels.operands.matrices import (
    layout_of,
    require_operands,
    require_output,
    result_dtype,
    row_strides,
    stored,
    tma_stores,
)
from warpplan.kernels.operands.scales import OperandScales, operand_scales
from warpplan.kernels.torch_types import Tensor
from warpplan.kernels.triton_types import KernelArgument, Launcher, TmaDescriptor
from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.tuning import TuningConfig

if TYPE_CHECKING:
    from warpplan.kernels.gemm.gluon import Boxes


def gemm(
    a: Tensor,
    b: Tensor,
    config: GemmConfig | TuningConfig,
    *,
    out: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
) -> Tensor:
    """A[M, K] · B[N, K]ᵀ with fp32 accumulation, [M, N] in the operands' dtype, on the current stream; bfloat16 of fp8
    operands, which need scales (:func:`warpplan.kernels.operands.scales.operand_scales`).

    Each operand may lie with K contiguous or be the transpose of a matrix stored [K, rows]. The rows of what is stored
    start on 16 bytes, and K is a multiple of 16 bytes where an operand lies with K contiguous. ``out`` may have any row
    stride; rows of it that do not start on 16 bytes are written without TMA. Raises :class:`InvalidShape` for operands
    that TMA cannot address and :class:`InvalidConfig` for a plan that does not fit.
    """
    if out is None:
        require_operands(a, b)
        out = torch.empty((a.shape[0], b.shape[0]), dtype=result_dtype(a), device=a.device)
    prepare(a, b, config, out, scale_a, scale_b)()
    return out


def prepare(
    a: Tensor,
    b: Tensor,
    config: GemmConfig | TuningConfig,
    out: Tensor,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
) -> Callable[[], None]:
    """A call that computes ``out`` from ``a`` and ``b`` where they lie now; the first call may compile the kernel.

    Splits of K meet in buffers of the stream that is current here: run the call there, or never beside another of it,
    and keep it as long as a CUDA graph that captured it.
    """
    if isinstance(config, TuningConfig):
        config = config_of(config)
    require_operands(a, b)
    require_output(a, b, out)
    dtype = str(a.dtype).removeprefix("torch.")
    shape = (a.shape[0], b.shape[0], a.shape[1])
    index = a.device.index
    require_valid(config, dtype, device_limits(index), shape)
    scales = operand_scales(a, b, scale_a, scale_b, blocks=config.promoted)
    if config.promoted != (scales[0] == "block"):
        kind = "promoted sums" if config.promoted else "sums in the tensor cores"
        raise InvalidConfig(
            f"the scales are those of a {scales[0]}, and the configuration has {kind}: plan with scales={scales[0]}",
            field="PROMOTED", value=config.promoted,
        )  # fmt: skip
    tma_store = tma_stores(out)
    if not config.specialized:
        return _pipelined(a, b, config, out, tma_store)
    return _specialized(a, b, config, out, tma_store, scales)


def random_launch(shape: Shape, dtype: str, config: TuningConfig) -> Callable[[], None]:
    """A launch on random operands of ``shape`` (of :class:`~warpplan.kernels.gemm.kernel.Gemm`), for timing."""
    m, n, k = GEMM.sizes(shape)
    chosen = GEMM.chosen(shape)
    a, b = random_operands(m, n, k, dtype, chosen["layout"])
    out = torch.empty((m, n), dtype=result_dtype(a), device="cuda")
    if a.element_size() > 1:
        return prepare(a, b, config, out)
    k_blocks, n_blocks = -(-k // SCALE_BLOCK), -(-n // SCALE_BLOCK)
    forms = {"tensor": ((1,), (1,)), "row": ((m, 1), (1, n)), "block": ((m, k_blocks), (n_blocks, k_blocks))}
    scales = (torch.rand(form, device="cuda") + 0.5 for form in forms[chosen["scales"]])
    return prepare(a, b, config, out, *scales)


def random_operands(m: int, n: int, k: int, dtype: str, layout: str) -> tuple[Tensor, Tensor]:
    """A [M, K] and B [N, K] of normal numbers that lie as ``layout`` says."""
    a = torch.randn((m, k) if layout[0] == "n" else (k, m), device="cuda", dtype=torch.bfloat16)
    b = torch.randn((n, k) if layout[1] == "t" else (k, n), device="cuda", dtype=torch.bfloat16)
    kind = getattr(torch, dtype)
    return (a if layout[0] == "n" else a.t()).to(kind), (b if layout[1] == "t" else b.t()).to(kind)


def grid_size(config: GemmConfig, shape: tuple[int, int, int], sms: int) -> int:
    """CTAs, or clusters, of a launch: one a unit, or what is resident at once where the kernel is persistent."""
    units = config.units(shape, sms)
    return min(units, config.resident(sms)) if config.persistent else units


def _specialized(
    a: Tensor,
    b: Tensor,
    config: GemmConfig,
    out: Tensor,
    tma_store: bool,
    scales: tuple[str, OperandScales, OperandScales],
) -> Callable[[], None]:
    from warpplan.kernels.gemm import gluon

    layout = layout_of(a, b)
    product = describe_product(a, b, config, out, tma_store, gluon.descriptor_blocks(config, layout))
    scheme, row_scales, column_scales = (scales[0], *scales[:0:-1]) if config.swap else scales
    arguments = (
        *product.matrices,
        *product.split_buffers,
        row_scales.tensor,
        column_scales.tensor,
        *product.numbers,
        *row_scales.strides,
        *column_scales.strides,
    )
    keywords = {**gluon.constants(config, tma_store, layout, scheme), **gluon.launch_options(config)}
    launch = gluon.gemm_kernel[(product.grid,)]
    return lambda: run_kernel(launch, arguments, keywords, a)


class DescribedProduct(NamedTuple):
    """What a launch of a specialised kernel says of the product itself: the computed matrix's operands and ``out`` as
    descriptors (or as tensors), (workspace, counters) of split tiles, the kernel's runtime integers, how many CTAs."""

    matrices: tuple[KernelArgument, ...]
    split_buffers: tuple[Tensor | None, Tensor | None]
    numbers: tuple[int, ...]
    grid: int


def describe_product(
    a: Tensor, b: Tensor, config: GemmConfig, out: Tensor, tma_store: bool, boxes: Boxes
) -> DescribedProduct:
    """Describe A, B and ``out`` to TMA in ``boxes``; ``out`` need not be as wide as the product."""
    from warpplan.kernels.device.epilogue import shared_layout
    from warpplan.kernels.gemm import gluon
    from warpplan.kernels.triton_compat import TensorDescriptor

    splits = gluon.cluster_splits(config, layout_of(a, b))

    def describe(tensor: Tensor, name: str) -> TmaDescriptor:
        element = gluon.TYPES[element_type(str(tensor.dtype).removeprefix("torch."))]
        layout = shared_layout(boxes[name], element, config.cluster, splits.get(name))
        bind_context(tensor.device)
        return TensorDescriptor(tensor, list(tensor.shape), row_strides(tensor), list(boxes[name]), layout)

    shape = (a.shape[0], b.shape[0], a.shape[1])
    left, right = (b, a) if config.swap else (a, b)
    sms = sm_count(a.device.index)
    whole_tiles = config.whole_tiles(shape, sms)
    # Of equal ranges, those of each tile but one; of a stream, whose ranges are the CTAs', a place for each CTA's.
    grid = grid_size(config, shape, sms)
    split_tiles = config.tiles(shape) - whole_tiles
    partial_sums = grid if config.stream_k else split_tiles * (config.split_k - 1)
    return DescribedProduct(
        (
            describe(stored(left), "a_desc"),
            describe(stored(right), "b_desc"),
            describe(stored(right), "b_rest_desc") if "b_rest_desc" in boxes else None,
            describe(out, "c") if tma_store else out,
        ),
        _split_buffers(config, partial_sums, split_tiles, a.device) if config.split != "none" else (None, None),
        (*config.computed(shape), config.group_m, config.split_k, whole_tiles, row_strides(out)[0]),
        grid,
    )


def _pipelined(a: Tensor, b: Tensor, config: GemmConfig, out: Tensor, tma_store: bool) -> Callable[[], None]:
    from warpplan.kernels.gemm import tl

    def describe(tensor: Tensor, box: tuple[int, int]) -> TmaDescriptor:
        bind_context(tensor.device)
        return TlDescriptor(tensor, list(tensor.shape), row_strides(tensor), list(box))

    shape = (a.shape[0], b.shape[0], a.shape[1])
    layout = layout_of(a, b)
    boxes = tl.descriptor_blocks(config, layout)
    left, right = describe(stored(a), boxes[0]), describe(stored(b), boxes[1])
    c = describe(out, boxes[2]) if tma_store else out
    arguments = (left, right, c, *shape, config.group_m, row_strides(out)[0])
    keywords = {**tl.constants(config, tma_store, layout), **tl.launch_options(config)}
    launch = tl.gemm_kernel[(grid_size(config, shape, sm_count(a.device.index)),)]
    return lambda: run_kernel(launch, arguments, keywords, a)


def run_kernel(
    launch: Launcher, arguments: tuple[KernelArgument, ...], keywords: dict[str, object], operand: Tensor
) -> None:
    """Launch on the GPU of ``operand``, which need not be the current one; :class:`InvalidConfig` where the GPU lacks
    what the kernel needs."""
    try:
        with torch.cuda.device_of(operand):
            launch(*arguments, **keywords)
    except triton.runtime.errors.OutOfResources as error:
        raise InvalidConfig(f"the kernel does not fit this GPU: {error}", field="config") from error


_BUFFERS: dict[int, tuple[Tensor, Tensor]] = {}


def _split_buffers(config: GemmConfig, places: int, split_tiles: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(partial sums of ``places`` parts of tiles, counters of arrivals); every launch leaves the latter at zero.

    Launches of a GPU's default stream follow one another and share theirs. On any other stream a CUDA graph may be
    under capture: its memory is its own, and what it zeroes is zero only once it runs, so there each call has its own.
    """
    sum_count, counter_count = places * config.block_m * config.block_n, split_tiles * config.consumers
    if torch.cuda.current_stream(device) != torch.cuda.default_stream(device):
        return (
            torch.empty(sum_count, dtype=torch.float32, device=device),
            torch.zeros(counter_count, dtype=torch.int32, device=device),
        )
    sums, counters = _BUFFERS.get(device.index, (None, None))
    if sums is None or sums.numel() < sum_count:
        sums = torch.empty(sum_count, dtype=torch.float32, device=device)
    if counters is None or counters.numel() < counter_count:
        counters = torch.zeros(max(1024, counter_count), dtype=torch.int32, device=device)
    _BUFFERS[device.index] = sums, counters
    return sums, counters
