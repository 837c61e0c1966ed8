"""A kernel in the launch table that is watched: it stands for Triton's ``CompiledKernel`` until its class is settled.

A launch calls ``run`` with what it would hand to the kernel's own. That counts, times a launch here and there, and
chooses which kernel runs. Nothing in here waits, and no failure of ours reaches the job: from then on the kernel runs
as it is. In a CUDA graph's capture nothing is timed, and what runs is what ran before it.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from warpplan.kernels.compiler.background.launch_comparison import (
    ALTERNATING,
    KEPT,
    SPARSE,
    LaunchComparison,
    LaunchPairs,
)
from warpplan.kernels.compiler.background.launch_events import LaunchTimer
from warpplan.kernels.compiler.background.plan_choices import PlanChoice, WatchedLaunch
from warpplan.kernels.triton_types import CompiledKernel, KernelArgument, TritonModule

OBSERVED = 3
"""Launches that are timed to learn what a class takes; the first is left out. Chosen by hand."""
MOST_PENDING = 64
"""Launches that are timed at once at most: the GPU may be far behind."""
NOMINAL_US = 100.0
"""What a launch is taken for until it is timed. Chosen by hand."""


class LaunchWatcher(Protocol):
    """What a watched kernel tells of its launches."""

    launches: int
    asleep: bool

    def timer(self) -> LaunchTimer: ...
    def capturing(self) -> bool: ...
    def wake(self) -> None: ...
    def snapshot(self, watched: WatchedKernel, grid: tuple[int, ...], values: tuple[KernelArgument, ...]) -> None: ...
    def settled(self, watched: WatchedKernel, choice: PlanChoice, times: tuple[float, float] | None) -> None: ...
    def gave_up(self, watched: WatchedKernel, error: Exception) -> None: ...


class WatchedKernel:
    """``kernel`` is the kernel as it is, ``place`` puts the one that is settled on into the launch table."""

    def __init__(
        self,
        launch: WatchedLaunch,
        kernel: CompiledKernel,
        watcher: LaunchWatcher,
        place: Callable[[CompiledKernel], None],
    ) -> None:
        self.kernel, self.launch, self._watcher, self._place = kernel, launch, watcher, place
        kernel.run  # noqa: B018  # loads it, where that has not happened
        # What a launch reads before it calls ``run``, which takes the chosen kernel's own instead.
        self.function, self.packed_metadata = kernel.function, kernel.packed_metadata
        self.launches = 0
        self.choice: PlanChoice | None = None
        self.wanted = False
        self.given_up = False
        self.attempts = 0
        self.not_before = 0.0
        self._usual = kernel  # what runs where nothing is compared
        self._comparison: LaunchComparison | None = None
        self._pending: list[_Sample] = []
        self._observed: list[float] = []
        self._attentive = True
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> TritonModule:
        return getattr(self.kernel, name)

    @property
    def time_us(self) -> float:
        """What a launch takes, as far as that is known."""
        return statistics.median(self._observed) if self._observed else NOMINAL_US

    def run(
        self, x: int, y: int, z: int, stream: int, function: int, packed: KernelArgument, *rest: KernelArgument
    ) -> None:
        """What ``CompiledKernel.run`` does with a grid, a stream, the metadata and hooks in ``rest``, and values."""
        watcher = self._watcher
        self.launches += 1
        watcher.launches += 1
        if watcher.asleep:
            watcher.wake()
        kernel, sample = self._usual, None
        # Another thread's launch that holds the lock is looked after; this one runs what ran before.
        if self._attentive and self._lock.acquire(blocking=False):
            try:
                kernel, sample = self._attend((x, y, z), rest[3:])
            finally:
                self._lock.release()
        kernel.run(x, y, z, stream, kernel.function, kernel.packed_metadata, *rest)
        if sample is not None:
            try:
                sample.timer.end()
                self._pending.append(sample)
            except Exception as error:
                self.give_up(error)

    def take(self, choice: PlanChoice) -> None:
        """What was found for this class: the next launches compare it, or run it. By the background thread, or before
        the first launch."""
        with self._lock:
            self.choice = choice
            self.wanted = False
            if choice.kernel is None or choice.final:
                self._settle(choice.kernel or self.kernel)
                return
            self._usual = self.kernel if choice.pool is not None else choice.kernel
            every = SPARSE if choice.pool is None else ALTERNATING
            self._comparison = LaunchComparison(every, choice.pool or LaunchPairs(KEPT))
            self._attentive = True

    def want(self) -> None:
        """Let the next launch hand over its arguments for a trial."""
        self.wanted = self._attentive = True

    def forget(self) -> None:
        """As it was before anything was found."""
        with self._lock:
            self.choice, self._comparison, self._usual = None, None, self.kernel

    def give_up(self, error: Exception) -> None:
        """The kernel runs as it is from now on: there is no plan for it, or something of ours failed."""
        self.choice = None
        self.wanted, self.given_up = False, True
        self._settle(self.kernel)
        self._watcher.gave_up(self, error)

    def _attend(
        self, grid: tuple[int, ...], values: tuple[KernelArgument, ...]
    ) -> tuple[CompiledKernel, _Sample | None]:
        """The kernel that this launch runs, and its sample, begun."""
        try:
            if self._watcher.capturing():
                return self._usual, None
            self._collect()
            if self.wanted:
                self.wanted = False
                self._watcher.snapshot(self, grid, values)
            if self._comparison is None:
                return self._usual, self._observation()
            return self._compared(self._comparison, grid, values)
        except Exception as error:
            self.give_up(error)
            return self._usual, None

    def _observation(self) -> _Sample | None:
        """A sample of the kernel as it is, while its time is not known."""
        if len(self._observed) >= OBSERVED or self.choice is not None:
            self._attentive = self.wanted
            return None
        if self.launches == 1 or len(self._observed) + len(self._pending) >= OBSERVED:
            return None
        return self._begun(planned=False, scale=1.0)

    def _compared(
        self, comparison: LaunchComparison, grid: tuple[int, ...], values: tuple[KernelArgument, ...]
    ) -> tuple[CompiledKernel, _Sample | None]:
        choice = self.choice
        assert choice is not None
        if comparison.pairs.reported:  # until the background thread says what follows
            return self._usual, None
        if comparison.hopeless:
            self._report(choice, comparison.pairs, None)
            return self._usual, None
        planned = comparison.next_is_planned()
        scale = None
        if comparison.next_is_timed and len(self._pending) < MOST_PENDING:
            scale = self._scale(choice, grid, values, planned=planned)
        kernel = choice.kernel if planned else self.kernel
        return kernel, None if scale is None else self._begun(planned=planned, scale=scale)

    def _scale(
        self, choice: PlanChoice, grid: tuple[int, ...], values: tuple[KernelArgument, ...], *, planned: bool
    ) -> float | None:
        """The predicted time of a launch over that of the sizes which the comparison is for; ``None`` where it cannot
        be told."""
        sizes, reference = self.launch.sizes_of(grid, values), choice.reference or self.launch.sizes
        if sizes == reference:
            return 1.0
        if choice.model is None:
            return None
        here, there = choice.model.cycles(sizes)[planned], choice.model.cycles(reference)[planned]
        return here / there if here > 0 and there > 0 else None

    def _begun(self, *, planned: bool, scale: float) -> _Sample:
        sample = _Sample(planned, scale, self._watcher.timer(), self._comparison)
        sample.timer.begin()
        return sample

    def _collect(self) -> None:
        """The times of launches that the GPU is through with, in their order; and what follows from them."""
        while self._pending:
            sample = self._pending[0]
            elapsed = sample.timer.elapsed_us()
            if elapsed is None:
                return
            self._pending.pop(0)
            if sample.comparison is not self._comparison:
                continue  # of what was compared before
            if sample.comparison is None:
                self._observed.append(elapsed)
            else:
                sample.comparison.add(planned=sample.planned, scaled_us=elapsed / sample.scale)
        comparison, choice = self._comparison, self.choice
        if comparison is not None and choice is not None and not comparison.pairs.reported:
            times = comparison.pairs.times
            if times is not None:
                self._report(choice, comparison.pairs, times)

    def _report(self, choice: PlanChoice, pairs: LaunchPairs, times: tuple[float, float] | None) -> None:
        """A comparison has come to its end; without ``times`` because there were too few."""
        pairs.reported = True
        if choice.pool is None:
            self._settle(choice.kernel if pairs.won else self.kernel)
        elif pairs.won and times is not None:
            self._usual = choice.kernel
        self._watcher.settled(self, choice, times)

    def _settle(self, kernel: CompiledKernel) -> None:
        self._attentive = False
        self._comparison = None
        self._pending = []
        self._usual = kernel
        self._place(kernel)


@dataclass(frozen=True)
class _Sample:
    """A launch that is timed: which kernel it runs, its predicted time over the class's, and what it counts for."""

    planned: bool
    scale: float
    timer: LaunchTimer
    comparison: LaunchComparison | None
