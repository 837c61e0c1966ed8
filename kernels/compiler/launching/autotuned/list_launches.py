"""The launches of a list's configurations: made while the launch waits, or noted down in it, without its tensors, for a
thread that comes to them later."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.launching.arguments import Later, Storages, describe
from warpplan.kernels.compiler.launching.autotuned.tuner_calls import Resets, TunedLaunch, resets_of
from warpplan.kernels.compiler.launching.dispatch import Call
from warpplan.kernels.triton_types import Json, KernelArgument, TunerConfig
from warpplan.planner.errors import MeasurementFailed


class ListLaunches(Protocol):
    """One launch under each configuration of a list, told by its number there."""

    @property
    def configs(self) -> Sequence[TunerConfig]: ...

    @property
    def resets(self) -> Resets: ...

    def call(self, number: int) -> Call:
        """Raises what Triton's own tuning of the configuration would raise: a hook's error, a heuristic's."""

    def described(self, number: int, folder: Path) -> dict[str, Json]:
        """``arguments``, ``grid`` and ``device``, as another process can make the launch. Files may go to ``folder``.
        Raises :class:`CannotPlan` and :class:`MeasurementFailed`."""


@dataclass(frozen=True)
class WaitingLaunches:
    """Of a launch that waits: each is made when it is asked for."""

    launch: TunedLaunch
    configs: Sequence[TunerConfig]

    @property
    def resets(self) -> Resets:
        return resets_of(self.launch.tuner)

    def call(self, number: int) -> Call:
        self.launch.hook(self.configs[number])
        return self.launch.call(self.configs[number])

    def described(self, number: int, folder: Path) -> dict[str, Json]:
        with self.launch.hooked(self.configs[number]):
            return _described(self.launch.call(self.configs[number]), Storages(folder))


class NotedLaunches:
    """Of a launch that goes on: all are noted down before it, and nothing is waited for. Its tensors are not kept; the
    integers in them are copied on the GPU, and :meth:`write` waits for these copies. :meth:`close` deletes the files.

    Raises what Triton's own tuning would raise."""

    def __init__(self, launch: TunedLaunch, configs: Sequence[TunerConfig]) -> None:
        self.configs, self.resets = configs, resets_of(launch.tuner)
        self._folder = tempfile.mkdtemp(prefix="warpplan-")
        self._process = os.getpid()
        self._later: Later = []
        self._calls: list[Call] = []
        self._described: list[dict[str, Json] | _Refused] = []
        storages = Storages(Path(self._folder), self._later)  # one copy of each for all
        try:
            for config in configs:
                with launch.hooked(config):
                    call = launch.call(config)
                    try:
                        self._described.append(_described(call, storages))
                    except (CannotPlan, MeasurementFailed) as error:  # perhaps none of them is to be tried
                        self._described.append(_Refused(type(error), str(error)))
                without = {name: _without_memory(value) for name, value in call.arguments.items()}
                self._calls.append(replace(call, arguments=without))
        except BaseException:
            self.close()
            raise

    def call(self, number: int) -> Call:
        return self._calls[number]

    def described(self, number: int, folder: Path) -> dict[str, Json]:
        found = self._described[number]
        if isinstance(found, _Refused):
            raise found.kind(found.reason)
        return found

    def write(self) -> None:
        """Write the integers, once the GPU has come to them."""
        while self._later:
            self._later.pop()()

    def close(self) -> None:
        """Also in a process that was forked, which has the files of another."""
        self._later.clear()
        if os.getpid() == self._process:
            shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True)
class _Refused:
    """An error without its traceback, which would keep the launch's tensors alive."""

    kind: type[CannotPlan] | type[MeasurementFailed]
    reason: str


@dataclass(frozen=True)
class TensorNote:
    """What predictions ask of a tensor."""

    shape: tuple[int, ...]
    dtype: KernelArgument
    address: int

    def data_ptr(self) -> int:
        return self.address


@dataclass(frozen=True)
class DescriptorNote:
    """What predictions ask of a descriptor on the host."""

    base: TensorNote
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_shape: tuple[int, ...]


def _without_memory(value: KernelArgument) -> KernelArgument:
    if hasattr(value, "block_shape"):
        sizes = (tuple(map(int, each)) for each in (value.shape, value.strides, value.block_shape))
        return DescriptorNote(_without_memory(value.base), *sizes)
    if hasattr(value, "data_ptr"):
        return TensorNote(tuple(map(int, value.shape)), value.dtype, value.data_ptr())
    return tuple(map(_without_memory, value)) if type(value) is tuple else value


def _described(call: Call, storages: Storages) -> dict[str, Json]:
    constants = {p.name for p in call.jit.params if p.is_constexpr}
    described = describe(call.arguments, constants, storages)
    return {"arguments": described, "grid": list(call.grid), "device": call.device}
