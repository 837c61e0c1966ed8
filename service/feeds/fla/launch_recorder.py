"""The launches of FLA's autotuned kernels, recorded while a job's function runs without a GPU.

``FILE.py:function`` runs the layers with tensors of the job's sizes on the CPU; kernels are not launched, so results
are whatever the memory held. FLA believes that it is on the GPU that the table is for: it chooses blocks and lists of
configurations by it, some of them when it is imported.

Source: fla-core 0.6.0, ``fla/ops/utils/cache.py`` (``CachedAutotuner``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from warpplan.kernels.triton_types import Autotuner, GpuTarget, Grid, JitFunction
from warpplan.planner.errors import InvalidInput
from warpplan.planner.values.device import Device
from warpplan.service.feeds.consumer_kernel import run_consumer
from warpplan.service.feeds.paper_cuda import paper_cuda
from warpplan.service.feeds.paper_launch import target_of


@dataclass(frozen=True)
class RecordedLaunch:
    """One key of one autotuned kernel: its ``tuner``, the arguments by name, and the grid. ``key`` is FLA's own."""

    kernel: str
    key: Any
    tuner: Autotuner
    positional: tuple[object, ...]
    keywords: Mapping[str, object]
    grid: Grid

    @property
    def arguments(self) -> dict[str, Any]:
        """By the names of the kernel's parameters."""
        return {**dict(zip(self.tuner.arg_names, self.positional, strict=False)), **self.keywords}

    @property
    def function(self) -> JitFunction:
        """The kernel under the autotuner."""
        from triton.runtime.jit import JITFunction

        found = self.tuner.fn
        while not isinstance(found, JITFunction):
            found = found.fn
        return found

    def candidates(self) -> list[Any]:
        """The configurations that the autotuner would measure for this launch."""
        self.tuner.nargs = dict(zip(self.tuner.arg_names, self.positional, strict=False))
        try:
            return list(self.tuner.prune_configs(dict(self.keywords)))
        finally:
            self.tuner.nargs = None

    def programs(self, config: Any) -> int:
        """Of the grid under ``config``."""
        grid = self.grid({**self.arguments, **config.all_kwargs()}) if callable(self.grid) else self.grid
        total = 1
        for size in (grid,) if isinstance(grid, int) else grid:
            total *= int(size)
        return total


def record_launches(consumer: str, gpu: Device) -> tuple[RecordedLaunch, ...]:
    """What ``consumer`` (``FILE.py:function`` or ``module:function``) launches of FLA's kernels, each key once.

    Raises :class:`InvalidInput` where there is no such function, it raises, or it launches none of them.
    """
    found: dict[tuple[str, str], RecordedLaunch] = {}

    def note(
        tuner: Autotuner, *positional: object, grid: Grid = (1,), warmup: bool = False, **keywords: object
    ) -> None:
        from fla.ops.utils.cache import AutotuneKey

        key = AutotuneKey.build(tuner.arg_names, tuner.keys, positional, keywords)
        place = (tuner.kernel_name, AutotuneKey.key_hash(key.autotune_key))
        found.setdefault(place, RecordedLaunch(tuner.kernel_name, key, tuner, positional, keywords, grid))

    with fla_on_paper(gpu), _kernels_replaced(note):
        run_consumer(consumer, "with kernels that compute nothing, and should make its tensors on the CPU")
    if not found:
        raise InvalidInput(
            f"consumer {consumer}: it launched no autotuned kernel of FLA", field="consumer", value=consumer
        )
    return tuple(found.values())


@contextmanager
def fla_on_paper(gpu: Device) -> Iterator[None]:
    """Triton's active driver and ``torch.cuda`` answer for ``gpu``; put back as they were."""
    from triton.runtime.driver import driver

    before = driver._active
    driver.set_active(_PaperDriver(gpu))
    try:
        with paper_cuda(gpu):
            yield
    finally:
        driver.set_active(before)


@contextmanager
def _kernels_replaced(note: Callable[..., None]) -> Iterator[None]:
    """FLA's autotuners tell ``note`` what they were called with; no kernel is launched."""
    from fla.ops.utils.cache import CachedAutotuner
    from triton.runtime.jit import JITFunction

    with mock.patch.object(CachedAutotuner, "run", note), mock.patch.object(JITFunction, "run", return_value=None):
        yield


class _PaperDriver:
    """The active driver, as far as FLA and Triton's autotuner ask."""

    def __init__(self, gpu: Device) -> None:
        self._gpu = gpu
        self.utils = self

    def get_current_target(self) -> GpuTarget:
        return target_of(self._gpu)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, *_: object) -> int:
        return 0

    def get_device_capability(self, *_: object) -> tuple[int, int]:
        major, minor = divmod(self._gpu.capability, 10)
        return major, minor

    def get_device_properties(self, *_: object) -> dict[str, int]:
        gpu = self._gpu
        return {
            "max_shared_mem": gpu.smem_bytes_per_block, "max_num_regs": gpu.registers_per_sm,
            "multiprocessor_count": gpu.sm_count, "warpSize": 32,
        }  # fmt: skip

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., list[float]]:
        # Of kernels whose tuning FLA does not look up: any configuration will do here.
        return lambda *_, **__: [1.0] * 3
