"""The launch path while plans are in use: a table from what a launch is to the kernel that runs it.

Triton's own ``JITFunction.run`` binds the arguments, makes a text of their specialisation and looks the compiled kernel
up by it. The table is keyed by the specialisation itself and by the size class, and holds planned and unplanned kernels
alike, so that a known launch costs no more than Triton's. Whatever is not known goes to Triton's ``run``.

What is first launched is decided on while the launch waits, or goes into the table watched, to be decided on beside the
job (:class:`~warpplan.kernels.compiler.background.watched_kernel.WatchedKernel`).

Source: triton 3.6.0 to 3.9.0, ``runtime/jit.py``, ``JITFunction.run``.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from warpplan.kernels.compiler.background.background_trials import BackgroundTrials
from warpplan.kernels.compiler.background.launch_memory import launch_sizes, shared_memory
from warpplan.kernels.compiler.background.plan_choices import WatchedLaunch
from warpplan.kernels.compiler.exceptions import PlanWarning
from warpplan.kernels.triton_types import (
    CompiledKernel,
    Grid,
    JitFunction,
    KernelArgument,
    Specialization,
    TableKey,
    TritonModule,
)
from warpplan.kernels.warn_once import warn_once

T = TypeVar("T")
SizeClass = tuple[int, ...]
Launch = Callable[[], CompiledKernel]


@dataclass(frozen=True)
class Call:
    """One launch: the kernel, its bound arguments, Triton's specialisation of them, the device's number, the grid."""

    jit: JitFunction
    arguments: dict[str, KernelArgument]
    specialization: Specialization
    options: dict[str, KernelArgument]
    device: int
    grid: tuple[int, ...]
    sizes: SizeClass


Decide = Callable[[Call, Launch], tuple[CompiledKernel, CompiledKernel]]
"""Runs the launch that it is given and answers what that ran and what to run from now on, ``None`` for nothing yet."""


Table = tuple[dict[TableKey, CompiledKernel], tuple[int, ...]]
"""What to run by what is launched, and the positions of the parameters that are no constexprs."""
_numbers = itertools.count()


class LaunchTable:
    """What is launched for each kernel, specialisation and size class of one ``planned``; ``beside`` decides on it
    while the job runs on, where there is one."""

    def __init__(self, decide: Decide, beside: BackgroundTrials | None = None) -> None:
        self._decide, self._beside = decide, beside
        self._name = f"_warpplan_{next(_numbers)}"
        self._pending: set[TableKey] = set()
        self._lock = threading.Lock()

    def run(
        self,
        original: Callable[..., CompiledKernel],
        jit: JitFunction,
        args: tuple[KernelArgument, ...],
        kwargs: dict[str, KernelArgument],
        grid: Grid,
    ) -> CompiledKernel:
        """What ``jit.run(*args, grid=grid, warmup=False, **kwargs)`` does, planned where a plan is known."""
        knobs, active = _triton()
        if knobs.runtime.add_stages_inspection_hook is not None:
            warn_not_planned(jit, "a stage inspection hook of your own is set, and a plan would not run it")
            return original(jit, *args, grid=grid, warmup=False, **kwargs)
        if knobs.compilation.instrumentation_mode:  # a profiler's own compile of the kernel
            return original(jit, *args, grid=grid, warmup=False, **kwargs)
        known, positions = jit.__dict__.get(self._name) or self._new(jit)
        device = active.get_current_device()
        bound, specialization, options = jit.device_caches[device][-1](*args, **kwargs)
        if callable(grid):
            grid = grid(bound)
        values = tuple(bound.values())
        try:
            sizes = size_class(values, positions, grid)
            debug = bool(knobs.runtime.debug or jit.debug)
            key = (device, debug, sizes, *options.items(), *specialization)
            kernel = known.get(key)
        except (TypeError, AttributeError) as error:  # sizes or options of types that cannot be looked up
            ran = original(jit, *args, grid=grid, warmup=False, **kwargs)
            warn_not_planned(jit, f"its launch cannot be looked up: {error}")
            return ran
        if kernel is None:
            call = Call(jit, bound, specialization, {"debug": debug, **options}, device, tuple(map(int, grid)), sizes)
            return self._first(call, known, key, lambda: original(jit, *args, grid=grid, warmup=False, **kwargs))
        if jit.used_global_vals and _globals_changed(jit):
            return original(jit, *args, grid=grid, warmup=False, **kwargs)  # which says so
        for hook in jit.pre_run_hooks:
            hook(*args, **kwargs)
        stream = active.get_current_stream(device)
        grid_size = len(grid)
        enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
        # An empty chain of hooks is no hook: Triton's launcher would call it all the same.
        enter = enter if getattr(enter, "calls", True) else None
        kernel.run(
            grid[0],
            grid[1] if grid_size > 1 else 1,
            grid[2] if grid_size > 2 else 1,
            stream,
            kernel.function,
            kernel.packed_metadata,
            None if enter is None else kernel.launch_metadata(grid, stream, *values),
            enter,
            leave if getattr(leave, "calls", True) else None,
            *values,
        )
        return kernel

    def warm(
        self,
        original: Callable[..., CompiledKernel],
        jit: JitFunction,
        *args: KernelArgument,
        grid: Grid,
        **kwargs: KernelArgument,
    ) -> CompiledKernel:
        """Decide what :meth:`run` would run for this launch, compiling the kernel without launching it, and answer
        that; ``None`` where a hook of Triton's keeps it from compiling."""

        def compiled(jit: JitFunction, *args: KernelArgument, warmup: bool, **kwargs: KernelArgument) -> CompiledKernel:
            return original(jit, *args, warmup=True, **kwargs)

        fresh = LaunchTable(self._decide)  # in which nothing is known, so that nothing is launched
        ran = fresh.run(compiled, jit, args, kwargs, grid)
        known, _ = jit.__dict__.pop(fresh._name, ({}, ()))
        self._new(jit)[0].update(known)
        return next(iter(known.values()), ran)

    def knows(self, call: Call) -> bool:
        """Whether what runs ``call`` is in the table."""
        known, _ = call.jit.__dict__.get(self._name, ({}, ()))
        options = {name: value for name, value in call.options.items() if name != "debug"}
        key = (call.device, call.options["debug"], call.sizes, *options.items(), *call.specialization)
        return key in known

    def _new(self, jit: JitFunction) -> Table:
        """The part of the table that is about ``jit``, kept on it: planned kernels live as long as Triton's own do, for
        captured graphs hold on to their code, and no longer."""
        positions = tuple(p.num for p in jit.params if not p.is_constexpr)
        table: Table = jit.__dict__.setdefault(self._name, ({}, positions))
        return table

    def _first(
        self, call: Call, table: dict[TableKey, CompiledKernel], key: TableKey, launch: Launch
    ) -> CompiledKernel:
        if is_capturing():
            return launch()
        if 0 in call.grid:  # nothing runs, and nothing can be compared
            ran = launch()
            if ran is not None and not hasattr(ran, "result"):
                table[key] = ran
            return ran
        pending = (id(call.jit), key)
        with self._lock:
            mine = pending not in self._pending
            self._pending.add(pending)
        if not mine:
            return launch()
        try:
            if self._beside is None or is_waiting():
                ran, chosen = self._decide(call, launch)
            else:
                ran, chosen = watched(self._beside, call, launch, partial(table.__setitem__, key))
            if chosen is not None:
                table[key] = chosen
            return ran
        finally:
            with self._lock:
                self._pending.discard(pending)


def watched(
    beside: BackgroundTrials, call: Call, launch: Launch, place: Callable[[CompiledKernel], None]
) -> tuple[CompiledKernel, CompiledKernel]:
    """As :data:`Decide`, without waiting: what is decided later is put into its place by ``place``."""
    from triton.runtime.jit import JITFunction

    ran = launch()
    if ran is None or hasattr(ran, "result"):  # kept from compiling, or compiled in the background by Triton itself
        return ran, None
    if type(call.jit) is not JITFunction:  # Gluon's kernels are specialised by their authors
        return ran, ran
    try:
        # Without its tensors, which would live as long as the class is watched.
        numbers = {name: value if type(value) in _KEPT else None for name, value in call.arguments.items()}
        aliases = shared_memory(call.arguments)
        family = (id(call.jit), call.device, str(call.specialization), str(call.options), aliases)
        sizes = launch_sizes(numbers, call.grid)
        lean = replace(call, arguments=numbers)
        beside.watch(WatchedLaunch(lean, name_of(call.jit), family, tuple(numbers), sizes, aliases), ran, place)
    except Exception:  # arguments of types that tell nothing of themselves: no failure of ours reaches the job
        return ran, ran
    return ran, None


_KEPT = frozenset({int, bool, float, str})


def size_class(values: tuple[KernelArgument, ...], positions: tuple[int, ...], grid: Grid) -> SizeClass:
    """Powers of two: the bits of the grid, of the integers at ``positions`` and of the sizes of descriptors there.

    Two launches in one class differ by less than a factor of two in every size, and share a decision. 0 and negative
    numbers are in classes of their own.
    """
    classes = [size.bit_length() for size in grid]
    for position in positions:
        value = values[position]
        kind = type(value)
        if kind is int:
            bits = value.bit_length()
            classes.append(bits if value >= 0 else -bits)
        elif kind is _descriptor:
            for size in value.shape:
                classes.append(size.bit_length())
    return tuple(classes)


def current_device() -> int:
    """The number of the GPU that this thread launches on."""
    device: int = _triton()[1].get_current_device()
    return device


def bound_call(
    jit: JitFunction, args: tuple[KernelArgument, ...], kwargs: dict[str, KernelArgument], grid: Grid
) -> Call:
    """What :meth:`LaunchTable.run` decides on for the launch ``jit[grid](*args, **kwargs)``."""
    knobs, active = _triton()
    device = active.get_current_device()
    bound, specialization, options = jit.device_caches[device][-1](*args, **kwargs)
    whole = tuple(map(int, grid(bound) if callable(grid) else grid))
    positions = tuple(p.num for p in jit.params if not p.is_constexpr)
    sizes = size_class(tuple(bound.values()), positions, whole)
    debug = bool(knobs.runtime.debug or jit.debug)
    return Call(jit, bound, specialization, {"debug": debug, **options}, device, whole, sizes)


_thread = threading.local()


def is_tuning() -> bool:
    """Whether this thread is inside an autotuner's benchmark: its candidates run as they are, the winner is planned."""
    return getattr(_thread, "tuning", False)


def is_waiting() -> bool:
    """Whether this thread's launches wait for what is decided on them, although others do not."""
    return getattr(_thread, "waiting", False)


@contextmanager
def waiting() -> Iterator[None]:
    """Let this thread's launches wait for what is decided on them."""
    before, _thread.waiting = is_waiting(), True
    try:
        yield
    finally:
        _thread.waiting = before


def tuning(bench: Callable[..., T]) -> Callable[..., T]:
    """``Autotuner._bench`` that says so while it runs."""

    def _bench(*args: KernelArgument, **kwargs: KernelArgument) -> T:
        before, _thread.tuning = is_tuning(), True
        try:
            return bench(*args, **kwargs)
        finally:
            _thread.tuning = before

    return _bench


def _globals_changed(jit: JitFunction) -> bool:
    missing = object()
    return any(scope.get(name, missing) != value for (name, _), (value, scope) in jit.used_global_vals.items())


def is_capturing() -> bool:
    """Whether launches are recorded into a CUDA graph now, which none may wait for."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _triton() -> tuple[TritonModule, TritonModule]:
    """Triton's knobs and active driver, imported at the first launch."""
    global _knobs, _driver, _descriptor
    if _driver is None:
        from triton import knobs
        from triton.runtime.driver import driver
        from triton.tools.tensor_descriptor import TensorDescriptor

        _knobs, _descriptor, _driver = knobs, TensorDescriptor, driver
    return _knobs, _driver.active


_knobs: TritonModule = None
_driver: TritonModule = None
_descriptor: TritonModule = None


def warn_not_planned(jit: JitFunction, reason: str) -> None:
    """One :class:`PlanWarning` a kernel, whatever happens to it."""
    name = name_of(jit)
    about = (name, str(getattr(jit, "hash", "")))
    warn_once(about, f"{name} runs as it is, not planned: {reason}", PlanWarning, stacklevel=2)


def name_of(jit: JitFunction) -> str:
    """Module and name of a kernel, as in ``my_kernels.matmul``."""
    return f"{jit.fn.__module__}.{jit.fn.__qualname__}"
