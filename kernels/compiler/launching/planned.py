"""``with planned(): kernel[grid](…)``: the launches of any ``@triton.jit`` kernel, planned while it is active.

Entering replaces ``JITFunction.run``, where every launch of a ``tl`` kernel ends, also one under ``@triton.autotune``
or ``@triton.heuristics``; leaving puts it back, so that nothing is paid outside. Importing this needs no Triton.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from warpplan.kernels.compiler.exceptions import PlanWarning
from warpplan.kernels.compiler.launching.dispatch import LaunchTable, is_tuning, tuning
from warpplan.kernels.compiler.launching.sources import Plans
from warpplan.kernels.triton_types import Autotuner, CompiledKernel, Grid, JitFunction, KernelArgument, TritonModule
from warpplan.kernels.warn_once import warn_once

if TYPE_CHECKING:
    from warpplan.planner.values.profile import Profile

T = TypeVar("T", bound=Callable[..., object])

_lock = threading.Lock()
_active: tuple[planned, ...] = ()
_undo: list[Callable[[], None]] = []


class planned:
    """Launches run under warp-specialisation plans while it is active, in all threads; a decorator of functions and of
    kernels, too. The innermost one counts.

    ``plans`` says where plans come from: a folder of decisions (``None``: ``warpplan`` in Triton's cache); the URL of a
    warpplan service; or one plan: a :class:`~warpplan.kernels.compiler.strategy.hopper.HopperStrategy`, on Blackwell a
    :class:`~warpplan.kernels.compiler.strategy.blackwell.BlackwellStrategy`, its JSON, a ``.json`` file. What is not
    decided yet is tried at its first launch, which takes seconds, once for each kernel, specialisation and size class
    (powers of two).
    ``measure=False`` tries nothing on the GPU: it trusts decisions and predictions, the same on every rank. ``profile``
    is the GPU's, ``None`` the one that ships with the package. ``time_limit_s`` is how long a step of a trial may take.

    No failure is raised: the kernel runs as it is, with one :class:`PlanWarning` that says why.
    """

    def __init__(
        self, plans: Plans = None, *, measure: bool = True, profile: Profile | None = None, time_limit_s: float = 60.0
    ) -> None:
        self._table = _table(plans, measure, profile, time_limit_s)

    def __enter__(self) -> planned:
        global _active
        with _lock:
            if not _active:
                _install()
            _active = (*_active, self)
        return self

    def __exit__(self, *exception: object) -> None:
        global _active
        with _lock:
            # The innermost entry of this very object: threads may leave in another order than they entered.
            last = max(i for i, entry in enumerate(_active) if entry is self)
            _active = _active[:last] + _active[last + 1 :]
            if not _active:
                while _undo:
                    _undo.pop()()

    def __call__(self, target: T) -> T:
        """``target``: a kernel, planned from now on, or a function during whose calls it is active."""
        if hasattr(target, "run") and hasattr(target, "fn"):
            self._decorate(target)
            return target

        @functools.wraps(target)
        def with_plans(*args: KernelArgument, **kwargs: KernelArgument) -> object:
            with self:
                return target(*args, **kwargs)

        return cast(T, with_plans)

    def _decorate(self, kernel: Autotuner) -> None:
        """Replace ``run`` of this kernel alone: the kernel object stays what it is."""
        layer = kernel
        while hasattr(layer, "fn") and hasattr(layer, "run") and not hasattr(layer, "device_caches"):
            if hasattr(layer, "_bench"):
                layer._bench = tuning(layer._bench)
            layer = layer.fn
        if not hasattr(layer, "device_caches"):
            _warn(f"{getattr(kernel, '__name__', kernel)!s}: not a kernel that Triton compiles")
            return
        jit, original = layer, type(layer).run

        def run(*args: KernelArgument, grid: Grid, warmup: bool, **kwargs: KernelArgument) -> CompiledKernel:
            if warmup or is_tuning():
                return original(jit, *args, grid=grid, warmup=warmup, **kwargs)
            return self._table.run(original, jit, args, kwargs, grid)

        layer.run = run


_tables: dict[tuple[object, ...], tuple[LaunchTable, Profile | None]] = {}


def _table(plans: Plans, measure: bool, profile: Profile | None, time_limit_s: float) -> LaunchTable:
    """One table for equal arguments: ``with planned():`` in a loop decides once."""
    from warpplan.kernels.compiler.launching.decide import Decider

    key = (repr(plans), measure, id(profile), time_limit_s)
    with _lock:
        if key not in _tables:
            decider = Decider(plans, measure=measure, profile=profile, time_limit_s=time_limit_s)
            _tables[key] = (LaunchTable(decider), profile)
        return _tables[key][0]


def _install() -> None:
    try:
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction

        from warpplan.kernels import triton_compat  # noqa: F401  # refuses a Triton that it does not know
    except ImportError as error:
        _warn(f"kernels run as they are, not planned: {error}")
        return
    original = JITFunction.run

    def run(
        self: JitFunction, *args: KernelArgument, grid: Grid, warmup: bool, **kwargs: KernelArgument
    ) -> CompiledKernel:
        scopes = _active
        if warmup or not scopes or is_tuning():
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        return scopes[-1]._table.run(original, self, args, kwargs, grid)

    _replace(JITFunction, "run", run)
    _replace(Autotuner, "_bench", tuning(Autotuner._bench))


def _replace(owner: TritonModule, name: str, ours: Callable[..., object]) -> None:
    theirs = getattr(owner, name)
    setattr(owner, name, ours)

    def undo() -> None:
        # What someone else put over ours stays, and ours passes through.
        if getattr(owner, name) is ours:
            setattr(owner, name, theirs)

    _undo.append(undo)


def _warn(reason: str) -> None:
    """Once a reason, at the line of the user who enters ``planned`` or decorates."""
    warn_once(reason, reason, PlanWarning, stacklevel=4)
