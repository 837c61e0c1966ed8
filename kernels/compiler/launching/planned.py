"""``with planned(): kernel[grid](…)``: the launches of any ``@triton.jit`` kernel, planned while it is active.

Entering replaces ``JITFunction.run``, where every launch of a ``tl`` kernel ends, also one under ``@triton.autotune``
or ``@triton.heuristics``; leaving puts it back, so that nothing is paid outside. What replaces it is made once, so that
either is no more than one attribute set. Importing this needs no Triton.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar, cast

from warpplan.kernels.compiler.background.background_trials import BackgroundTrials
from warpplan.kernels.compiler.background.gpu_budget import require_share
from warpplan.kernels.compiler.background.plan_choices import PlanRunner
from warpplan.kernels.compiler.exceptions import PlanWarning
from warpplan.kernels.compiler.launching import dispatch
from warpplan.kernels.compiler.launching.dispatch import LaunchTable, is_tuning, tuning, waiting
from warpplan.kernels.compiler.launching.sources import Plans, require_plans, require_time_limit
from warpplan.kernels.triton_types import Autotuner, CompiledKernel, Grid, JitFunction, KernelArgument, TritonModule
from warpplan.kernels.warn_once import warn_once

if TYPE_CHECKING:
    from warpplan.kernels.compiler.launching.autotuned.list_decide import ListDecider
    from warpplan.kernels.compiler.launching.autotuned.list_table import ListTable
    from warpplan.kernels.compiler.launching.decide import Decider
    from warpplan.planner.values.profile import Profile

T = TypeVar("T", bound=Callable[..., object])
Run = Callable[..., CompiledKernel]

_lock = threading.Lock()
_active: list[planned] = []
"""The scopes that are entered, the innermost first: that one counts."""
_leaving: list[planned] = []
"""Scopes that may be putting Triton's ``run`` back just now. A lock would cost more than all the rest of entering; the
operations of a list that are used here are atomic."""


class planned:
    """Launches run under warp-specialisation plans while it is active, in all threads; a decorator of functions and of
    kernels, too. The innermost one counts.

    ``plans`` says where plans come from: a folder of decisions (``None``: ``warpplan`` in Triton's cache); the URL of a
    warpplan service; or one plan: a :class:`~warpplan.kernels.compiler.strategy.hopper.HopperStrategy`, on Blackwell a
    :class:`~warpplan.kernels.compiler.strategy.blackwell.BlackwellStrategy`, its JSON, a ``.json`` file. What is not
    decided yet is decided once for each kernel, specialisation and size class (powers of two): carried from other sizes
    where the prediction says that the gain holds, tried otherwise.

    ``background=True`` tries beside the job: launches run the kernel as it is and never wait; a child process shows
    that a plan computes the same, and the times of the job's own launches, some with the plan and some without, decide.
    ``gpu_share`` is what trials may take of the GPU's time since the first launch, beside 2 s to begin with
    (:data:`~warpplan.kernels.compiler.background.gpu_budget.START_ALLOWANCE_S`); 0 tries nothing. ``background=False``
    waits at first launches, for seconds each, so that ranks agree from the first step.

    ``measure=False`` tries nothing on the GPU: it trusts decisions and predictions, the same on every rank. ``profile``
    is the GPU's, ``None`` the one that ships with the package. ``time_limit_s`` is how long a step of a trial may take.
    A kernel under ``@triton.autotune`` is decided on over its whole list: beside the job Triton tunes at the first
    launch, and the job's launches decide between its choice and what is faster planned. ``extend`` tries tiles beside
    the list's, too, each compared with the list's own.

    No failure is raised later: the kernel runs as it is, with one :class:`PlanWarning` that says why. Raises
    :class:`~warpplan.planner.errors.InvalidInput` at once for ``plans``, a ``gpu_share`` or a ``time_limit_s`` that are
    none, and where the parentheses of ``@planned()`` are missing. A folder need not exist, the one around it must; a
    folder that can only be read gives its decisions and keeps none.
    """

    __slots__ = ("_arguments", "_found", "_lists")

    def __init__(
        self,
        plans: Plans = None,
        *,
        measure: bool = True,
        profile: Profile | None = None,
        time_limit_s: float = 60.0,
        background: bool = True,
        gpu_share: float = 0.02,
        extend: bool = False,
    ) -> None:
        if plans is not None:
            require_plans(plans)
        if gpu_share != 0.02:  # the default is one
            require_share(gpu_share)
        if time_limit_s != 60.0:
            require_time_limit(time_limit_s)
        self._arguments = plans, measure, profile, time_limit_s, background, gpu_share, extend
        self._found: LaunchTable | None = None  # looked up at its first launch
        self._lists: Callable[[], ListTable] | None = None

    def __enter__(self) -> planned:
        _active.insert(0, self)
        # Whoever begins to leave from now on sees this scope; who began before must have come to an end.
        while _leaving:
            time.sleep(0)
        for hook in _hooks:
            run = hook.place["run"]
            if run is not hook.ours and (run is hook.theirs or _cover()):
                hook.owner.run = hook.ours
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            _leaving.append(self)
            _active.remove(self)  # its innermost entry: threads may leave in another order than they entered
            # What somebody else has put over ours stays, and ours passes through.
            if not _active:
                for hook in _hooks:
                    if hook.place["run"] is hook.ours:
                        hook.owner.run = hook.theirs
        finally:
            _leaving.remove(self)

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

    def warm(self, kernel: JitFunction, *args: KernelArgument, grid: Grid, **kwargs: KernelArgument) -> CompiledKernel:
        """Decide beforehand on the launch ``kernel[grid](*args, **kwargs)``, so that it waits for nothing; what it will
        run. The arguments are read and never written to. A kernel under ``@triton.autotune`` or ``@triton.heuristics``
        is launched, for that is what tunes it, and its winner is decided on."""
        if not hasattr(kernel, "device_caches"):
            with self, waiting():
                return kernel.run(*args, grid=grid, warmup=False, **kwargs)
        if _kernels.owner is None and not _cover():
            return kernel.run(*args, grid=grid, warmup=True, **kwargs)
        return (self._found or self._table()).warm(type(kernel).run, kernel, *args, grid=grid, **kwargs)

    def _decorate(self, kernel: Autotuner) -> None:
        """Replace ``run`` of this kernel alone: the kernel object stays what it is."""
        layer = kernel
        while hasattr(layer, "fn") and hasattr(layer, "run") and not hasattr(layer, "device_caches"):
            if hasattr(layer, "_bench"):
                layer._bench = tuning(layer._bench)
                layer.run = functools.partial(self._run_tuner, type(layer).run, layer)
            layer = layer.fn
        if not hasattr(layer, "device_caches"):
            _warn(f"{getattr(kernel, '__name__', kernel)!s}: not a kernel that Triton compiles")
            return
        jit, original = layer, type(layer).run

        def run(*args: KernelArgument, grid: Grid, warmup: bool, **kwargs: KernelArgument) -> CompiledKernel:
            if warmup or is_tuning():
                return original(jit, *args, grid=grid, warmup=warmup, **kwargs)
            return (self._found or self._table()).run(original, jit, args, kwargs, grid)

        layer.run = run

    def _run_tuner(
        self, original: Run, tuner: Autotuner, *args: KernelArgument, **kwargs: KernelArgument
    ) -> CompiledKernel:
        """What ``original(tuner, *args, **kwargs)`` does, under the configuration that is best planned."""
        if self._lists is None:
            self._table()
            assert self._lists is not None
        return self._lists().run(original, tuner, args, kwargs)

    def _table(self) -> LaunchTable:
        """One table for equal arguments: ``with planned():`` in a loop decides once."""
        plans, measure, profile, *rest = self._arguments
        key = (repr(plans), measure, id(profile), *rest)
        with _lock:
            if key not in _tables:
                _tables[key] = (*_new_tables(*self._arguments), profile)
            self._found, self._lists, _ = _tables[key]
            return self._found


def _new_tables(
    plans: Plans,
    measure: bool,
    profile: Profile | None,
    time_limit_s: float,
    background: bool,
    gpu_share: float,
    extend: bool,
) -> tuple[LaunchTable, Callable[[], ListTable]]:
    """What decides is imported by whoever first waits for it: a launch does not, where trials run beside the job, but
    that of a list of configurations does, as it waits for Triton's own tuning."""

    def beside() -> PlanRunner:
        from warpplan.kernels.compiler.launching.background_decider import BackgroundDecider

        return BackgroundDecider(plans, measure=measure, profile=profile, time_limit_s=time_limit_s)

    trials = None
    if background:
        trials = BackgroundTrials(
            beside, gpu_share=gpu_share, capturing=lambda: dispatch.is_capturing(), active=lambda: bool(_active)
        )

    @functools.cache
    def decider() -> Decider:
        from warpplan.kernels.compiler.launching.decide import Decider

        return Decider(plans, measure=measure, profile=profile, time_limit_s=time_limit_s)

    decide = decider() if trials is None else lambda call, launch: decider()(call, launch)
    table = LaunchTable(decide, trials)

    @functools.cache
    def lists() -> ListTable:
        from warpplan.kernels.compiler.launching.autotuned.list_beside import ListsBeside
        from warpplan.kernels.compiler.launching.autotuned.list_lookup import ListLookup
        from warpplan.kernels.compiler.launching.autotuned.list_table import ListTable

        lookup = ListLookup(decider(), extend=extend)

        @functools.cache
        def list_decider() -> ListDecider:
            from warpplan.kernels.compiler.launching.autotuned.list_decide import ListDecider

            return ListDecider(decider(), lookup)

        # Without measuring nothing is tuned: every rank is to launch the same from the first launch on.
        lists_beside = ListsBeside(list_decider, lookup, trials) if trials is not None and measure else None
        return ListTable(lambda launch: list_decider()(launch), lookup, table, lists_beside)

    return table, lists


_tables: dict[tuple[object, ...], tuple[LaunchTable, Callable[[], ListTable], Profile | None]] = {}
"""By the arguments of ``planned``; each entry keeps its profile, whose ``id`` is part of the key."""


class _Hook:
    """``run`` of ``owner``, a class of Triton's: ``theirs``, and ``ours`` while a scope is entered. ``place`` is that
    class's dictionary: where an attribute of a class has just been set, it is read faster there."""

    __slots__ = ("make", "ours", "owner", "place", "theirs")

    def __init__(self, make: Callable[[Run], Run]) -> None:
        self.make = make
        self.owner: TritonModule = None
        self.place: Mapping[str, object] = {"run": None}
        self.ours: object = self  # nothing yet
        self.theirs: object = self

    def cover(self) -> None:
        """Make ``ours`` over what is there."""
        run = self.place["run"]
        if run is not self.ours and run is not self.theirs:
            self.ours = self.make(cast("Run", run))
            self.theirs = run


def _cover() -> bool:
    """Cover what stands in Triton's classes. ``False``, with a warning, where there is no Triton or one that is not
    known."""
    with _lock:
        if _kernels.owner is None:
            try:
                from triton.runtime.autotuner import Autotuner
                from triton.runtime.jit import JITFunction

                from warpplan.kernels import triton_compat  # noqa: F401  # refuses a Triton that it does not know
            except ImportError as error:
                _warn(f"kernels run as they are, not planned: {error}")
                return False
            # For good: it costs a benchmark of Triton's a fraction of a microsecond, and a launch nothing.
            Autotuner._bench = tuning(Autotuner._bench)
            for hook, owner in ((_kernels, JITFunction), (_tuners, Autotuner)):
                hook.owner, hook.place = owner, vars(owner)
        for hook in _hooks:
            hook.cover()
        return True


def _running(original: Run) -> Run:
    """``JITFunction.run`` that asks the innermost scope, where there is one."""

    def run(
        self: JitFunction, *args: KernelArgument, grid: Grid, warmup: bool, **kwargs: KernelArgument
    ) -> CompiledKernel:
        if warmup or is_tuning():
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        try:
            scope = _active[0]
        except IndexError:  # another thread has just left
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        return (scope._found or scope._table()).run(original, self, args, kwargs, grid)

    return run


def _tuning_lists(original: Run) -> Run:
    """``Autotuner.run`` that asks the innermost scope, where there is one."""

    def run(self: Autotuner, *args: KernelArgument, **kwargs: KernelArgument) -> CompiledKernel:
        try:
            scope = _active[0]
        except IndexError:  # another thread has just left
            return original(self, *args, **kwargs)
        return scope._run_tuner(original, self, *args, **kwargs)

    return run


_hooks = _kernels, _tuners = _Hook(_running), _Hook(_tuning_lists)
"""Of ``JITFunction``, where every launch ends, and of ``Autotuner``, where a configuration is chosen for it."""


def _warn(reason: str) -> None:
    """Once a reason, at the line of the user who enters ``planned`` or decorates."""
    warn_once(reason, reason, PlanWarning, stacklevel=4)
