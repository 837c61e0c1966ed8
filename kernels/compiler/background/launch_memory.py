"""What the arguments of a launch tell of its sizes, and of which of them share memory."""

from __future__ import annotations

from collections.abc import Mapping

from warpplan.kernels.compiler.sizes.size_expressions import LaunchSizes
from warpplan.kernels.triton_types import KernelArgument


def launch_sizes(arguments: Mapping[str, KernelArgument], grid: tuple[int, ...]) -> LaunchSizes:
    """The integers among ``arguments``, and the grid with all its axes, as a launcher gets it."""
    x, y, z = (*grid, 1, 1)[:3]
    return LaunchSizes(tuple((name, value) for name, value in arguments.items() if type(value) is int), (x, y, z))


def shared_memory(arguments: Mapping[str, KernelArgument]) -> tuple[str, ...]:
    """The pairs of ``arguments``, "a b", whose tensors overlap in memory, by the ranges that they span."""
    spans = []
    for name, value in arguments.items():
        tensor = getattr(value, "base", None)
        tensor = value if tensor is None or not hasattr(tensor, "data_ptr") else tensor
        if hasattr(tensor, "data_ptr") and hasattr(tensor, "stride"):
            spans.append((name, *_span(tensor)))
    return tuple(
        f"{one} {other}"
        for i, (one, begin, end) in enumerate(spans) for other, first, last in spans[i + 1 :]
        if begin < last and first < end
    )  # fmt: skip


def _span(tensor: KernelArgument) -> tuple[int, int]:
    """Addresses of its first byte and behind its last; strides may be 0 or negative."""
    shape, strides, size = tensor.shape, tensor.stride(), tensor.dtype.itemsize
    if 0 in shape:
        return 0, 0
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=False)]
    address = tensor.data_ptr()
    low, high = sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)
    return address + low * size, address + (high + 1) * size
