"""Kernels that ``torch.compile`` launches, planned like hand-written ones: ``with planned_inductor(): model(x)``.

Inductor compiles its kernels in worker processes and tunes its templates before it writes the graph's code, so neither
is a place for plans. The one place that every kernel of a finished graph passes, those that the user wrote among them,
is ``CachingAutotuner.run``, in the job's own process, with the tensors of the launch: the first time there a kernel is
decided on, as a ``tl`` kernel is at its first launch, beside the job or while the launch waits. A kernel that is
watched or planned gets Inductor's own launcher around it, so that nothing is added to a launch but one look-up.
Launches of Inductor's own benchmarks run as they are: the winner is planned.

Only kernels that multiply can be planned: the templates that load through pointers where TMA loads are proven to read
the same, the persistent ones, which Inductor has to be told to offer (``tma_templates``), as they are. A kernel of a
template, or one of the user's, that is left alone says so once; pointwise kernels and reductions, which are most, say
nothing.

Source: torch 2.9 to 2.13, ``torch/_inductor/runtime/triton_heuristics.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from warpplan.kernels.compiler.background.background_trials import BackgroundTrials
from warpplan.kernels.compiler.background.gpu_budget import require_share
from warpplan.kernels.compiler.background.plan_choices import PlanRunner
from warpplan.kernels.compiler.background.watched_kernel import WatchedKernel
from warpplan.kernels.compiler.exceptions import CannotPlan, reason_of
from warpplan.kernels.compiler.launching.dispatch import (
    Call,
    Decide,
    is_capturing,
    size_class,
    warn_not_planned,
    watched,
)
from warpplan.kernels.compiler.launching.sources import Plans, require_plans, require_time_limit
from warpplan.kernels.torch_types import InductorConfig, InductorLauncher, InductorResult, InductorTuner
from warpplan.kernels.triton_types import CompiledKernel, Json, KernelArgument, TritonModule

if TYPE_CHECKING:
    from warpplan.planner.values.profile import Profile

Recompiled = tuple[InductorResult, CompiledKernel]
"""Inductor's compile result and Triton's ``CompiledKernel`` of it."""
Run = Callable[..., object]
"""``CachingAutotuner.run``."""
REQUIRED = ("tt.dot",)


class planned_inductor:
    """Kernels of compiled graphs run under plans while it is active, in all threads: Inductor's templates, and Triton
    kernels of the user's that the graph calls.

    ``plans``, ``measure``, ``profile``, ``time_limit_s``, ``background`` and ``gpu_share`` are
    :class:`~.planned.planned`'s. Where graphs are captured at their second call (``mode="reduce-overhead"``) a plan
    that is found beside the job comes too late for them: decide with ``background=False`` there, once; what is kept is
    captured from then on.

    ``kernels`` names those that run under a plan. Leaving puts every kernel back as it was. No failure is raised: a
    kernel runs as Inductor compiled it, with one
    :class:`~warpplan.kernels.compiler.exceptions.PlanWarning` that says why. Raises
    :class:`~warpplan.planner.errors.InvalidInput` for ``plans``, a ``gpu_share`` or a ``time_limit_s`` that are none.
    """

    def __init__(
        self,
        plans: Plans = None,
        *,
        measure: bool = True,
        profile: Profile | None = None,
        time_limit_s: float = 60.0,
        background: bool = True,
        gpu_share: float = 0.02,
    ) -> None:
        require_plans(plans)
        require_share(gpu_share)
        require_time_limit(time_limit_s)

        def beside() -> PlanRunner:
            from warpplan.kernels.compiler.launching.background_decider import BackgroundDecider

            return BackgroundDecider(plans, measure=measure, profile=profile, time_limit_s=time_limit_s)

        self._decide: Decide | None = None
        self._beside: BackgroundTrials | None = None
        if background:
            self._beside = BackgroundTrials(
                beside, gpu_share=gpu_share, capturing=lambda: is_capturing(), active=lambda: bool(self._covered)
            )
        else:
            from warpplan.kernels.compiler.launching.decide import Decider

            self._decide = Decider(plans, measure=measure, profile=profile, time_limit_s=time_limit_s)
        self.kernels: list[str] = []
        self._decided: dict[int, PlacedKernel] = {}
        self._covered: list[Run] = []  # what this scope stands over, once for each time that it is entered
        self._lock = threading.RLock()

    def __enter__(self) -> planned_inductor:
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        original = CachingAutotuner.run

        def run(
            tuner: InductorTuner,
            *args: KernelArgument,
            stream: int,
            benchmark_run: bool = False,
            **kwargs: KernelArgument,
        ) -> object:
            if id(tuner) in self._decided or benchmark_run:
                return original(tuner, *args, stream=stream, benchmark_run=benchmark_run, **kwargs)
            return self._first(original, tuner, args, stream, kwargs)

        with self._lock:
            self._covered.append(original)
            CachingAutotuner.run = run
            for placed in self._decided.values():
                placed.use()
        return self

    def __exit__(self, *exception: object) -> None:
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        with self._lock:
            CachingAutotuner.run = self._covered.pop()
            if not self._covered:
                for placed in self._decided.values():
                    placed.leave()

    def _first(
        self, original: Run, tuner: InductorTuner, args: tuple[KernelArgument, ...], stream: int,
        kwargs: dict[str, KernelArgument],
    ) -> object:  # fmt: skip
        """The first launch in here of a kernel: as it is, and then decided on, or watched."""
        launched: list[object] = []

        def launch() -> object:
            launched.append(original(tuner, *args, stream=stream, **kwargs))
            return launched[0]

        with self._lock:
            if id(tuner) in self._decided:
                return launch()
            # Kept alive with its entry: another at its address would be taken for it.
            placed = self._decided[id(tuner)] = PlacedKernel(tuner, self.kernels)
            if is_capturing() or len(_configs(tuner)) != 1:
                # Tuned at its first launch, or not to be waited for: the next launch may be planned.
                del self._decided[id(tuner)]
                return launch()
            try:
                if kwargs and _may_be_planned(tuner):
                    raise CannotPlan(f"launched with {', '.join(kwargs)} by name, which is not looked up")
                self._plan(placed, args, launch)
            except Exception as error:
                if not launched:
                    launch()
                warn_not_planned(tuner.fn, reason_of(error, CannotPlan))
        return launched[0]

    def _plan(self, placed: PlacedKernel, args: tuple[KernelArgument, ...], launch: Callable[[], object]) -> None:
        tuner = placed.tuner
        (config,) = _configs(tuner)
        if not _may_be_planned(tuner):
            launch()
            return
        result, unplanned = recompiled(tuner, config)
        refuse_template(unplanned.asm["ttir"])
        call = call_of(tuner, config, result, args)

        def ran() -> CompiledKernel:
            launch()
            return unplanned

        placed.of(result, unplanned)
        if self._beside is not None:
            watched(self._beside, call, ran, placed.place)
        elif self._decide is not None:
            _, chosen = self._decide(call, ran)
            if chosen is not None:
                placed.place(chosen)


class PlacedKernel:
    """What ``tuner`` launches: its own launcher, or one around the kernel that is placed. The names of those that run
    under a plan are added to ``names``."""

    def __init__(self, tuner: InductorTuner, names: list[str]) -> None:
        self.tuner, self._names = tuner, names
        self._result: InductorResult = None
        self._unplanned: CompiledKernel = None
        self._own: tuple[list[InductorLauncher], InductorLauncher] | None = None
        self._launcher: InductorLauncher = None
        self._used = True
        self._lock = threading.Lock()  # a plan is placed by the background thread

    def of(self, result: InductorResult, unplanned: CompiledKernel) -> None:
        """Inductor's ``result`` and its kernel, which others are placed for."""
        self._result, self._unplanned = result, unplanned

    def place(self, kernel: CompiledKernel) -> None:
        """Launch ``kernel`` from now on: a plan, one that is watched, or the kernel as it is."""
        launcher = None if kernel is self._unplanned else relaunched(self._result, kernel)
        name = self.tuner.fn.__name__
        if launcher is not None and not isinstance(kernel, WatchedKernel) and name not in self._names:
            self._names.append(name)
        with self._lock:
            self._launcher = launcher
            if self._used:
                self._put(launcher)

    def use(self) -> None:
        """Launch what was placed, again."""
        with self._lock:
            self._used = True
            self._put(self._launcher)

    def leave(self) -> None:
        """Launch what Inductor would."""
        with self._lock:
            self._used = False
            self._put(None)

    def _put(self, launcher: InductorLauncher) -> None:
        tuner = self.tuner
        if launcher is not None:
            self._own = self._own or (tuner.launchers, getattr(tuner, "_cached_launcher", None))
            tuner.launchers, tuner._cached_launcher = [launcher], None
        elif self._own is not None:
            (tuner.launchers, tuner._cached_launcher), self._own = self._own, None


def tma_templates() -> dict[str, Json]:
    """Options of ``torch.compile`` (``options=``) under which Inductor's matrix products can be planned.

    They leave out cuBLAS and the templates that load through pointers: either may win over a kernel not yet planned.
    """
    return {
        "max_autotune": True,
        "max_autotune_gemm_backends": "TRITON",
        "triton.enable_persistent_tma_matmul": True,
        "test_configs.autotune_choice_name_regex": "tma",
    }


def refuse_template(ttir: str) -> None:
    """Raise :class:`CannotPlan` for a kernel whose ``ttir``, Triton's IR, has no product. Loads that no producer can
    run ahead with are named where the kernel is read."""
    missing = [operation for operation in REQUIRED if operation not in ttir]
    if missing:
        raise CannotPlan(
            f"has no {' and no '.join(missing)}: only kernels that load tiles and multiply them are planned"
        )


def recompiled(tuner: InductorTuner, config: InductorConfig) -> Recompiled:
    """The kernel of ``config`` as this process compiles it, which Triton's cache answers.

    What came from a worker process, or is launched past Triton, holds no ``CompiledKernel``.
    """
    from torch._inductor.runtime import triton_heuristics

    if tuner.fn.fn is None:  # its source stayed in the worker
        tuner.fn = tuner._reload_kernel().fn
    with _recorded(triton_heuristics.triton, "compile") as compiled:
        result = tuner._precompile_config(config)
    return result, compiled[-1]


def call_of(
    tuner: InductorTuner, config: InductorConfig, result: InductorResult, args: tuple[KernelArgument, ...]
) -> Call:
    """A launch in the terms of :mod:`~.launch`. Raises :class:`CannotPlan` where Inductor
    passes other arguments than the kernel's signature says."""
    args, grid = tuner._interpret_args_grid(args, config)
    meta = result.compile_meta
    constexprs = {p.name for p in tuner.fn.params if p.is_constexpr}
    names = [name for name in tuner.fn.arg_names if name not in constexprs]
    if len(names) != len(args):
        raise CannotPlan(f"launched with {len(args)} arguments where its signature has {len(names)}")
    passed = dict(zip(names, args, strict=True))
    arguments = {name: passed.get(name, meta["constants"].get(name)) for name in tuner.fn.arg_names}
    positions = tuple(i for i, name in enumerate(arguments) if name in passed)
    grid = tuple(map(int, grid))
    return Call(
        tuner.fn,
        arguments,
        [str(item) for item in (sorted(meta["signature"].items()), sorted(meta["constants"].items()), meta["configs"])],
        {"num_warps": config.num_warps, "num_stages": config.num_stages, "debug": meta["debug"]},
        tuner.triton_meta["device"],
        grid,
        size_class(tuple(arguments.values()), positions, grid),
    )


def relaunched(result: InductorResult, kernel: CompiledKernel) -> InductorLauncher:
    """Inductor's launcher of ``result`` around another binary of the same kernel."""
    from torch._inductor.runtime.triton_heuristics import TritonCompileResult

    return TritonCompileResult(kernel, result.config, result.compile_meta, result.inductor_meta).make_launcher()


def _may_be_planned(tuner: InductorTuner) -> bool:
    """Cheap to tell: pointwise kernels and reductions, which are most, are not compiled again to be captured."""
    from torch._inductor.runtime.hints import HeuristicType

    return tuner.heuristic_type in (HeuristicType.TEMPLATE, HeuristicType.USER_AUTOTUNE)


def _configs(tuner: InductorTuner) -> list[InductorConfig]:
    """What is launched, or would be."""
    if tuner.launchers:
        return [launcher.config for launcher in tuner.launchers]
    return [result.config for result in tuner.compile_results] or list(tuner.configs)


@contextmanager
def _recorded(module: TritonModule, name: str) -> Iterator[list[TritonModule]]:
    """What ``module.name`` returns to this thread while the block lasts."""
    original, thread, returned = getattr(module, name), threading.get_ident(), []

    def recording(*args: KernelArgument, **kwargs: KernelArgument) -> TritonModule:
        value = original(*args, **kwargs)
        if threading.get_ident() == thread:
            returned.append(value)
        return value

    setattr(module, name, recording)
    try:
        yield returned
    finally:
        setattr(module, name, original)
