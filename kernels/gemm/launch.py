"""Run the GEMM: check the operands, describe them to TMA, launch the kernel that the configuration names.

    c = gemm(a, b, config)                    # a [M, K], b [N, K] -> c [M, N]
    c = gemm(a.t(), b.t(), config)            # a stored [K, M], b stored [K, N]: read as they lie
    run = prepare(a, b, config, out); run()   # descriptors made once; run() may be captured in a CUDA graph

``config`` is a :class:`GemmConfig` or the :class:`TuningConfig` that training jobs receive.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor as TlDescriptor

from warpplan.kernels.compile import element_type
from warpplan.kernels.gemm.scales import OperandScales, operand_scales
from warpplan.kernels.gemm.space import ELEMENT_BYTES, GemmConfig, config_of, require_valid
from warpplan.kernels.torch_types import Tensor
from warpplan.kernels.triton_types import KernelArgument, Launcher, TmaDescriptor
from warpplan.planner.errors import InvalidConfig, InvalidShape, UnknownName
from warpplan.planner.values.device import DEVICES, H200, Device
from warpplan.planner.values.tuning import TuningConfig

TMA_ALIGNMENT_BYTES = 16
"""Of a tensor's base and of its row stride (CUDA driver API, cuTensorMapEncodeTiled)."""


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
    operands, which need scales (:func:`warpplan.kernels.gemm.scales.operand_scales`).

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

    Splits of K meet in buffers of the stream that is current here: run the call there, or never beside another of it.
    """
    if isinstance(config, TuningConfig):
        config = config_of(config)
    require_operands(a, b)
    require_output(a, b, out)
    dtype = str(a.dtype).removeprefix("torch.")
    shape = (a.shape[0], b.shape[0], a.shape[1])
    index = a.device.index
    require_valid(config, dtype, device_limits(index), shape)
    scales = operand_scales(a, b, scale_a, scale_b)
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


def result_dtype(operand: Tensor) -> torch.dtype:
    """Of the product of operands like ``operand``."""
    return torch.bfloat16 if operand.element_size() == 1 else operand.dtype


def rows_aligned(tensor: Tensor) -> bool:
    """Whether TMA can address the rows of ``tensor`` [rows, columns]: base and stride on 16 bytes, columns adjacent."""
    element = tensor.element_size()
    stride = tensor.stride(0) * element if tensor.shape[0] > 1 else 0
    return _adjacent(tensor) and tensor.data_ptr() % TMA_ALIGNMENT_BYTES == 0 and stride % TMA_ALIGNMENT_BYTES == 0


def lies_by_k(operand: Tensor) -> bool:
    """Whether ``operand`` [rows, K] lies with K contiguous; it is otherwise read as the matrix [K, rows] that its
    transpose is. Where a single row or column makes it both, the order is one that TMA can address."""
    other = operand.t()
    if not (_adjacent(operand) and _adjacent(other)):
        return not _adjacent(other)
    fits = rows_aligned(operand) and operand.shape[1] * operand.element_size() % TMA_ALIGNMENT_BYTES == 0
    return fits or not rows_aligned(other)


def layout_of(a: Tensor, b: Tensor) -> str:
    """How A and B are stored, as the option ``layout`` of a shape names it: "n" as the product reads, A [M, K] and
    B [K, N], "t" transposed."""
    return ("n" if lies_by_k(a) else "t") + ("t" if lies_by_k(b) else "n")


def tma_stores(out: Tensor) -> bool:
    """Whether TMA can store the rows of ``out`` without a trace beside them.

    It writes whole 16-byte units: of a row that ends inside one, it would overwrite what follows.
    """
    return rows_aligned(out) and out.shape[1] * out.element_size() % TMA_ALIGNMENT_BYTES == 0


def grid_size(config: GemmConfig, shape: tuple[int, int, int], sm_count: int) -> int:
    """CTAs of a launch: one a unit, or what is resident at once where the kernel is persistent."""
    units = config.units(shape, sm_count)
    return min(units, sm_count * config.ctas_per_sm) if config.persistent else units


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
    return lambda: run_kernel(launch, arguments, keywords)


class DescribedProduct(NamedTuple):
    """What a launch of a specialised kernel says of the product itself: the computed matrix's operands and ``out`` as
    descriptors (or as tensors), (workspace, counters) of split tiles, the kernel's runtime integers, how many CTAs."""

    matrices: tuple[KernelArgument, ...]
    split_buffers: tuple[Tensor | None, Tensor | None]
    numbers: tuple[int, ...]
    grid: int


def describe_product(
    a: Tensor, b: Tensor, config: GemmConfig, out: Tensor, tma_store: bool, boxes: tuple[tuple[int, int], ...]
) -> DescribedProduct:
    """Describe A, B and ``out`` to TMA in ``boxes``; ``out`` need not be as wide as the product."""
    from warpplan.kernels.device.epilogue import shared_layout
    from warpplan.kernels.gemm import gluon
    from warpplan.kernels.triton_compat import TensorDescriptor

    def describe(tensor: Tensor, box: tuple[int, int]) -> TmaDescriptor:
        element = gluon.TYPES[element_type(str(tensor.dtype).removeprefix("torch."))]
        return TensorDescriptor(tensor, list(tensor.shape), row_strides(tensor), list(box), shared_layout(box, element))

    shape = (a.shape[0], b.shape[0], a.shape[1])
    left, right = (b, a) if config.swap else (a, b)
    sm_count = _sm_count(a.device.index)
    whole_tiles = config.whole_tiles(shape, sm_count)
    split_tiles = config.tiles(shape) - whole_tiles
    return DescribedProduct(
        (
            describe(_stored(left), boxes[0]),
            describe(_stored(right), boxes[1]),
            describe(out, boxes[2]) if tma_store else out,
        ),
        _split_buffers(config, split_tiles, a.device) if config.split_k > 1 else (None, None),
        (*config.computed(shape), config.group_m, config.split_k, whole_tiles, row_strides(out)[0]),
        grid_size(config, shape, sm_count),
    )


def _pipelined(a: Tensor, b: Tensor, config: GemmConfig, out: Tensor, tma_store: bool) -> Callable[[], None]:
    from warpplan.kernels.gemm import tl

    def describe(tensor: Tensor, box: tuple[int, int]) -> TmaDescriptor:
        return TlDescriptor(tensor, list(tensor.shape), row_strides(tensor), list(box))

    shape = (a.shape[0], b.shape[0], a.shape[1])
    layout = layout_of(a, b)
    boxes = tl.descriptor_blocks(config, layout)
    left, right = describe(_stored(a), boxes[0]), describe(_stored(b), boxes[1])
    c = describe(out, boxes[2]) if tma_store else out
    arguments = (left, right, c, *shape, config.group_m, row_strides(out)[0])
    keywords = {**tl.constants(config, tma_store, layout), **tl.launch_options(config)}
    launch = tl.gemm_kernel[(grid_size(config, shape, _sm_count(a.device.index)),)]
    return lambda: run_kernel(launch, arguments, keywords)


def run_kernel(launch: Launcher, arguments: tuple[KernelArgument, ...], keywords: dict[str, object]) -> None:
    """Launch; :class:`InvalidConfig` where the GPU lacks what the kernel needs."""
    try:
        launch(*arguments, **keywords)
    except triton.runtime.errors.OutOfResources as error:
        raise InvalidConfig(f"the kernel does not fit this GPU: {error}", field="config") from error


def _adjacent(matrix: Tensor) -> bool:
    return bool(matrix.stride(1) == 1 or matrix.shape[1] == 1)


def _stored(operand: Tensor) -> Tensor:
    """The matrix of adjacent columns that ``operand`` [rows, K] is, or is the transpose of."""
    return operand if lies_by_k(operand) else operand.t()


def row_strides(tensor: Tensor) -> list[int]:
    """Strides in elements, with those that no address depends on made regular: of a single row or a single column."""
    rows, columns = tensor.shape
    stride = tensor.stride(0)
    if rows == 1:
        step = TMA_ALIGNMENT_BYTES // tensor.element_size()
        stride = -(-columns // step) * step
    return [stride, 1]


def require_operands(a: Tensor, b: Tensor) -> None:
    """Raise :class:`InvalidShape` or :class:`UnknownName` unless A [M, K] and B [N, K] are operands of one product that
    TMA can address."""
    for name, tensor in (("A", a), ("B", b)):
        if tensor.dim() != 2:
            raise InvalidShape(f"{name} has {tensor.dim()} dimensions, expected 2: [rows, K]", field=name)
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in ELEMENT_BYTES:
            raise UnknownName("dtype", dtype, ELEMENT_BYTES)
        if not tensor.is_cuda:
            raise InvalidShape(f"{name} is on {tensor.device}: move it to a GPU, {name}.cuda()", field=name)
    if a.dtype != b.dtype or a.device != b.device:
        raise InvalidShape(f"A is {a.dtype} on {a.device} and B {b.dtype} on {b.device}: expected the same", field="B")
    if a.shape[1] != b.shape[1]:
        raise InvalidShape(
            f"A is {tuple(a.shape)} and B {tuple(b.shape)}: their last dimension, K, must agree (B is [N, K])",
            field="K", value=b.shape[1], limit=a.shape[1],
        )  # fmt: skip
    for name, size in (("M", a.shape[0]), ("N", b.shape[0]), ("K", a.shape[1])):
        if size < 1:
            raise InvalidShape(f"{name}={size}: expected 1 or more", field=name, value=size, limit=1)
    for name, rows, tensor in (("A", "M", a), ("B", "N", b)):
        _require_addressable(name, rows, tensor)
    step = TMA_ALIGNMENT_BYTES // a.element_size()
    by_k = [name for name, tensor in (("A", a), ("B", b)) if lies_by_k(tensor)]
    if a.element_size() == 1 and len(by_k) < 2:
        raise InvalidShape(
            f"the layout of A and B is {layout_of(a, b)}: the tensor cores read fp8 operands with K contiguous alone",
            field="A" if "A" not in by_k else "B", value=layout_of(a, b), limit="nt",
        )  # fmt: skip
    if by_k and a.shape[1] % step:
        raise InvalidShape(
            f"K={a.shape[1]}, contiguous in {' and '.join(by_k)}: TMA needs rows of a multiple of "
            f"{TMA_ALIGNMENT_BYTES} bytes, so pad K to a multiple of {step}",
            field="K", value=a.shape[1], limit=step,
        )  # fmt: skip


def _require_addressable(name: str, rows: str, operand: Tensor) -> None:
    """Raise :class:`InvalidShape` where TMA cannot address the matrix that ``operand``, called ``name``, is stored
    as; ``rows`` is the name of its first dimension."""
    by_k, strides = lies_by_k(operand), tuple(operand.stride())
    stored = operand if by_k else operand.t()
    order = f"[{rows}, K]" if by_k else f"[K, {rows}]"
    step = TMA_ALIGNMENT_BYTES // operand.element_size()
    if not _adjacent(stored):
        raise InvalidShape(
            f"{name} has strides {strides}: TMA needs one dimension contiguous; copy it first, {name}.contiguous()",
            field=name, value=strides, limit=1,
        )  # fmt: skip
    if not rows_aligned(stored):
        raise InvalidShape(
            f"{name} has strides {strides} and starts {stored.data_ptr() % TMA_ALIGNMENT_BYTES} bytes off: it is "
            f"stored {order}, and TMA needs rows that start on {TMA_ALIGNMENT_BYTES} bytes; pad the row stride to a "
            f"multiple of {step} elements",
            field=name, value=strides, limit=step,
        )  # fmt: skip
    if stored.shape[0] > 1 and stored.stride(0) < stored.shape[1]:
        raise InvalidShape(
            f"{name} is stored {order} with row stride {stored.stride(0)}, less than its {stored.shape[1]} columns: "
            f"copy it first, {name}.contiguous()",
            field=name, value=stored.stride(0), limit=stored.shape[1],
        )  # fmt: skip


def require_output(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Raise :class:`InvalidShape` unless ``out`` can take the product of A [M, K] and B [N, K]."""
    expected, dtype = (a.shape[0], b.shape[0]), result_dtype(a)
    if tuple(out.shape) != expected or out.dtype != dtype or out.device != a.device:
        raise InvalidShape(
            f"out is {out.dtype} {tuple(out.shape)} on {out.device}: expected {dtype} {expected} on {a.device}",
            field="out",
        )
    if out.stride(1) != 1 and out.shape[1] > 1:
        raise InvalidShape(
            f"out has column stride {out.stride(1)}: expected 1", field="out", value=out.stride(1), limit=1
        )
    if out.shape[0] > 1 and out.stride(0) < out.shape[1]:
        raise InvalidShape(
            f"out has row stride {out.stride(0)}, less than its {out.shape[1]} columns: its rows overlap", field="out"
        )


@lru_cache(maxsize=64)
def device_limits(index: int) -> Device:
    """The limits of a GPU; a Hopper model that is not in the table has those of the ones that are."""
    properties = torch.cuda.get_device_properties(index)
    if properties.name in DEVICES:
        return DEVICES[properties.name]
    if (properties.major, properties.minor) == (9, 0):
        return H200
    raise UnknownName("device", properties.name, DEVICES)


@lru_cache(maxsize=64)
def _sm_count(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


_BUFFERS: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}


def _split_buffers(config: GemmConfig, tiles: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(partial sums, arrival counters) of ``tiles`` split tiles for the current stream, whose launches share them.

    Launches of one stream follow one another. The counters are zeroed when made; every launch leaves them at zero.
    """
    sums = tiles * config.split_k * config.block_m * config.block_n
    key = (device.index, torch.cuda.current_stream(device).cuda_stream)
    workspace, counters = _BUFFERS.get(key, (None, None))
    if workspace is None or workspace.numel() < sums:
        workspace = torch.empty(sums, dtype=torch.float32, device=device)
    if counters is None or counters.numel() < tiles * config.consumers:
        counters = torch.zeros(max(1024, tiles * config.consumers), dtype=torch.int32, device=device)
    _BUFFERS[key] = workspace, counters
    return workspace, counters
