"""``planned``: what runs when. Triton binds, compiles and launches for real, up to a driver that notes them down."""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="needs triton")
sys.path.insert(0, str(Path(__file__).parent))

import kernels_under_test as kernels  # noqa: E402
import pointer_kernels  # noqa: E402
from planned_machine import Machine, Tensor, gemm_arguments, running  # noqa: E402
from triton import knobs  # noqa: E402
from triton.runtime import _allocation  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from warpplan.kernels import PlanWarning, planned, planned_inductor  # noqa: E402
from warpplan.kernels.compiler.exceptions import CannotPlan  # noqa: E402
from warpplan.kernels.compiler.launching import decide, dispatch, trial  # noqa: E402
from warpplan.kernels.compiler.launching import packed as packing  # noqa: E402
from warpplan.kernels.compiler.launching import planned as planned_module  # noqa: E402
from warpplan.kernels.compiler.strategy.blackwell import BlackwellStrategy  # noqa: E402
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy  # noqa: E402
from warpplan.kernels.compiler.strategy.recorded import strategy_from_json  # noqa: E402
from warpplan.kernels.compiler.strategy.stage_hook import compile_with  # noqa: E402
from warpplan.kernels.isolate import IsolatedResult, run_isolated  # noqa: E402
from warpplan.kernels.warn_once import forget_warnings  # noqa: E402
from warpplan.planner.errors import InvalidInput  # noqa: E402
from warpplan.planner.values import codec  # noqa: E402
from warpplan.profiler.embedded import embedded  # noqa: E402

SCHEME = HopperStrategy(2, (3,))
pytestmark = pytest.mark.matrix
UNPLANNED, PLANNED = 4, 12
"""Warps of the GEMM as it is, and of its two consumers and a producer."""

Item = dict[str, Any]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Triton's cache, shared by the tests of this module: each kernel compiles once."""
    return tmp_path_factory.mktemp("triton")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path) -> Iterator[Machine]:
    monkeypatch.setattr(decide, "default_folder", lambda: tmp_path / "decisions")
    monkeypatch.setattr(planned_module, "_tables", {})
    monkeypatch.setattr(decide, "gpu", lambda number: ("NVIDIA H200", 90))
    monkeypatch.setattr(decide, "describe", lambda *a: {"arguments": [], "storages": []})
    forget_warnings()
    with running(cache) as machine:
        yield machine


@pytest.fixture
def fresh() -> Callable[[JITFunction], JITFunction]:
    """A kernel that this process has not compiled yet."""
    return lambda kernel: JITFunction(kernel.fn)


class Children:
    """Stands for child processes: compiles in this one, and says of each scheme what ``outcomes`` says of it, in order:
    the times of a kernel as it is over a planned one, or the reason of a failure, or the end of the child."""

    def __init__(self, *outcomes: float | str | IsolatedResult) -> None:
        self.outcomes, self.requests = list(outcomes), []
        self.default: list[Item] = [{"consumers": 2, "depths": [d], "warps": 4, "in_flight": 1} for d in (3, 2)]

    def __call__(self, target: str, args: list[Any], **limits: float) -> IsolatedResult:
        (request,) = args
        self.requests.append(request)
        schemes = request["schemes"] or self.default
        items: list[Item] = [{"step": "plan", "schemes": schemes}]
        for scheme in schemes:
            named = {"scheme": scheme}
            items.append({**named, "step": "compile"})
            outcome = self.outcomes.pop(0) if request["launch"] else None
            if isinstance(outcome, IsolatedResult):
                return IsolatedResult(outcome.status, None, outcome.reason, 1.0, tuple(items))
            kernel = request["kernel"]
            parsed = strategy_from_json(scheme, "a test")
            files = packing.files_of(
                compile_with(packing.source(kernel), packing.target(kernel), packing.options(kernel), parsed)
            )
            items.append({**named, "step": "run", "hash": files.hash, "files": [list(f) for f in files.files]})
            if isinstance(outcome, str):
                items.append({**named, "step": "failed", "reason": outcome})
            elif outcome is not None:
                items.append({**named, "step": "done", "planned_us": 10 / outcome, "unplanned_us": 10.0})
        return IsolatedResult("ok", None, "", 1.0, tuple(items))


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Children]:
    def install(*outcomes: Any) -> Children:
        stand_in = Children(*outcomes)
        monkeypatch.setattr(decide, "run_isolated", stand_in)
        return stand_in

    return install


@pytest.fixture
def no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> IsolatedResult:
        raise AssertionError("a child was started")

    monkeypatch.setattr(decide, "run_isolated", refuse)


def gemm(kernel: Any = kernels.gemm, m: int = 256, **options: Any) -> Any:
    return kernel[(m // 128, 2)](*gemm_arguments(m), **options)


def thrice(scope: planned, call: Callable[[], Any]) -> None:
    for _ in range(3):
        with scope:
            call()


HANG = IsolatedResult("timeout", None, "no answer for 60 s: killed", 60.0)
CRASH = IsolatedResult("crash", None, "killed by SIGABRT", 1.0)


def test_nothing_is_patched_outside() -> None:
    before = JITFunction.run
    outer, inner = planned(), planned()
    with outer:
        assert JITFunction.run is not before
        with inner, outer:
            assert planned_module._active == [outer, inner, outer]
        assert planned_module._active == [outer]
        assert JITFunction.run is not before
    assert JITFunction.run is before
    tuned = Autotuner._bench
    with outer, contextlib.suppress(KeyError):
        raise KeyError
    assert (JITFunction.run, Autotuner._bench) == (before, tuned)


def test_what_somebody_else_puts_over_it_stays_and_is_covered_again(machine: Machine, fresh: Any) -> None:
    before, seen = JITFunction.run, []
    with planned(SCHEME, measure=False, background=False):
        inside = JITFunction.run

        def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(self)
            return inside(self, *args, **kwargs)

        JITFunction.run = theirs
    try:
        assert JITFunction.run is theirs
        kernel = fresh(kernels.gemm)
        gemm(kernel)
        with planned(SCHEME, measure=False, background=False):
            gemm(kernel)
            assert JITFunction.run is not theirs
        assert JITFunction.run is theirs
        assert seen == [kernel, kernel]
    finally:
        JITFunction.run = before
    with planned():
        assert JITFunction.run is not before
    assert JITFunction.run is before


def test_entering_and_leaving_costs_little_more_than_an_empty_scope() -> None:
    """Each in turn, for a machine has other things to do; the least of many counts."""

    class Empty:
        def __enter__(self) -> None: ...
        def __exit__(self, *exception: object) -> None: ...

    def once(make: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        for _ in range(2000):
            with make():
                pass
        return time.perf_counter() - begin

    with planned():
        pass
    empty, ours = (min(times) for times in zip(*((once(Empty), once(planned)) for _ in range(15)), strict=True))
    assert ours < 8 * empty


def test_threads_enter_and_leave_in_any_order() -> None:
    before = JITFunction.run
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        for _ in range(50):
            with planned():
                barrier.wait(60)
                assert JITFunction.run is not before

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not planned_module._active
    assert JITFunction.run is before


def test_no_thread_that_leaves_takes_the_plans_of_one_that_enters() -> None:
    before, interval = JITFunction.run, sys.getswitchinterval()
    missing: list[int] = []

    def work() -> None:
        scope = planned()
        for i in range(3000):
            with scope:
                if JITFunction.run is before:
                    missing.append(i)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    finally:
        sys.setswitchinterval(interval)
    assert not missing
    assert not planned_module._active
    assert not planned_module._leaving
    assert JITFunction.run is before


def test_a_real_child_compiles_the_plan(
    machine: Machine, tmp_path: Path, fresh: Any, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = fresh(kernels.gemm)
    monkeypatch.setattr(decide.Decider, "_request", _given_scheme(decide.Decider._request))
    with planned(tmp_path, measure=False, background=False):
        gemm(kernel)
        gemm(kernel)
        again = gemm(kernel, 384)
    gemm(kernel)
    assert machine.warps == [UNPLANNED, PLANNED, PLANNED, UNPLANNED]
    assert again.metadata.num_warps == PLANNED
    assert not [w for w in recwarn if issubclass(w.category, PlanWarning)]

    # A later process finds the decision and the compiled kernel, and starts nothing.
    def refuse(*args: Any, **kwargs: Any) -> IsolatedResult:
        raise AssertionError("a child was started")

    monkeypatch.setattr(decide, "run_isolated", refuse)
    with planned(tmp_path, measure=False, background=False):
        gemm(kernel)
        gemm(kernel)
    assert machine.warps[-1] == PLANNED


@pytest.fixture
def blackwell(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose GPU Triton takes for a B200."""
    monkeypatch.setattr(decide, "gpu", lambda number: ("NVIDIA B200", 100))
    machine.capability = 100
    return machine


def test_on_blackwell_a_real_child_plans_and_compiles(
    blackwell: Machine, tmp_path: Path, fresh: Any, recwarn: pytest.WarningsRecorder
) -> None:
    """Ranked by the planner, annotated, compiled, loaded: no such GPU was there to run it on."""
    kernel = fresh(kernels.gemm)
    with planned(tmp_path, measure=False, profile=embedded("NVIDIA H200"), background=False):
        gemm(kernel)
        kept = gemm(kernel)
    assert not [w for w in recwarn if issubclass(w.category, PlanWarning)]
    assert blackwell.warps[0] == UNPLANNED < blackwell.warps[1], "workers beside the kernel's own warps"
    assert "ttg.warp_specialize(" in kept.asm["ttgir"]
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["scheme"]["workers"] in ("apart", "together", "found")


def test_on_blackwell_no_prediction_is_trusted_without_a_profile(
    blackwell: Machine, tmp_path: Path, fresh: Any, no_children: None
) -> None:
    kernel = fresh(kernels.gemm)
    with pytest.warns(PlanWarning, match="no profile of such a GPU is recorded") as caught:
        thrice(planned(tmp_path, measure=False, background=False), lambda: gemm(kernel))
    assert len(caught) == 1
    assert blackwell.warps == [UNPLANNED] * 3


def test_on_blackwell_plans_are_tried_and_the_faster_one_is_kept(
    blackwell: Machine, tmp_path: Path, fresh: Any, children: Any
) -> None:
    given = [{"workers": who, "depth": 2, "stages": [], "double": 1} for who in ("apart", "together")]
    tried = children(1.2, HANG, 1.5)
    tried.default = given
    kernel = fresh(kernels.gemm)
    with planned(tmp_path, background=False):
        gemm(kernel)
        gemm(kernel)
    assert [len(request["schemes"] or given) for request in tried.requests] == [2]
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["scheme"] == given[0], "the other one hangs"
    assert blackwell.warps[1] > UNPLANNED


@pytest.mark.parametrize(
    ("scheme", "capability"), [(SCHEME, 100), (BlackwellStrategy(), 90)], ids=["hopper's", "blackwell's"]
)
def test_a_plan_for_another_gpu_leaves_the_kernel(
    machine: Machine, fresh: Any, scheme: Any, capability: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {90: "NVIDIA H200", 100: "NVIDIA B200"}[capability]
    monkeypatch.setattr(decide, "gpu", lambda number: (name, capability))
    machine.capability = capability
    kernel = fresh(kernels.gemm)
    with pytest.warns(PlanWarning, match=f"sm_{capability}") as caught:
        thrice(planned(scheme, measure=False, background=False), lambda: gemm(kernel))
    assert len(caught) == 1
    assert machine.warps == [UNPLANNED] * 3


def test_other_gpus_are_left_alone(machine: Machine, fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "gpu", lambda number: ("NVIDIA GeForce RTX 5090", 120))
    kernel = fresh(kernels.gemm)
    with pytest.warns(PlanWarning, match="plans are for GPUs of sm_90, sm_100 and sm_103: this one is sm_120"):
        thrice(planned(background=False), lambda: gemm(kernel))
    assert machine.warps == [UNPLANNED] * 3


def _given_scheme(request: Any) -> Any:
    def with_scheme(self: Any, packed: Any, device: str, launch: Any, schemes: Any) -> Any:
        return request(self, packed, device, launch, schemes or [SCHEME])

    return with_scheme


def test_the_faster_plan_is_kept(machine: Machine, tmp_path: Path, fresh: Any, children: Any) -> None:
    tried = children(1.2, 1.5)
    with planned(tmp_path, background=False):
        for _ in range(3):
            gemm(fresh(kernels.gemm))  # another object of the same source: decided once
    assert len(tried.requests) == 1
    assert machine.warps == [UNPLANNED] * 3
    kernel = fresh(kernels.gemm)
    with planned(tmp_path, background=False):
        gemm(kernel)
        kept = gemm(kernel)
    assert machine.warps[-1] == PLANNED
    (file,) = tmp_path.glob("*.json")
    assert '"planned_us": 6.6' in file.read_text()
    assert kept.metadata.shared < 150_000, "two slots, not three"


@pytest.mark.parametrize("outcomes", [(1.005, 0.8), ("garbage", 1.0)])
def test_what_is_not_faster_is_not_kept(
    machine: Machine, tmp_path: Path, fresh: Any, children: Any, outcomes: Any, recwarn: pytest.WarningsRecorder
) -> None:
    tried = children(*outcomes)
    kernel = fresh(kernels.gemm)
    for _ in range(2):
        with planned(tmp_path, background=False):
            gemm(kernel)
            gemm(kernel)
    assert machine.warps == [UNPLANNED] * 4
    assert len(tried.requests) == 1, "remembered"
    assert not [w for w in recwarn if issubclass(w.category, PlanWarning)]


def test_a_scheme_that_hangs_does_not_take_the_next_with_it(
    machine: Machine, tmp_path: Path, fresh: Any, children: Any
) -> None:
    tried = children(HANG, 1.3)
    kernel = fresh(kernels.gemm)
    with planned(tmp_path, background=False):
        gemm(kernel)
        gemm(kernel)
    assert machine.warps == [UNPLANNED, PLANNED]
    assert [request["schemes"] and request["schemes"][0]["depths"] for request in tried.requests] == [None, [2]]


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ((HANG, HANG), "no answer for 60 s"),
        ((CRASH, "the first planned launch writes out of bounds"), "SIGABRT"),
        (("OutOfResources: out of resource: shared memory", CRASH), "shared memory"),
    ],
)
def test_failures_leave_the_kernel_with_one_warning(
    machine: Machine, tmp_path: Path, fresh: Any, children: Any, outcomes: Any, said: str
) -> None:
    children(*outcomes)
    kernel = fresh(kernels.gemm)
    with pytest.warns(PlanWarning, match=said) as caught:
        thrice(planned(tmp_path, background=False), lambda: gemm(kernel))
    assert len(caught) == 1
    assert "kernels_under_test.gemm" in str(caught[0].message)
    assert machine.warps == [UNPLANNED] * 3


@pytest.mark.parametrize(
    ("code", "said", "limit_s"),
    [
        ("import os; os.abort()", "'compile': killed by SIGABRT", 120.0),
        ("import time; time.sleep(600)", "'compile': no answer for 3 s", 3.0),
        ("raise SystemExit(3)", "'compile': exit status 3", 120.0),
        ("raise RuntimeError('CUDA error: an illegal memory access')", "'compile': RuntimeError: CUDA error", 120.0),
    ],
)
def test_real_children_that_fail(
    machine: Machine, tmp_path: Path, fresh: Any, monkeypatch: pytest.MonkeyPatch, code: str, said: str, limit_s: float
) -> None:
    (tmp_path / "failing_trial.py").write_text(
        "def trial(request):\n"
        "    yield {'step': 'plan', 'schemes': request['schemes']}\n"
        "    yield {'scheme': request['schemes'][0], 'step': 'compile'}\n"
        f"    {code}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(decide, "CHILD", "failing_trial:trial")
    kernel = fresh(kernels.gemm)
    with pytest.warns(PlanWarning, match=said) as caught:
        thrice(planned(SCHEME, time_limit_s=limit_s, background=False), lambda: gemm(kernel))
    assert len(caught) == 1
    assert machine.warps == [UNPLANNED] * 3


def test_failures_of_the_machine_are_not_remembered(
    machine: Machine, tmp_path: Path, fresh: Any, children: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, again = fresh(kernels.gemm), fresh(kernels.gemm)
    no_gpu = IsolatedResult("error", None, "MeasurementFailed: copies of the arguments need 9 bytes", 1.0)
    monkeypatch.setattr(decide, "run_isolated", lambda *a, **k: no_gpu)
    with pytest.warns(PlanWarning, match="no plan could be tried.*need 9 bytes"):
        thrice(planned(tmp_path, background=False), lambda: gemm(kernel))
    assert not list(tmp_path.glob("*.json"))
    children(1.5, 1.4)
    thrice(planned(tmp_path, background=False), lambda: gemm(again))
    assert machine.warps == [UNPLANNED] * 4 + [PLANNED] * 2


def test_a_kernel_that_cannot_be_planned_says_so(
    machine: Machine, tmp_path: Path, fresh: Any, no_children: None
) -> None:
    kernel = fresh(kernels.softmax)
    arguments = (Tensor(4, 512), Tensor(4, 512), 512)
    with pytest.warns(PlanWarning, match="softmax runs as it is, not planned: has no loads") as caught:
        thrice(planned(SCHEME, measure=False, background=False), lambda: kernel[(4,)](*arguments, BLOCK=512))
    assert len(caught) == 1
    assert len(machine.launches) == 3


def test_each_size_class_is_decided(machine: Machine, tmp_path: Path, fresh: Any, children: Any) -> None:
    tried = children(1.5, 1.4, 0.5, 0.4)
    kernel = fresh(kernels.gemm)
    with planned(tmp_path, background=False):
        for m in (256, 384, 256, 1024, 1152, 256):
            gemm(kernel, m)
    assert len(tried.requests) == 2
    assert machine.warps == [UNPLANNED, PLANNED, PLANNED, UNPLANNED, UNPLANNED, PLANNED]
    assert [grid for grid, _, _ in machine.launches] == [(m // 128, 2, 1) for m in (256, 384, 256, 1024, 1152, 256)]


@pytest.mark.parametrize("decorated", [False, True])
def test_under_one_plan_autotuners_tune_the_kernel_as_it_is_and_the_winner_is_planned(
    machine: Machine, fresh: Any, children: Any, decorated: bool
) -> None:
    tried = children(1.5)
    warps: list[int] = []

    def bench(call: Callable[[], None], quantiles: Any) -> list[float]:
        call()
        warps.append(machine.warps[-1])
        return [float(machine.warps[-1])] * 3

    configs = [triton.Config({"BM": 128, "BN": 128, "BK": 64}, num_warps=n) for n in (8, 4)]
    tuned = triton.autotune(configs, key=["M"], do_bench=bench)(fresh(kernels.gemm))
    under = planned(SCHEME, background=False)
    tuned, scope = (under(tuned), contextlib.nullcontext()) if decorated else (tuned, under)
    with scope:
        for _ in range(2):
            tuned[lambda meta: (2, 256 // meta["BN"])](*gemm_arguments()[:6])
    assert sorted(warps) == [4, 8]
    assert len(tried.requests) == 1
    assert machine.warps[2:] == [UNPLANNED, PLANNED]


def test_a_new_scope_each_step_decides_once(machine: Machine, tmp_path: Path, fresh: Any, children: Any) -> None:
    tried = children(1.5, 1.4)
    kernel = fresh(kernels.gemm)
    for _ in range(3):
        with planned(tmp_path, background=False):
            gemm(kernel)
    for file in tmp_path.glob("*.json"):
        file.unlink()
    with planned(tmp_path, background=False):
        gemm(kernel)
    assert len(tried.requests) == 1
    assert machine.warps == [UNPLANNED, PLANNED, PLANNED, PLANNED]


def test_heuristics_are_planned(machine: Machine, tmp_path: Path, fresh: Any, children: Any) -> None:
    children(1.5, 1.4)
    kernel = triton.heuristics({"BK": lambda args: 64})(fresh(kernels.gemm))
    with planned(tmp_path, background=False):
        for _ in range(2):
            kernel[(2, 2)](*gemm_arguments()[:6], BM=128, BN=128)
    assert machine.warps == [UNPLANNED, PLANNED]


def test_nothing_is_tried_while_a_graph_is_captured(
    machine: Machine, tmp_path: Path, fresh: Any, children: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = children(1.5, 1.4)
    kernel = fresh(kernels.gemm)
    with planned(tmp_path, background=False):
        with monkeypatch.context() as capturing:
            capturing.setattr(dispatch, "is_capturing", lambda: True)
            gemm(kernel)
        assert not tried.requests
        gemm(kernel)
        monkeypatch.setattr(dispatch, "is_capturing", lambda: True)
        gemm(kernel)
    assert machine.warps == [UNPLANNED, UNPLANNED, PLANNED], "what is known is captured"


def test_hooks_of_launches_are_honoured(machine: Machine, tmp_path: Path, fresh: Any, children: Any) -> None:
    children(1.5, 1.4)
    kernel = fresh(kernels.gemm)
    seen: list[Any] = []
    grids: list[int] = []
    kernel.add_pre_run_hook(lambda *args, **kwargs: seen.append("before"))

    def entered(metadata: Any) -> None:
        seen.append(metadata.get()["name"])

    def grid(meta: dict[str, Any]) -> tuple[int, int]:
        grids.append(meta["M"])
        return 2, 2

    with planned(tmp_path, background=False):
        gemm(kernel)
        seen.clear()
        knobs.runtime.launch_enter_hook.add(entered)
        try:
            kernel[grid](*gemm_arguments())
        finally:
            knobs.runtime.launch_enter_hook.remove(entered)
    assert machine.warps == [UNPLANNED, PLANNED]
    assert seen == ["before", "gemm"]
    assert grids == [256], "once"


def test_a_stage_hook_of_the_user_is_respected(machine: Machine, fresh: Any, no_children: None, cache: Path) -> None:
    called: list[int] = []

    def theirs(*arguments: Any) -> Any:
        called.append(len(arguments))
        return ("theirs", "theirs")

    kernel = fresh(kernels.gemm)
    with knobs.runtime.scope():
        knobs.runtime.add_stages_inspection_hook = theirs
        with pytest.warns(PlanWarning, match="hook of your own"), planned(SCHEME, background=False):
            gemm(kernel, num_stages=2)
    assert called
    assert machine.warps == [UNPLANNED]


def test_warmup_compiles_what_triton_compiles(machine: Machine, fresh: Any, no_children: None) -> None:
    kernel = fresh(kernels.gemm)
    with planned(SCHEME, background=False):
        compiled = kernel.warmup(*gemm_arguments(), grid=(2, 2))
    assert compiled.metadata.num_warps == UNPLANNED
    assert not machine.launches


def test_decorated_kernels_alone_are_planned(machine: Machine, tmp_path: Path, fresh: Any, children: Any) -> None:
    children(1.5, 1.4)
    kernel, other = fresh(kernels.gemm), fresh(kernels.gemm)
    before = JITFunction.run
    assert planned(tmp_path, background=False)(kernel) is kernel
    assert JITFunction.run is before
    for _ in range(2):
        gemm(kernel)
        gemm(other)
    assert machine.warps == [UNPLANNED, UNPLANNED, PLANNED, UNPLANNED]
    assert kernel.warmup(*gemm_arguments(), grid=(2, 2)).metadata.num_warps == UNPLANNED


def test_decorated_functions_are_planned_inside(machine: Machine, tmp_path: Path, fresh: Any, children: Any) -> None:
    children(1.5, 1.4)
    kernel = fresh(kernels.gemm)

    @planned(tmp_path, background=False)
    def step(m: int) -> int:
        """One step."""
        gemm(kernel, m)
        return m

    assert (step(256), step(256), step.__doc__) == (256, 256, "One step.")
    gemm(kernel)
    assert machine.warps == [UNPLANNED, PLANNED, UNPLANNED]


def test_an_unknown_gpu(machine: Machine, fresh: Any, no_children: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "gpu", lambda number: ("NVIDIA A100", 80))
    with pytest.warns(PlanWarning, match="this one is sm_80"), planned(SCHEME, background=False):
        gemm(fresh(kernels.gemm))
    assert machine.warps == [UNPLANNED]


def test_a_kernel_that_does_not_compile_raises_what_triton_raises(machine: Machine, fresh: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlanWarning)
        with pytest.raises(triton.CompilationError), planned(SCHEME, measure=False, background=False):
            fresh(kernels.softmax)[(1,)](Tensor(4, 512), Tensor(4, 512), 512, BLOCK=500)
    assert not planned_module._active


def test_what_a_child_streams(machine: Machine, tmp_path: Path, fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real compiles; of the GPU's part, first a right kernel, then a wrong one, then the context lost."""
    outcomes: list[Exception | None] = [None, CannotPlan("computes something else"), RuntimeError("CUDA error: gone")]

    class Bench:
        def __init__(self, kernel: Any, launch: Any, *, beside: bool) -> None:
            assert not beside
            assert launch == {"arguments": "as described"}

        def check(self, planned: Any) -> None:
            assert planned.metadata.num_warps > UNPLANNED
            if (outcome := outcomes.pop(0)) is not None:
                raise outcome

        def times(self, planned: Any) -> dict[str, float]:
            return {"planned_us": 1.0, "unplanned_us": 2.0}

    monkeypatch.setattr(trial, "Bench", Bench)
    schemes = [HopperStrategy(1, (2,)), SCHEME, HopperStrategy(1, (3,))]
    request = {
        "kernel": json.loads(json.dumps(packing.pack(gemm(fresh(kernels.gemm))))),
        "launch": {"arguments": "as described"},
        "schemes": [scheme.to_json() for scheme in schemes],
        "cache": str(tmp_path),
    }
    items: list[Item] = []
    with pytest.raises(RuntimeError, match="gone"):
        collections.deque(map(items.append, trial.trial(request)), maxlen=0)
    steps = ["plan", "compile", "run", "done", "compile", "run", "failed", "compile", "run"]
    assert [item["step"] for item in items] == steps
    assert items[3]["unplanned_us"] == 2.0
    assert items[6]["reason"] == "computes something else"
    assert json.loads(json.dumps(items[1:4]))[0]["scheme"]["depths"] == [2]
    assert all(Path(path).is_relative_to(tmp_path) for _, path in items[2]["files"])


def test_without_measuring_the_best_plan_that_can_be_lowered_is_taken(
    machine: Machine, tmp_path: Path, fresh: Any
) -> None:
    a, b, c_ptr, *rest = gemm_arguments()
    r = TensorDescriptor(Tensor(4, 64 * 128), [4, 64, 128], [64 * 128, 128, 1], [2, 64, 128])
    request = {
        "kernel": packing.pack(fresh(kernels.one_consumer)[(1,)](a, b, r, c_ptr, *rest, num_warps=8)),
        "launch": None,
        "schemes": None,
        "device": "NVIDIA H200",
        "profile": codec.to_json(embedded("NVIDIA H200")),
        "cache": str(tmp_path),
        "most": 5,
    }
    (_, *steps) = [(item["step"], item.get("scheme", {}).get("consumers")) for item in trial.trial(request)]
    assert steps[:2] == [("compile", 2), ("failed", 2)]
    assert steps[-2:] == [("compile", 1), ("run", 1)]
    assert [step for step, _ in steps].count("run") == 1


def test_the_child_needs_none_of_the_users_python(machine: Machine, fresh: Any) -> None:
    """Compiled from the text that Triton kept, in a process that never sees the source: the same code."""
    kernel = gemm(fresh(kernels.gemm))
    packed = packing.pack(kernel)
    with knobs.compilation.scope():
        knobs.compilation.always_compile = True
        again = triton.compile(packing.source(packed), target=packing.target(packed), options=packing.options(packed))
    assert again.asm["cubin"] == kernel.asm["cubin"]


@pytest.mark.parametrize(
    ("machine_is", "warnings_said"),
    [
        ("sys.modules['triton'] = None", 1),
        ("sys.modules['torch'] = None", 0),
        ("import triton; triton.__version__ = '3.5.1'", 1),
        ("import triton; triton.__version__ = '4.0.0'", 1),
    ],
)
def test_without_triton_or_torch_or_with_another_release(machine_is: str, warnings_said: int) -> None:
    code = (
        f"import sys, warnings; {machine_is}\n"
        "import warpplan.kernels.registry\n"
        "from warpplan.kernels import planned\n"
        "with warnings.catch_warnings(record=True) as caught, planned():\n"
        "    print(len(caught))\n"
        "with planned(): pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(warnings_said)


def test_a_kernel_decided_on_beforehand_waits_for_nothing(
    machine: Machine, tmp_path: Path, fresh: Any, children: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = children(1.5, 1.2)
    kernel, scope = fresh(kernels.gemm), planned(tmp_path, background=False)
    assert scope.warm(kernel, *gemm_arguments(), grid=(2, 2)).metadata.num_warps == PLANNED
    assert machine.warps == []
    assert JITFunction.run is type(kernel).run
    with scope:
        gemm(kernel)
        gemm(kernel)
    assert machine.warps == [PLANNED] * 2
    assert len(tried.requests) == 1
    assert scope.warm(kernel, *gemm_arguments(), grid=lambda meta: (2, 2)).metadata.num_warps == PLANNED
    assert len(tried.requests) == 1, "it is known"
    assert [name for name in vars(kernel) if name.startswith("_warpplan")] == [scope._table()._name]


def test_a_tuned_kernel_decided_on_beforehand_is_launched(
    machine: Machine, tmp_path: Path, fresh: Any, children: Any
) -> None:
    children(1.5, 1.2)
    tuned = triton.autotune([triton.Config({}, num_warps=UNPLANNED)], key=["M"])(fresh(kernels.gemm))
    scope = planned(tmp_path, background=False)
    scope.warm(tuned, *gemm_arguments(), grid=(2, 2))
    with scope:
        tuned[(2, 2)](*gemm_arguments())
    assert machine.warps == [UNPLANNED, PLANNED]


@pytest.mark.parametrize(("level", "lines"), [("", 0), ("warning", 0), ("info", 2), ("DEBUG", 3)])
def test_first_launches_are_told_where_it_is_asked_for(
    level: str, lines: int, machine: Machine, tmp_path: Path, fresh: Any, children: Any,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("WARPPLAN_LOG", level)
    log = logging.getLogger("warpplan")
    before, kept = log.level, list(log.handlers)
    children(1.5, 1.2)
    try:
        for folder in (tmp_path, f"{tmp_path}/"):  # the second one is another scope, which finds what the first kept
            with planned(folder, background=False):
                gemm(fresh(kernels.gemm))
    finally:
        log.setLevel(before)
        log.handlers[:] = kept
    told = capsys.readouterr().err.splitlines()
    assert len(told) == lines
    if lines:
        assert told[0] == "warpplan: kernels_under_test.gemm: trying up to 5 plans, its first launch waits"
        assert "2 x 4 warps, 3 slots, in flight, 1.50x as fast (10.0 -> 6.7 us) (" in told[1]


def test_another_level_of_progress_is_told_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPPLAN_LOG", "loud")
    with pytest.warns(PlanWarning, match="WARPPLAN_LOG=loud: expected one of debug, info, warning"):
        planned(SCHEME, background=False)._table()


def test_the_real_runner_is_the_isolated_one() -> None:
    assert decide.run_isolated is run_isolated


@pytest.fixture
def masked(fresh: Callable[[JITFunction], JITFunction]) -> Callable[..., Any]:
    """A product that loads through pointers, of A with ``stride`` between its rows and B, both at ``address``."""
    kernel = fresh(pointer_kernels.masked_matmul)

    def launch(m: int = 256, stride: int = 128, address: int = 4096) -> Any:
        a, b, c = Tensor(256, 128, address=address), Tensor(256, 128, address=address), Tensor(256, 256)
        return kernel[(2, 2)](a, b, c, m, 256, 128, stride, 128, 256, 128, 128, 64)

    return launch


def test_a_kernel_that_loads_through_pointers_is_planned(
    machine: Machine, children: Callable[..., Children], masked: Callable[..., Any]
) -> None:
    children(1.5)
    with planned(SCHEME, background=False):
        masked()
        masked()
    assert machine.warps == [UNPLANNED, PLANNED]


def test_memory_for_descriptors_is_there_where_the_job_sets_no_allocator(
    machine: Machine, children: Callable[..., Children], masked: Callable[..., Any]
) -> None:
    children(1.5)
    with planned(SCHEME, background=False):
        masked()
        masked()
        triton.set_allocator(mine := lambda size, alignment, stream: None)
        try:
            masked()
        finally:
            triton.set_allocator(nothing := machine.allocators[0])
    assert isinstance(nothing, _allocation.NullAllocator)
    assert not isinstance(machine.allocators[1], _allocation.NullAllocator)
    assert machine.allocators[2] is mine
    assert isinstance(_allocation._allocator.get(), _allocation.NullAllocator)


@pytest.mark.parametrize("arguments", [{"stride": 0}, {"stride": -128}, {"m": -1}])
def test_a_size_or_stride_that_no_descriptor_has_leaves_a_launch_as_it_is(
    machine: Machine, children: Callable[..., Children], masked: Callable[..., Any], arguments: dict[str, int]
) -> None:
    children(1.5, 1.5)
    with planned(SCHEME, background=False):
        masked()
        with pytest.warns(PlanWarning, match=r"argument '(stride_am|M)' is (0|-1|-128)"):
            masked(**arguments)
        masked(**arguments)
        masked()
    assert machine.warps == [UNPLANNED, UNPLANNED, UNPLANNED, PLANNED]


def test_views_that_are_not_aligned_run_as_they_are(machine: Machine, masked: Callable[..., Any]) -> None:
    with planned(SCHEME, measure=False, background=False):
        with pytest.warns(PlanWarning, match=r"base is not known to be a multiple of 16 bytes"):
            masked(address=4098)
        masked(address=4098)
    assert machine.warps == [UNPLANNED, UNPLANNED]


def test_a_decorator_without_its_parentheses_is_told_so() -> None:
    def step() -> None:
        raise AssertionError

    for decorator in (planned, planned_inductor):
        with pytest.raises(InvalidInput, match=r"plans is step, a function: write @planned\(\)"):
            decorator(step)  # type: ignore[arg-type]
