"""Run the grouped GEMM: check the operands, describe them to TMA, launch one kernel for all groups.

    c = grouped_gemm(a, b, ends, config)      # a [M, K], b [G, N, K] -> c [M, N]
    da = grouped_dgrad(dc, b, ends, config)   # dc [M, N]             -> da [M, K]
    db = grouped_wgrad(dc, a, ends, config)   #                       -> db [G, N, K]
    run = prepare("forward", a, b, ends, config, out); run()   # may be captured in a CUDA graph

Rows are sorted by group; ``ends`` [G], int32 on the same GPU, says where each group ends, and the host never reads it.
Groups may be empty. Rows from ``ends[G-1]`` on belong to nobody: they enter no result, and those of the output are left
as they are. Ends that are not ascending, or outside of 0 to M, are taken as their running maximum, held within that
range: the groups are then others than were meant, and nothing outside the operands is touched.

``config`` is a :class:`GemmConfig` or the :class:`TuningConfig` that training jobs receive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

import torch

from warpplan.kernels.compile import element_type
from warpplan.kernels.declaration import Shape
from warpplan.kernels.gemm.launch import run_kernel
from warpplan.kernels.gemm.space import SCALE_BLOCK, GemmConfig
from warpplan.kernels.grouped_gemm.distribution import group_sizes
from warpplan.kernels.grouped_gemm.kernel import GROUPED_GEMM
from warpplan.kernels.grouped_gemm.space import FP8, PRODUCTS, SIXTEEN_BIT, Product, config_of, require_valid
from warpplan.kernels.operands.contexts import bind_context
from warpplan.kernels.operands.gpus import device_limits, sm_count
from warpplan.kernels.operands.matrices import TMA_ALIGNMENT_BYTES, result_dtype
from warpplan.kernels.torch_types import Tensor
from warpplan.kernels.triton_types import GluonLayout, TmaDescriptor
from warpplan.planner.errors import InvalidConfig, InvalidShape, UnknownName
from warpplan.planner.values.tuning import TuningConfig

MAX_ROWS = 1 << 30
"""Rows that a ragged descriptor reaches."""


def grouped_gemm(
    a: Tensor, b: Tensor, ends: Tensor, config: GemmConfig | TuningConfig, *, out: Tensor | None = None,
    scale_a: Tensor | None = None, scale_b: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A [M, K] · B [G, N, K]ᵀ of each group with fp32 accumulation, [M, N] in the operands' dtype, bfloat16 of fp8
    operands, on the current stream.

    fp8 operands (forward alone) need float32 scales, which multiply: ``scale_a`` [M] and ``scale_b`` [G, N] of rows, as
    ``torch._scaled_grouped_mm`` takes them, or [M, ⌈K/128⌉] and [G, ⌈N/128⌉, ⌈K/128⌉] of blocks.

    Raises :class:`InvalidShape` for operands that TMA cannot address and :class:`InvalidConfig` for a plan that does
    not fit. Rows of no group are not written: without ``out`` they hold whatever the memory held.
    """
    return _run("forward", a, b, ends, config, out, scale_a, scale_b)


def grouped_dgrad(
    dc: Tensor, b: Tensor, ends: Tensor, config: GemmConfig | TuningConfig, *, out: Tensor | None = None
) -> Tensor:
    """dC [M, N] · B [G, N, K] of each group, [M, K]: the gradient of A. Otherwise as :func:`grouped_gemm`."""
    return _run("dgrad", dc, b, ends, config, out)


def grouped_wgrad(
    dc: Tensor, a: Tensor, ends: Tensor, config: GemmConfig | TuningConfig, *, out: Tensor | None = None
) -> Tensor:
    """dCᵀ · A over each group's rows, [G, N, K], zero for an empty group: the gradient of B. ``dc`` is [M, N], ``a``
    [M, K]; every element is written. Otherwise as :func:`grouped_gemm`."""
    return _run("wgrad", dc, a, ends, config, out)


def prepare(
    product: Product, left: Tensor, right: Tensor, ends: Tensor, config: GemmConfig | TuningConfig, out: Tensor,
    scale_a: Tensor | None = None, scale_b: Tensor | None = None,
) -> Callable[[], None]:  # fmt: skip
    """A call that computes ``out`` from the operands where they lie now, without waiting for the device; the first call
    may compile the kernel. ``product`` is "forward", "dgrad" or "wgrad", its operands in the order of the functions
    above."""
    _require_operands(product, left, right, ends)
    _require_output(product, left, right, ends, out)
    config = _checked(config, _name(left.dtype), left.device.index, product)
    scales = _scales(left, right, scale_a, scale_b)
    if config.promoted != (scales == "block"):
        kind = "promoted sums" if config.promoted else "sums in the tensor cores"
        raise InvalidConfig(
            f"the scales are those of a {scales}, and the configuration has {kind}: plan with scales={scales}",
            field="PROMOTED", value=config.promoted,
        )  # fmt: skip
    if left.shape[0] == 0:
        # Nothing to multiply, and TMA describes no empty matrix.
        return out.zero_ if product == "wgrad" else lambda: None
    return _launch(product, left, right, ends, config, out, scales, scale_a, scale_b)


def random_launch(shape: Shape, dtype: str, config: TuningConfig) -> Callable[[], None]:
    """A launch on random operands of ``shape`` (of :class:`~warpplan.kernels.grouped_gemm.kernel.GroupedGemm`), for
    timing."""
    m, n, k, groups = GROUPED_GEMM.sizes(shape)
    chosen = GROUPED_GEMM.chosen(shape)
    ends = torch.tensor(
        list(accumulate(group_sizes(chosen["sizes"], m, groups))), dtype=torch.int32, device="cuda"
    )  # fmt: skip
    product: Product = next(p for p in PRODUCTS if p == chosen["product"])
    forms = {
        "forward": ((m, k), (groups, n, k)), "dgrad": ((m, n), (groups, n, k)), "wgrad": ((m, n), (m, k)),
    }  # fmt: skip
    left, right = (
        torch.randn(form, device="cuda", dtype=torch.bfloat16).to(getattr(torch, dtype)) for form in forms[product]
    )
    out = torch.empty(result_shape(product, left, right, ends), dtype=result_dtype(left), device="cuda")
    if dtype != FP8:
        return prepare(product, left, right, ends, config, out)
    k_blocks, n_blocks = -(-k // SCALE_BLOCK), -(-n // SCALE_BLOCK)
    sizes = {"row": ((m,), (groups, n)), "block": ((m, k_blocks), (groups, n_blocks, k_blocks))}[chosen["scales"]]
    scale_a, scale_b = (torch.rand(size, device="cuda") + 0.5 for size in sizes)
    return prepare(product, left, right, ends, config, out, scale_a, scale_b)


def result_shape(product: Product, left: Tensor, right: Tensor, ends: Tensor) -> tuple[int, ...]:
    """Shape of a product's result."""
    if product == "wgrad":
        return ends.shape[0], left.shape[1], right.shape[1]
    return left.shape[0], right.shape[1 if product == "forward" else 2]


def grid_size(config: GemmConfig, product: Product, shape: Sequence[int], groups: int, sm_count: int) -> int:
    """CTAs of a launch: what is resident at once, or as many as there can be tiles. ``shape`` is the result's."""
    rows, columns = shape[-2:]
    tiles = -(-rows // config.block_m)
    # Each group of some rows may end inside a tile.
    tiles = tiles * groups if product == "wgrad" else min(tiles + groups, rows)
    return min(sm_count * config.ctas_per_sm, tiles * -(-columns // config.block_n))


def _run(
    product: Product, left: Tensor, right: Tensor, ends: Tensor, config: GemmConfig | TuningConfig,
    out: Tensor | None, scale_a: Tensor | None = None, scale_b: Tensor | None = None,
) -> Tensor:  # fmt: skip
    if out is None:
        _require_operands(product, left, right, ends)
        out = torch.empty(result_shape(product, left, right, ends), dtype=result_dtype(left), device=left.device)
    prepare(product, left, right, ends, config, out, scale_a, scale_b)()
    return out


def _launch(
    product: Product, left: Tensor, right: Tensor, ends: Tensor, config: GemmConfig, out: Tensor, scales: str,
    scale_a: Tensor | None, scale_b: Tensor | None,
) -> Callable[[], None]:  # fmt: skip
    from warpplan.kernels.device.groups import window_groups
    from warpplan.kernels.grouped_gemm import gluon

    groups = ends.shape[0]
    boxes, keywords = _fixed(config, product, window_groups(groups), scales)
    _, columns = out.shape[-2:]
    operands = {"a": left, "b": right, "c": out}  # by the first letter of a descriptor's name
    arguments = (
        *(_describe(operands[name[0]], boxes[name]) if name in boxes else None for name in gluon.DESCRIPTORS),
        ends,
        scale_a,
        scale_b,
        groups,
        left.shape[0],
        out.shape[-2],
        columns,
        left.shape[1],
        config.group_m,
        *((0, 0) if scale_a is None else (scale_a.stride(0), scale_a.stride(1) if scales == "block" else 0)),
    )
    grid = grid_size(config, product, out.shape, groups, sm_count(left.device.index))
    launch = gluon.grouped_gemm_kernel[(grid,)]
    return lambda: run_kernel(launch, arguments, keywords, left)


@lru_cache(maxsize=1024)
def _checked(config: GemmConfig | TuningConfig, dtype: str, device: int, product: Product) -> GemmConfig:
    """``config`` once it is known to be valid; a training job launches a few configurations many times."""
    if isinstance(config, TuningConfig):
        config = config_of(config)
    require_valid(config, dtype, device_limits(device), product)
    return config


@lru_cache(maxsize=1024)
def _fixed(
    config: GemmConfig, product: Product, window: int, scales: str
) -> tuple[dict[str, tuple[int, ...]], dict[str, object]]:
    """(the TMA boxes of a configuration, the keywords of its launch)."""
    from warpplan.kernels.grouped_gemm import gluon

    keywords = {**gluon.constants(config, product, window, scales), **gluon.launch_options(config)}
    return gluon.descriptor_blocks(config, product), keywords


@lru_cache(maxsize=1024)
def _layout(box: tuple[int, ...], dtype: torch.dtype) -> GluonLayout:
    from warpplan.kernels.device.epilogue import shared_layout
    from warpplan.kernels.gemm.gluon import TYPES

    return shared_layout(box, TYPES[element_type(_name(dtype))])


def _describe(tensor: Tensor, box: tuple[int, ...]) -> TmaDescriptor:
    """The TMA descriptor of ``tensor`` with boxes of ``box``; ragged where the box has two dimensions more."""
    from warpplan.kernels.device.boxes import ragged_form
    from warpplan.kernels.triton_compat import TensorDescriptor

    shape, strides = list(tensor.shape), _strides(tensor)
    if len(box) == len(shape) + 2:
        shape, strides = ragged_form(shape, strides)
    bind_context(tensor.device)
    return TensorDescriptor(tensor, shape, strides, list(box), _layout(box, tensor.dtype))


def _strides(tensor: Tensor) -> list[int]:
    """Strides in elements, with those of dimensions of one, which no address depends on, made regular."""
    strides = [1]
    for size, stride, inner in zip(tensor.shape[-2::-1], tensor.stride()[-2::-1], tensor.shape[:0:-1], strict=True):
        strides.insert(0, stride if size > 1 else strides[0] * inner)
    return strides


def addressable(tensor: Tensor) -> bool:
    """Whether TMA can address ``tensor``: base and strides on 16 bytes, the last dimension adjacent, none overlapping
    another."""
    element = tensor.element_size()
    strides = _strides(tensor)
    apart = all(
        outer >= inner * size for outer, inner, size in zip(strides, strides[1:], tensor.shape[1:], strict=False)
    )
    aligned = all(stride * element % TMA_ALIGNMENT_BYTES == 0 for stride in strides[:-1])
    adjacent = tensor.stride(-1) == 1 or tensor.shape[-1] == 1
    return adjacent and aligned and apart and tensor.data_ptr() % TMA_ALIGNMENT_BYTES == 0


NAMES = {
    "forward": ("A [M, K]", "B [G, N, K]"),
    "dgrad": ("dC [M, N]", "B [G, N, K]"),
    "wgrad": ("dC [M, N]", "A [M, K]"),
}
"""A product's operands."""


def _require_operands(product: Product, left: Tensor, right: Tensor, ends: Tensor) -> None:
    if product not in PRODUCTS:
        raise UnknownName("product", product, PRODUCTS)
    names = [described.partition(" ")[0] for described in NAMES[product]]
    dtypes = (*SIXTEEN_BIT, FP8) if product == "forward" else SIXTEEN_BIT
    for name, tensor in zip(names, (left, right), strict=True):
        if _name(tensor.dtype) not in dtypes:
            raise UnknownName("dtype", _name(tensor.dtype), dtypes)
        _require_gpu(name, tensor)
    require_alike(product, left, right, ends)
    _require_whole_rows(product, left, right)
    for name, tensor in zip(names, (left, right), strict=True):
        _require_addressable(name, tensor)


def require_alike(product: Product, left: Tensor, right: Tensor, ends: Tensor) -> None:
    """Raise :class:`InvalidShape` for operands and ends that make no product, wherever they lie."""
    for described, tensor in zip(NAMES[product], (left, right), strict=True):
        name, _, form = described.partition(" ")
        if tensor.dim() != form.count(",") + 1:
            raise InvalidShape(f"{name} has {tensor.dim()} dimensions, expected {form}", field=name)
    left_name, right_name = (described.partition(" ")[0] for described in NAMES[product])
    if left.dtype != right.dtype or left.device != right.device:
        raise InvalidShape(
            f"{left_name} is {left.dtype} on {left.device} and {right_name} {right.dtype} on {right.device}: "
            "expected the same",
            field=right_name,
        )
    _require_ends(ends, left)
    _require_sizes(product, left, right, ends)


def _require_gpu(name: str, tensor: Tensor) -> None:
    if not tensor.is_cuda:
        raise InvalidShape(f"{name} is on {tensor.device}: move it to a GPU, {name}.cuda()", field=name)


def _require_ends(ends: Tensor, left: Tensor) -> None:
    if not isinstance(ends, torch.Tensor):
        raise InvalidShape(
            f"ends is a {type(ends).__name__}: expected a tensor, torch.int32 [G] on {left.device}", field="ends"
        )
    if ends.dim() != 1 or ends.dtype != torch.int32 or ends.device != left.device:
        raise InvalidShape(
            f"ends is {ends.dtype} {tuple(ends.shape)} on {ends.device}: expected torch.int32 [G] on {left.device}",
            field="ends",
        )
    if ends.shape[0] > 1 and ends.stride(0) != 1:
        raise InvalidShape(
            f"ends has stride {ends.stride(0)}: copy it first, ends.contiguous()",
            field="ends", value=ends.stride(0), limit=1,
        )  # fmt: skip


def _require_sizes(product: Product, left: Tensor, right: Tensor, ends: Tensor) -> None:
    groups, rows = ends.shape[0], left.shape[0]
    if product == "wgrad":
        shared, found, wanted = "M", right.shape[0], rows
    else:
        if right.shape[0] != groups:
            raise InvalidShape(
                f"B has {right.shape[0]} groups and ends {groups}: expected as many",
                field="ends", value=groups, limit=right.shape[0],
            )  # fmt: skip
        shared, found = ("K", right.shape[2]) if product == "forward" else ("N", right.shape[1])
        wanted = left.shape[1]
    if found != wanted:
        names = " and ".join(NAMES[product])
        raise InvalidShape(
            f"{names} are {tuple(left.shape)} and {tuple(right.shape)}: {shared} must agree",
            field=shared, value=found, limit=wanted,
        )  # fmt: skip
    if groups < 1:
        raise InvalidShape("ends is empty: expected one group or more", field="ends", value=0, limit=1)
    if rows > MAX_ROWS:
        raise InvalidShape(f"M={rows}: expected {MAX_ROWS} or less", field="M", value=rows, limit=MAX_ROWS)


def _require_whole_rows(product: Product, left: Tensor, right: Tensor) -> None:
    """Raise :class:`InvalidShape` for rows that TMA cannot address."""
    n = right.shape[1] if product == "forward" else left.shape[1]
    for name, size, element in (("N", n, result_dtype(left).itemsize), ("K", right.shape[-1], left.element_size())):
        step = TMA_ALIGNMENT_BYTES // element
        if size < 1 or size % step:
            raise InvalidShape(
                f"{name}={size}: TMA needs rows of a multiple of {TMA_ALIGNMENT_BYTES} bytes, so pad {name} to a "
                f"multiple of {step}",
                field=name, value=size, limit=step,
            )  # fmt: skip


def _require_addressable(name: str, tensor: Tensor) -> None:
    if tensor.numel() and not addressable(tensor):
        copy = "clone" if tensor.is_contiguous() else "contiguous"
        raise InvalidShape(
            f"{name} has strides {tuple(tensor.stride())} and starts {tensor.data_ptr() % TMA_ALIGNMENT_BYTES} bytes "
            f"off: TMA needs adjacent columns and rows apart that start on {TMA_ALIGNMENT_BYTES} bytes; copy it first, "
            f"{name}.{copy}()",
            field=name, value=tuple(tensor.stride()), limit=TMA_ALIGNMENT_BYTES,
        )  # fmt: skip


def _require_output(product: Product, left: Tensor, right: Tensor, ends: Tensor, out: Tensor) -> None:
    expected = result_shape(product, left, right, ends)
    dtype = result_dtype(left)
    if tuple(out.shape) != expected or out.dtype != dtype or out.device != left.device:
        raise InvalidShape(
            f"out is {out.dtype} {tuple(out.shape)} on {out.device}: expected {dtype} {expected} on {left.device}",
            field="out",
        )
    _require_addressable("out", out)


def _scales(left: Tensor, right: Tensor, scale_a: Tensor | None, scale_b: Tensor | None) -> str:
    """How fp8 operands are scaled, "row" or "block"; "none" where the operands are not fp8."""
    if left.element_size() > 1:
        if scale_a is not None or scale_b is not None:
            raise InvalidShape(f"operands of {left.dtype} have no scales: leave them out", field="scale_a")
        return "none"
    if scale_a is None or scale_b is None:
        raise InvalidShape("fp8 operands need scale_a and scale_b in float32: one is missing", field="scale_a")
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale.dtype != torch.float32 or scale.device != left.device:
            raise InvalidShape(
                f"{name} is {scale.dtype} on {scale.device}: expected torch.float32 on {left.device}", field=name
            )
    (rows, k), (groups, n, _) = left.shape, right.shape
    n_blocks, k_blocks = (-(-size // SCALE_BLOCK) for size in (n, k))
    forms = {"row": ((rows,), (groups, n)), "block": ((rows, k_blocks), (groups, n_blocks, k_blocks))}
    found = tuple(scale_a.shape), tuple(scale_b.shape)
    for name, form in forms.items():
        if found == form and scale_b.is_contiguous():
            return name
    raise InvalidShape(
        f"scale_a is {found[0]} and scale_b {found[1]}: expected {forms['row']} or {forms['block']}, and scale_b "
        "contiguous",
        field="scale_a", value=found[0], limit=forms["row"][0],
    )  # fmt: skip


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
