"""Run the vector addition: check the operands, launch the kernel that the configuration names.

    out = vector_add(x, y, config)            # x [N], y [N] -> out [N]
    run = prepare(x, y, config, out); run()   # run() may be captured in a CUDA graph

``config`` is a :class:`VectorAddConfig` or the :class:`TuningConfig` that training jobs receive.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from warpplan.kernels.declaration import Shape
from warpplan.kernels.torch_types import Tensor
from warpplan.kernels.vector_add import tl
from warpplan.kernels.vector_add.kernel import VECTOR_ADD
from warpplan.kernels.vector_add.space import VectorAddConfig, config_of, require_valid
from warpplan.planner.errors import InvalidShape
from warpplan.planner.values.tuning import TuningConfig


def vector_add(x: Tensor, y: Tensor, config: VectorAddConfig | TuningConfig, *, out: Tensor | None = None) -> Tensor:
    """``x + y`` [N] in the operands' dtype, on the current stream.

    Raises :class:`InvalidShape` for operands that are no contiguous vectors of one length, dtype and GPU, and
    :class:`InvalidConfig` for a configuration that the kernel cannot run.
    """
    if out is None:
        _require_operands(x, y)
        out = torch.empty_like(x)
    prepare(x, y, config, out)()
    return out


def prepare(x: Tensor, y: Tensor, config: VectorAddConfig | TuningConfig, out: Tensor) -> Callable[[], None]:
    """A call that computes ``out`` from ``x`` and ``y`` where they lie now; the first call may compile the kernel.

    Raises as :func:`vector_add` does; ``out`` may be ``x`` or ``y`` itself, but must not lie across them.
    """
    if isinstance(config, TuningConfig):
        config = config_of(config)
    _require_operands(x, y)
    _require_like(x, out, "out")
    require_valid(config, _dtype(x))
    length = x.shape[0]
    launch = tl.vector_add_kernel[(-(-length // config.block_size),)]
    keywords = {**tl.constants(config), **tl.launch_options(config)}

    def run() -> None:
        with torch.cuda.device_of(x):
            launch(x, y, out, length, **keywords)

    return run


def random_launch(shape: Shape, dtype: str, config: TuningConfig) -> Callable[[], None]:
    """A launch on random operands of ``shape`` (of :class:`~warpplan.kernels.vector_add.kernel.VectorAdd`), for
    timing."""
    (length,) = VECTOR_ADD.sizes(shape)
    x, y = (torch.randn(length, device="cuda").to(getattr(torch, dtype)) for _ in range(2))
    return prepare(x, y, config, torch.empty_like(x))


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _require_operands(x: Tensor, y: Tensor) -> None:
    if x.dim() != 1:
        raise InvalidShape(f"x has {x.dim()} dimensions, expected 1: [N]", field="x", value=tuple(x.shape))
    VECTOR_ADD.require_dtype(_dtype(x))
    VECTOR_ADD.parse_shape({"N": x.shape[0]})
    if not x.is_cuda:
        raise InvalidShape(f"x is on {x.device}: move it to a GPU, x.cuda()", field="x")
    _require_contiguous(x, "x")
    _require_like(x, y, "y")


def _require_like(x: Tensor, other: Tensor, name: str) -> None:
    if other.dtype != x.dtype or other.device != x.device or tuple(other.shape) != tuple(x.shape):
        raise InvalidShape(
            f"{name} is {other.dtype} {tuple(other.shape)} on {other.device}: expected {x.dtype} {tuple(x.shape)} on "
            f"{x.device}, as x is",
            field=name, value=tuple(other.shape), limit=tuple(x.shape),
        )  # fmt: skip
    _require_contiguous(other, name)


def _require_contiguous(tensor: Tensor, name: str) -> None:
    if not tensor.is_contiguous():
        raise InvalidShape(
            f"{name} has stride {tensor.stride(0)}: copy it first, {name}.contiguous()",
            field=name, value=tensor.stride(0), limit=1,
        )  # fmt: skip
