"""A machine without a GPU that Triton takes for a Hopper, or for another: real compiles, launches that are only noted
down."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import _allocation
from triton.runtime.driver import driver
from triton.tools.tensor_descriptor import TensorDescriptor


@dataclass(frozen=True)
class Dtype:
    """As much of a torch dtype as Triton asks for."""

    name: str
    itemsize: int
    is_floating_point: bool = True

    def __str__(self) -> str:
        return f"torch.{self.name}"


class Tensor:
    """As much of a torch tensor as Triton asks for; its memory is nowhere."""

    def __init__(self, *shape: int, dtype: Dtype | None = None, address: int = 4096) -> None:
        self.shape, self.dtype, self.address = shape, dtype or Dtype("bfloat16", 2), address

    def stride(self) -> tuple[int, ...]:
        return (self.shape[1], 1)

    def data_ptr(self) -> int:
        return self.address


class Machine:
    """Triton's active driver. ``launches`` holds (grid, warps of the kernel, arguments), one a launch, ``allocators``
    what would be asked for scratch memory then."""

    def __init__(self, capability: int = 90) -> None:
        self.capability = capability
        self.launches: list[tuple[tuple[int, ...], int, tuple[Any, ...]]] = []
        self.allocators: list[Any] = []
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 232448, "multiprocessor_count": 132},
            load_binary=lambda name, binary, shared, device: (1, hash(binary), 32, 0, 1024),
            unload_module=lambda module: None,
        )

    @property
    def warps(self) -> list[int]:
        return [warps for _, warps, _ in self.launches]

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 7

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        def launch(x: int, y: int, z: int, stream: int, function: int, packed: Any, *rest: Any) -> None:
            launch_metadata, enter, leave, *arguments = rest
            if enter is not None:
                enter(launch_metadata)
            self.allocators.append(_allocation._allocator.get())
            self.launches.append(((x, y, z), metadata.num_warps, tuple(arguments)))
            if leave is not None:
                leave(launch_metadata)

        return launch


def gemm_arguments(m: int = 256, n: int = 256, k: int = 128) -> tuple[Any, ...]:
    """Positional arguments of ``kernels_under_test.gemm``: C = A·Bᵀ."""
    a, b = (TensorDescriptor.from_tensor(Tensor(rows, k), [128, 64]) for rows in (m, n))
    return a, b, Tensor(m, n), m, n, k, 128, 128, 64


@contextmanager
def running(cache: Path) -> Iterator[Machine]:
    """A machine that Triton launches on, and compiles for into ``cache``, for as long as the block lasts."""
    machine, before = Machine(), driver._active
    with knobs.cache.scope():
        knobs.cache.dir = str(cache)
        driver.set_active(machine)
        gc.freeze()  # what is older is not looked at below
        try:
            yield machine
        finally:
            gc.collect()  # kernels unload themselves through the driver
            gc.unfreeze()
            driver.set_active(before)
