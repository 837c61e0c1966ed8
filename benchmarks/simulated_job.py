"""A job without a GPU: the launches of ten kernels at changing shapes through the real launch table and the real
decisions, on a clock of its own.

Real: Triton's binder and specialisation, size classes, the table, what is watched, compared, carried, tried next and
kept in a folder. Replaced by a model of times: the child process (how long it takes, what it finds), the events around
launches, the compiled kernels. A kernel's true times are those of its gain model, off by a factor that the prediction
does not know: one for the kernel, one for each size, one for each launch.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import changing_kernels
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from warpplan.kernels.compiler.background.background_trials import BackgroundTrials, BackgroundWork
from warpplan.kernels.compiler.background.launch_comparison import GAIN
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.launching import background_decider, decide
from warpplan.kernels.compiler.launching import packed as packing
from warpplan.kernels.compiler.launching.background_decider import BESIDE_SCHEMES, BackgroundDecider
from warpplan.kernels.compiler.launching.dispatch import LaunchTable
from warpplan.kernels.compiler.sizes.gain_model import GainModel, LoopTrips, StrategyTerms
from warpplan.kernels.compiler.sizes.size_expressions import LaunchSizes
from warpplan.kernels.isolate import IsolatedResult

CLOCK_HZ = 1.98e9
MULTIPROCESSORS = 132
CHILD_START_S, CHILD_RANK_S, CHILD_COMPILE_S = 4.0, 3.0, 1.5
"""Seconds of a child: torch and Triton imported and a context made; plans ranked; one plan compiled, compared and
timed. Chosen by hand."""
LOOKED_UP_S = 0.02
"""Seconds of what the background thread does without a child: files read and written. Chosen by hand."""
CHILD_LAUNCHES = 40
"""Launches of each plan in a child: compared twice beside the kernel, then timed in brief."""
CHILD_COPIES_S = 0.05
"""Seconds of GPU time of a plan's copies, their comparison and the loading of two kernels."""
CLEAR_GAIN = 1.03
"""A gain that is larger than what single launches spread by."""
BEHIND = 12
"""Launches that the GPU is behind the host: a time is known that much later."""


@dataclass(frozen=True)
class SimulatedShape:
    kernel: int
    m: int
    n: int
    k: int


@dataclass
class FakeKernel:
    """Stands for a ``CompiledKernel``."""

    device: FakeDevice
    kernel: int
    planned: bool
    function: int = 1
    packed_metadata: int = 0
    src: Any = None
    metadata: Any = field(default_factory=SimpleNamespace)
    __hash__ = object.__hash__

    def run(self, x: int, y: int, z: int, stream: int, function: int, packed: Any, *rest: Any) -> None:
        self.device.launched(self, (x, y, z), rest[3:])


class FakeDevice:
    """True times, and what ran. ``seconds`` is the job's clock, ``gpu_s`` what its launches took."""

    def __init__(self, kernels: tuple[changing_kernels.ChangingKernel, ...], seed: int) -> None:
        draw = random.Random(f"device {seed}")
        self.kernels = kernels
        self.models = [_model(kernel, draw) for kernel in kernels]
        self.off = [(draw.lognormvariate(0, 0.08), draw.lognormvariate(0, 0.08)) for _ in kernels]
        self._noise = random.Random(f"noise {seed}")
        self._seed = seed
        self.seconds = 0.0
        self.gpu_s = 0.0
        self.times_us: deque[float] = deque(maxlen=1024)
        self.count = 0
        self.last: FakeKernel | None = None
        self.own_s = 0.0  # the host's seconds in this model, which are no job's
        self._true: dict[tuple[int, LaunchSizes], tuple[float, float]] = {}

    def true_us(self, kernel: int, sizes: LaunchSizes) -> tuple[float, float]:
        """As it is, and planned; ``inf`` for a plan that there is none of."""
        if (kernel, sizes) not in self._true:
            self._true[kernel, sizes] = self._times_us(kernel, sizes)
        return self._true[kernel, sizes]

    def _times_us(self, kernel: int, sizes: LaunchSizes) -> tuple[float, float]:
        model = self.models[kernel]
        if model is None:
            return 0.5 + sizes.programs / MULTIPROCESSORS * 0.4, math.inf
        here = random.Random(f"{self._seed} {kernel} {sizes}")
        alone, planned = (
            2.0 + cycles / CLOCK_HZ * 1e6 * off * here.lognormvariate(0, 0.02)
            for cycles, off in zip(model.cycles(sizes), self.off[kernel], strict=True)
        )
        return alone, planned

    def launched(self, kernel: FakeKernel, grid: tuple[int, ...], values: tuple[Any, ...]) -> None:
        begin = time.thread_time()
        names = [p.name for p in self.kernels[kernel.kernel].jit.params]
        integers = tuple((n, v) for n, v in zip(names, values, strict=False) if type(v) is int)
        us = self.true_us(kernel.kernel, LaunchSizes(integers, grid))[kernel.planned]
        us *= self._noise.lognormvariate(0, 0.03)
        self.times_us.append(us)
        self.gpu_s += us * 1e-6
        self.count += 1
        self.last = kernel
        self.own_s += time.thread_time() - begin


def _model(kernel: changing_kernels.ChangingKernel, draw: random.Random) -> GainModel | None:
    """Terms like those of the ranking for such tiles; a kernel in three gains little or nothing."""
    if kernel.style == "softmax":
        return None
    bm, bn, bk = kernel.tile
    blocks = draw.choice((1, 1, 2))
    work = bm * bn * bk / 2048 * draw.uniform(0.9, 1.4)
    gain = draw.choice((draw.uniform(0.96, 1.02), draw.uniform(1.08, 1.3), draw.uniform(1.2, 1.6)))
    upper = ("argument", "L" if kernel.style == "attention" else "K")
    trips = (LoopTrips(("counter", 0, upper, bn if kernel.style == "attention" else bk)),)
    ends = bm * bn / 8.0
    alone = tuple(StrategyTerms((work * (1.0 if b == blocks else 1.25),), ends + 1300.0) for b in range(1, blocks + 1))
    walks = kernel.style != "attention"
    planned = StrategyTerms((work / gain,), ends + (0.0 if walks else 1300.0), 1300.0 if walks else 0.0)
    return GainModel(MULTIPROCESSORS, trips, alone, planned, walks)


class FakeTimer:
    """The time of the launch between ``begin`` and ``end``, known when the GPU has come to it."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    def begin(self) -> None:
        pass

    def end(self) -> None:
        self._number, self._us = self._device.count, self._device.times_us[-1]

    def elapsed_us(self) -> float | None:
        return self._us if self._device.count >= self._number + BEHIND else None


class FakeDriver:
    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class FakeTensor:
    """As much of a torch tensor as a launch asks for."""

    addresses = iter(range(1 << 20, 1 << 62, 1 << 36))

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.dtype = _Bfloat16()
        self._address = next(self.addresses)

    def stride(self) -> tuple[int, ...]:
        return (self.shape[1], 1)

    def data_ptr(self) -> int:
        return self._address


class _Bfloat16:
    itemsize, is_floating_point = 2, True

    def __str__(self) -> str:
        return "torch.bfloat16"


class SimulatedChild:
    """Stands for ``run_isolated``: a child that finds what the device's models say, off by what a busy GPU does to
    times."""

    def __init__(self, job: SimulatedJob) -> None:
        self._job = job
        self._noise = random.Random(f"child {job.seed}")
        self.trials = 0
        self.gpu_s = 0.0

    def __call__(self, target: str, args: list[Any], *, on_item: Any = None, **limits: Any) -> IsolatedResult:
        self._job.forbid("a child process")
        (request,) = args
        number = request["kernel"]["number"]
        model = self._job.device.models[number]
        assert model is not None
        self.trials += 1
        schemes = [
            {"consumers": 2, "depths": [d], "warps": 4, "in_flight": 1} for d in range(4, 4 - BESIDE_SCHEMES, -1)
        ]
        items: list[Any] = [{"step": "plan", "schemes": schemes, "models": [asdict(model)] * len(schemes)}]
        integers = tuple((n, v) for n, v in request["launch"]["arguments"]["integers"])
        sizes = LaunchSizes(integers, tuple(request["launch"]["grid"]))
        alone, planned = self._job.device.true_us(number, sizes)
        for i, scheme in enumerate(schemes):
            files = [[str(number), __file__], [f"{request['kernel']['source_hash']} {i}", __file__]]
            gpu_s = CHILD_COPIES_S + CHILD_LAUNCHES * (alone + planned) * 1e-6
            self.gpu_s += gpu_s
            times = {
                "planned_us": planned * (1 + 0.02 * i) * self._noise.lognormvariate(0, 0.1),
                "unplanned_us": alone * self._noise.lognormvariate(0, 0.1),
            }
            items += [
                {"scheme": scheme, "step": "compile"},
                {"scheme": scheme, "step": "run", "hash": "x", "files": files},
                {"scheme": scheme, "step": "done", **times, "gpu_s": gpu_s},
            ]
        for item in items:
            if on_item is not None:
                on_item(item)
        return IsolatedResult("ok", None, "", 1.0, tuple(items))


@dataclass
class JobReport:
    """``gaining`` are launches whose plan is truly faster, after the first tenth of all, ``clear`` those of them by
    more than ``CLEAR_GAIN``; ``lost`` those that ran a plan that is truly slower."""

    launches: int = 0
    gaining: int = 0
    gaining_planned: int = 0
    clear: int = 0
    clear_planned: int = 0
    lost: int = 0
    classes: int = 0
    gpu_job_s: float = 0.0
    gpu_job_as_it_is_s: float = 0.0
    gpu_trials_s: float = 0.0
    trials: int = 0
    job_s: float = 0.0
    most_predictions: int = 0
    forbidden: list[str] = field(default_factory=list)
    longest_launch_ms: float = 0.0
    launch_us: float = 0.0

    @property
    def planned_share(self) -> float:
        return self.gaining_planned / self.gaining if self.gaining else 1.0


class SimulatedJob:
    """``shapes`` random shapes, launched ``launches`` times in all over ``job_s`` seconds, decisions kept in
    ``folder``."""

    def __init__(self, folder: Path, *, shapes: int, launches: int, job_s: float, seed: int, gpu_share: float = 0.02):
        self.seed, self.job_s, self.launches = seed, job_s, launches
        self.kernels = changing_kernels.kernels()
        self.device = FakeDevice(self.kernels, seed)
        draw = random.Random(f"shapes {seed}")
        self.shapes = [
            SimulatedShape(draw.randrange(len(self.kernels)), round(2 ** draw.uniform(0, 13.5)),
                           64 * round(2 ** draw.uniform(3, 7)), 64 * round(2 ** draw.uniform(2, 7)))
            for _ in range(shapes)
        ]  # fmt: skip
        self._draw = random.Random(f"launches {seed}")
        self.child = SimulatedChild(self)
        self.report = JobReport()
        self._in_launch = False
        self._predictions = 0
        self._compiled: dict[Any, FakeKernel] = {}
        self.trials = BackgroundTrials(
            lambda: BackgroundDecider(folder), gpu_share=gpu_share, capturing=lambda: False, active=lambda: True,
            clock=lambda: self.device.seconds, timer=lambda: FakeTimer(self.device), threaded=False,
        )  # fmt: skip
        self.table = LaunchTable(self._no_decision, self.trials)

    def run(self) -> JobReport:
        """Every launch, and the background's work in its own time."""
        report, step_s = self.report, self.job_s / self.launches
        arguments = [self._arguments(shape) for shape in self.shapes]
        busy_until, work = 0.0, None
        spent_s = 0.0
        with self._replaced():
            for shape, made in zip(self.shapes, arguments, strict=True):
                # What Triton imports and makes at a kernel's first launch is not ours.
                self.kernels[shape.kernel].jit.device_caches[0][-1](*made[0], **made[1])
            for number in range(self.launches):
                self.device.seconds = number * step_s
                if work is not None and self.device.seconds >= busy_until:
                    self.trials.perform(work)
                    work = None
                if work is None:
                    work = self.trials.pick()
                    if work is not None:
                        busy_until = self.device.seconds + self._takes_s(work)
                index = self._draw.randrange(len(self.shapes))
                spent_s += self._launch(self.shapes[index], *arguments[index], late=number >= self.launches // 10)
        report.launches, report.job_s = self.launches, self.job_s
        report.gpu_job_s, report.gpu_trials_s = self.device.gpu_s, self.trials.budget.spent_s
        report.trials, report.launch_us = self.child.trials, spent_s / self.launches * 1e6
        report.classes = sum(
            len(table[0]) for k in self.kernels for n, table in vars(k.jit).items() if n == self.table._name
        )
        return report

    def _takes_s(self, work: BackgroundWork) -> float:
        if work.kind != "try" or self.device.models[work.watched.kernel.kernel] is None:
            return LOOKED_UP_S
        return CHILD_START_S + CHILD_RANK_S + BESIDE_SCHEMES * CHILD_COMPILE_S

    def _arguments(self, shape: SimulatedShape) -> tuple[Any, ...]:
        from triton.tools.tensor_descriptor import TensorDescriptor

        kernel = self.kernels[shape.kernel]
        return kernel.launch(shape.m, shape.n, shape.k, FakeTensor, TensorDescriptor.from_tensor)

    def _launch(self, shape: SimulatedShape, args: Any, kwargs: Any, grid: Any, *, late: bool) -> float:
        """One launch. Seconds of the processor that it took, but for what Triton and this model take."""
        jit = self.kernels[shape.kernel].jit
        self._in_launch, self._predictions = True, 0
        self.device.own_s = 0.0
        begin = time.thread_time()
        self.table.run(self._as_it_is, jit, args, dict(kwargs), grid)
        took = time.thread_time() - begin - self.device.own_s
        self._in_launch = False
        report, ran = self.report, self.device.last
        assert ran is not None
        report.most_predictions = max(report.most_predictions, self._predictions)
        report.longest_launch_ms = max(report.longest_launch_ms, took * 1e3)
        integers = tuple((p.name, v) for p, v in zip(jit.params, args, strict=False) if type(v) is int)
        alone, planned = self.device.true_us(shape.kernel, LaunchSizes(integers, (*grid, 1, 1)[:3]))
        report.gpu_job_as_it_is_s += alone * 1e-6
        if late and alone / planned > GAIN:
            report.gaining += 1
            report.gaining_planned += ran.planned
            if alone / planned > CLEAR_GAIN:
                report.clear += 1
                report.clear_planned += ran.planned
        report.lost += ran.planned and alone < planned
        return took

    def _as_it_is(self, jit: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> FakeKernel:
        """What Triton's own ``run`` does: compile once for each specialisation, and launch."""
        begin, before = time.thread_time(), self.device.own_s
        bound, specialization, _ = jit.device_caches[0][-1](*args, **kwargs)
        number = next(i for i, kernel in enumerate(self.kernels) if kernel.jit is jit)
        kernel = self._compiled.setdefault(
            (number, str(specialization)), FakeKernel(self.device, number, planned=False)
        )
        kernel.src = str(specialization)
        self.device.launched(kernel, (*grid, 1, 1)[:3], tuple(bound.values()))
        self.device.own_s = before + time.thread_time() - begin
        return kernel

    @staticmethod
    def _no_decision(call: Any, launch: Any) -> Any:
        raise AssertionError("a launch waits for a decision")

    def forbid(self, what: str) -> None:
        """Note ``what`` if a launch is under way: no launch may wait for it."""
        if self._in_launch:
            self.report.forbidden.append(what)

    @contextmanager
    def _replaced(self) -> Iterator[None]:
        """The child, the GPU and compiled kernels replaced, and what no launch may wait for watched."""
        cycles, opened = GainModel.cycles, Path.open

        def counted(model: GainModel, sizes: LaunchSizes) -> tuple[float, float]:
            self._predictions += self._in_launch
            return cycles(model, sizes)

        def read(path: Path, *args: Any, **kwargs: Any) -> Any:
            self.forbid(f"the file {path.name}")
            return opened(path, *args, **kwargs)

        def pack(kernel: FakeKernel) -> Any:
            self.forbid("a kernel's text")
            if self.device.models[kernel.kernel] is None:
                raise CannotPlan("has no loads that feed a product")
            return {"number": kernel.kernel, "source_hash": kernel.src, "target": ["cuda", 90, 32]}

        def load(compiled: Any, source: Any) -> FakeKernel:
            self.forbid("a kernel's code")
            return FakeKernel(self.device, int(compiled.files[0][0]), planned=True)

        def describe(arguments: Any, constants: Any, storages: Any) -> Any:
            return {"integers": [[n, v] for n, v in arguments.items() if type(v) is int]}

        before = driver._active
        driver.set_active(FakeDriver())
        patches = (
            mock.patch.object(GainModel, "cycles", counted),
            mock.patch.object(Path, "open", read),
            mock.patch.object(packing, "pack", pack),
            mock.patch.object(packing, "load", load),
            mock.patch.object(background_decider, "describe", describe),
            mock.patch.object(background_decider, "run_isolated", self.child),
            mock.patch.object(decide, "run_isolated", self.child),
            mock.patch.object(decide, "gpu", return_value=("NVIDIA H200", 90)),
        )
        try:
            for patch in patches:
                patch.start()
            yield
        finally:
            for patch in reversed(patches):
                patch.stop()
            driver.set_active(before)
