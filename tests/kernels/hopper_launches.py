"""Launches on a machine without a GPU: specialised by Triton as for an H200, and noted instead of run."""

from __future__ import annotations

from typing import NamedTuple

from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class _HopperDriver:
    """As much of a CUDA driver as specialising a launch needs."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


class NotedLaunch(NamedTuple):
    """The kernel's name, as Triton compiled it for the arguments, and the grid."""

    name: str
    kernel: object
    grid: tuple[int, ...]

    def require_like(self, source) -> None:
        """Assert that the launch was specialised exactly as ``source`` is, which compile reports are made of."""
        assert self.kernel.src.signature == source.signature, self.name
        assert self.kernel.src.constants == source.constants, self.name
        assert {key: value for key, value in self.kernel.src.attrs.items() if value} == source.attrs, self.name


class _Noted:
    """Stands for a kernel."""

    def __init__(self, name, kernel, launches):
        self.name, self.kernel, self.launches = name, kernel, launches

    def __getitem__(self, grid):
        def launch(*arguments, **keywords):
            compiled = self.kernel.warmup(*arguments, grid=grid, **keywords)
            self.launches.append(NotedLaunch(self.name, compiled, grid))

        return launch


def note_launches(monkeypatch, *kernels) -> list[NotedLaunch]:
    """The launches of ``kernels``, (module, name) each, from now on, in their order."""
    launches: list[NotedLaunch] = []
    monkeypatch.setattr(driver, "_active", _HopperDriver())
    for module, name in kernels:
        monkeypatch.setattr(module, name, _Noted(name, getattr(module, name), launches))
    return launches
