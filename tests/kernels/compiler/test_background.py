"""Plans tried beside a running job: real threads, real compiles; launches that are only noted down, and take as long as
is said here."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="needs triton")
sys.path.insert(0, str(Path(__file__).parent))

import kernels_under_test as kernels  # noqa: E402
import pointer_kernels  # noqa: E402
from planned_machine import Machine, Tensor, gemm_arguments, running  # noqa: E402
from test_planned import PLANNED, SCHEME, UNPLANNED, Children  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from warpplan.kernels import PlanWarning, planned  # noqa: E402
from warpplan.kernels.compiler.background import background_trials  # noqa: E402
from warpplan.kernels.compiler.background.background_trials import BackgroundTrials  # noqa: E402
from warpplan.kernels.compiler.background.watched_kernel import WatchedKernel  # noqa: E402
from warpplan.kernels.compiler.launching import background_decider, decide, dispatch  # noqa: E402
from warpplan.kernels.compiler.launching import planned as planned_module  # noqa: E402
from warpplan.kernels.compiler.launching.decisions import Decision, Folder, from_json, parse  # noqa: E402
from warpplan.kernels.isolate import IsolatedResult  # noqa: E402
from warpplan.kernels.warn_once import forget_warnings  # noqa: E402
from warpplan.planner.errors import InvalidInput  # noqa: E402

WAIT_S = 60.0


class Times:
    """What launches take by the warps of the kernel that ran, as the events around them tell; ``fails`` makes the next
    timer raise."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.us, self.fails = machine, {UNPLANNED: 10.0, PLANNED: 5.0}, False

    def __call__(self) -> Any:
        if self.fails:
            raise RuntimeError("no events")
        took: list[float] = []
        return SimpleNamespace(
            begin=lambda: None,
            end=lambda: took.append(self.us[self.machine.warps[-1]]),
            elapsed_us=lambda: took[0] if took else None,
        )


_one_at_a_time = threading.RLock()
"""Held by launches and by stand-ins of children: those compile in this process, under a hook that is all threads'."""


class Beside(Children):
    def __call__(self, target: str, args: list[Any], **limits: Any) -> IsolatedResult:
        with _one_at_a_time:
            if self.outcomes and isinstance(self.outcomes[0], IsolatedResult) and self.outcomes[0].status == "error":
                return self.outcomes.pop(0)
            return super().__call__(target, args, **limits)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path) -> Iterator[Machine]:
    monkeypatch.setattr(decide, "default_folder", lambda: tmp_path / "decisions")
    monkeypatch.setattr(planned_module, "_tables", {})
    monkeypatch.setattr(decide, "gpu", lambda number: ("NVIDIA H200", 90))
    monkeypatch.setattr(background_decider, "describe", lambda *a: {"arguments": [], "storages": []})
    monkeypatch.setattr(background_trials, "POLL_S", 0.01)
    forget_warnings()
    with running(cache) as machine:
        try:
            yield machine
        finally:
            for table, *_ in planned_module._tables.values():
                assert table._beside is not None
                table._beside.stop()


@pytest.fixture
def times(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times(machine)
    monkeypatch.setattr(background_trials, "CudaTimer", times)
    return times


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Children]:
    def install(*outcomes: Any) -> Children:
        stand_in = Beside(*outcomes)
        monkeypatch.setattr(background_decider, "run_isolated", stand_in)
        monkeypatch.setattr(decide, "run_isolated", stand_in)
        return stand_in

    return install


@pytest.fixture
def gemm() -> Callable[..., Any]:
    """A launch of a kernel that this process has not compiled yet."""
    kernel = JITFunction(kernels.gemm.fn)

    def launch(m: int = 256) -> Any:
        with _one_at_a_time:
            return kernel[(m // 128, 2)](*gemm_arguments(m))

    launch.kernel = kernel  # type: ignore[attr-defined]
    return launch


def trials(scope: planned) -> BackgroundTrials:
    beside = scope._table()._beside
    assert beside is not None
    return beside


def until(done: Callable[[], bool], launch: Callable[[], Any] | None = None) -> None:
    """Wait, launching meanwhile, until ``done``."""
    give_up = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < give_up, "it does not come to an end"
        if launch is not None:
            launch()
        time.sleep(0.005)


def settled(scope: planned, launch: Callable[[], Any]) -> None:
    """Launch until nothing is left to decide."""
    launch()
    beside = trials(scope)

    def done() -> bool:
        left = beside._open or beside._work or beside._pooled or beside._thread is not None
        return not left and not isinstance(launch(), WatchedKernel)

    until(done, launch)


def kept(folder: Path) -> list[Decision]:
    return [from_json(parse(file.read_bytes(), file), file) for file in sorted(folder.glob("*.json"))]


def test_launches_go_on_while_a_plan_is_tried_and_the_faster_one_is_settled_on(
    machine: Machine, times: Times, tmp_path: Path, gemm: Any, children: Any
) -> None:
    tried = children(1.2, 1.1)
    scope = planned(tmp_path)
    with scope:
        settled(scope, gemm)
        gemm()
    assert machine.warps[0] == UNPLANNED
    assert machine.warps[-1] == PLANNED
    assert set(machine.warps) == {UNPLANNED, PLANNED}, "both ran while they were compared"
    (request,) = tried.requests
    assert request["beside"]
    (decision,) = kept(tmp_path)
    assert (decision.measured, decision.provisional) == (True, False)
    assert (decision.unplanned_us, decision.planned_us) == (10.0, 5.0), "by the job's own launches"
    known = dict(next(v for k, v in vars(gemm.kernel).items() if k.startswith("_warpplan"))[0])
    assert [type(kernel) for kernel in known.values()] != [WatchedKernel], "nothing is added to a launch any more"


def test_a_plan_that_the_jobs_launches_show_to_be_slower_is_dropped(
    machine: Machine, times: Times, tmp_path: Path, gemm: Any, children: Any
) -> None:
    children(1.5, 1.1)
    times.us[PLANNED] = 12.0
    scope = planned(tmp_path)
    with scope:
        settled(scope, gemm)
        gemm()
    assert machine.warps[-1] == UNPLANNED
    (decision,) = kept(tmp_path)
    assert (decision.scheme, decision.reason) == (None, "as fast without a plan")


def test_the_launch_path_starts_no_child_and_reads_no_file(
    machine: Machine, times: Times, tmp_path: Path, gemm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()

    def note(*args: Any, **kwargs: Any) -> Any:
        threads.add(threading.current_thread().name)
        return None

    monkeypatch.setattr(Folder, "load", note)
    monkeypatch.setattr(Folder, "family", lambda *a: note() or [])
    monkeypatch.setattr(Folder, "settle", lambda self, decision: note() or decision)
    tried = Beside(1.5, 1.4)
    monkeypatch.setattr(background_decider, "run_isolated", lambda *a, **k: note() or tried(*a, **k))
    scope = planned(tmp_path)
    with scope:
        until(lambda: bool(tried.requests), gemm)
    assert threads == {"warpplan-trials"}


def test_a_later_process_begins_with_what_was_decided(
    machine: Machine, times: Times, tmp_path: Path, gemm: Any, children: Any
) -> None:
    tried = children(1.5, 1.1)
    first, second = planned(tmp_path), planned(f"{tmp_path}/")
    with first:
        settled(first, gemm)
    before = len(machine.warps)
    with second:
        settled(second, gemm)
        gemm()
    assert machine.warps[before] == UNPLANNED, "not waited for"
    assert machine.warps[-1] == PLANNED
    assert len(tried.requests) == 1


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), True, "half", None])
def test_a_share_of_gpu_time_that_is_none(share: Any) -> None:
    with pytest.raises(InvalidInput, match=r"gpu_share .*expected a share of the job's time, from 0 to 1"):
        planned(gpu_share=share)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), True, "long", None])
def test_a_time_limit_that_no_step_can_have(seconds: Any) -> None:
    with pytest.raises(InvalidInput, match=r"time_limit_s .*expected seconds, more than 0 and at most 86400"):
        planned(time_limit_s=seconds)


@pytest.mark.parametrize("plans", [5, b"folder", ["a"], 1.5, object()])
def test_what_says_nothing_of_where_plans_come_from(plans: Any) -> None:
    with pytest.raises(InvalidInput, match=r"expected a folder, a \.json file, http://host:port, a strategy"):
        planned(plans)


def test_without_any_gpu_time_nothing_is_tried(machine: Machine, times: Times, gemm: Any, children: Any) -> None:
    tried = children()
    scope = planned(gpu_share=0)
    with scope:
        until(lambda: bool(trials(scope)._open), gemm)
        for _ in range(20):
            gemm()
            time.sleep(0.01)
    assert not tried.requests
    assert set(machine.warps) == {UNPLANNED}


def test_nothing_starts_or_switches_inside_a_capture(
    machine: Machine, times: Times, tmp_path: Path, gemm: Any, children: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = children(1.5, 1.4)
    scope = planned(tmp_path)
    capturing = False
    monkeypatch.setattr(dispatch, "is_capturing", lambda: capturing)
    with scope:
        gemm()  # once: not worth a trial yet
        capturing = True
        for _ in range(3):
            gemm()
        until(lambda: trials(scope)._armed is not None)
        for _ in range(5):
            gemm()
        assert trials(scope)._armed is not None, "no launch of a capture is handed over"
        assert not tried.requests
        capturing = False
        until(lambda: bool(trials(scope)._pooled), gemm)
        capturing = True
        before = len(machine.warps)
        for _ in range(6):
            gemm()
        assert len(set(machine.warps[before:])) == 1, "nor compared"
        capturing = False
        settled(scope, gemm)
        capturing = True
        gemm()
    assert machine.warps[-1] == PLANNED, "what is settled is captured"


def test_failures_of_ours_do_not_reach_the_job(
    machine: Machine, times: Times, tmp_path: Path, gemm: Any, children: Any
) -> None:
    children(1.5, 1.4)
    times.fails = True
    scope = planned(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with scope:
            for _ in range(10):
                gemm()
            until(lambda: trials(scope)._thread is None)
    assert machine.warps == [UNPLANNED] * 10
    assert ["no events" in str(w.message) for w in caught if w.category is PlanWarning] == [True]


@pytest.mark.parametrize("where", ["snapshot", "known", "find", "try_plans", "expected_gain"])
def test_a_runner_that_fails_leaves_the_kernel(
    where: str, machine: Machine, times: Times, tmp_path: Path, gemm: Any, children: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    children(1.5, 1.4)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("broken")

    monkeypatch.setattr(background_decider.BackgroundDecider, where, fail)
    scope = planned(tmp_path)
    with scope:
        for _ in range(30):
            gemm()
            gemm(1024)
            time.sleep(0.005)
    assert set(machine.warps) <= {UNPLANNED, PLANNED}
    assert len(machine.warps) == 60


def test_a_trial_that_hangs_leaves_the_kernel_with_one_warning(
    machine: Machine, times: Times, tmp_path: Path, gemm: Any, children: Any
) -> None:
    hang = IsolatedResult("timeout", None, "no answer for 20 s: killed", 20.0)
    children(hang, hang)
    scope = planned(tmp_path)
    with pytest.warns(PlanWarning, match="no answer for 20 s") as caught, scope:
        settled(scope, gemm)
    assert len(caught) == 1
    assert set(machine.warps) == {UNPLANNED}


def test_tensors_are_not_kept_alive(machine: Machine, times: Times, tmp_path: Path, gemm: Any, children: Any) -> None:
    children()
    scope = planned(tmp_path, gpu_share=0)
    arguments = gemm_arguments()
    with scope:
        gemm.kernel[(2, 2)](*arguments)
        until(lambda: bool(trials(scope)._open))
    machine.launches.clear()
    del arguments
    gc.collect()
    assert not [held for held in gc.get_objects() if type(held) is Tensor]


def test_several_threads_launch_at_once(
    machine: Machine, times: Times, tmp_path: Path, gemm: Any, children: Any
) -> None:
    children(1.5, 1.4)
    scope = planned(tmp_path)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(300):
                gemm()
                time.sleep(0.001)
        except BaseException as error:
            failed.append(error)

    with scope:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        settled(scope, gemm)
        gemm()
    assert not failed
    assert machine.warps[-1] == PLANNED


CHILD = "import time\ndef trial(request):\n    yield {'step': 'plan', 'schemes': []}\n    time.sleep(600)\n"


@pytest.fixture
def sleeping(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A real child that does not come to an end by itself."""
    (tmp_path / "sleeping_trial.py").write_text(CHILD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(decide, "CHILD", "sleeping_trial:trial")


def started() -> list[int]:
    """The children of this process that try plans."""
    found = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
    )
    return [int(line.split()[0]) for line in found.stdout.splitlines() if "warpplan.kernels.isolate" in line]


def test_leaving_the_scope_ends_the_thread_and_its_child(
    machine: Machine, times: Times, sleeping: None, tmp_path: Path, gemm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_trials, "GRACE_S", 0.3)
    scope = planned(tmp_path)
    with scope:
        until(lambda: bool(started()), gemm)
        time.sleep(0.6)
        assert started(), "a scope is entered"
    until(lambda: trials(scope)._thread is None)
    assert not started()
    with scope:  # and begins again
        until(lambda: bool(started()), gemm)
    trials(scope).stop()
    assert not started()


def test_a_process_that_was_forked_goes_on_by_itself(
    machine: Machine, times: Times, sleeping: None, tmp_path: Path, gemm: Any
) -> None:
    scope = planned(tmp_path)
    with scope:
        until(lambda: bool(started()), gemm)
        before = started()
        child = os.fork()
        if child == 0:
            try:
                for _ in range(5):
                    gemm()
                beside = trials(scope)
                fine = beside._armed is None and not beside._work and machine.warps[-5:] == [UNPLANNED] * 5
                os._exit(0 if fine else 1)
            except BaseException:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert started() == before


EXITING = """
import sys, time
sys.path[:0] = [{tests!r}, {folder!r}]
from pathlib import Path
from planned_machine import gemm_arguments, running
import kernels_under_test as kernels
from warpplan.kernels import planned
from warpplan.kernels.compiler.launching import background_decider, decide
import test_background
decide.gpu = lambda number: ("NVIDIA H200", 90)
decide.CHILD = "sleeping_trial:trial"
background_decider.describe = lambda *a: {{"arguments": [], "storages": []}}
with running(Path({cache!r})) as machine:
    test_background.background_trials.CudaTimer = test_background.Times(machine)
    scope = planned({folder!r})
    with scope:
        test_background.until(lambda: bool(test_background.started()), lambda: kernels.gemm[(2, 2)](*gemm_arguments()))
        print(test_background.started()[0])
"""


def test_an_interpreter_that_ends_takes_its_child_with_it(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "sleeping_trial.py").write_text(CHILD)
    code = EXITING.format(tests=str(Path(__file__).parent), folder=str(tmp_path), cache=str(cache))
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout.split()[-1]), 0)
    assert time.monotonic() - begin < WAIT_S


@pytest.fixture
def masked() -> Callable[..., Any]:
    """A product that loads through pointers, of A with ``stride`` between its rows and B, both at ``address``."""
    kernel = JITFunction(pointer_kernels.masked_matmul.fn)

    def launch(m: int = 256, stride: int = 128, address: int = 4096) -> Any:
        a, b, c = Tensor(256, 128, address=address), Tensor(256, 128, address=address), Tensor(256, 256)
        with _one_at_a_time:
            return kernel[(2, 2)](a, b, c, m, 256, 128, stride, 128, 256, 128, 128, 64)

    return launch


@pytest.mark.parametrize("arguments", [{"stride": 0}, {"stride": -128}, {"m": -1}])
def test_sizes_and_strides_that_no_descriptor_has_run_as_they_are_beside_others(
    machine: Machine, times: Times, tmp_path: Path, children: Any, masked: Any, arguments: dict[str, int]
) -> None:
    children(1.5, 1.5)
    scope = planned(SCHEME)
    with scope:
        settled(scope, masked)
        with pytest.warns(PlanWarning, match=r"argument '(stride_am|M)' is (0|-1|-128)") as caught:
            settled(scope, lambda: masked(**arguments))
        assert len(caught) == 1
        masked(**arguments)
        assert machine.warps[-1] == UNPLANNED
        masked()
        assert machine.warps[-1] == PLANNED


def test_a_misaligned_view_after_planning_runs_as_it_is(
    machine: Machine, times: Times, tmp_path: Path, children: Any, masked: Any
) -> None:
    tried = children(1.5)
    scope = planned(SCHEME)
    with scope:
        settled(scope, masked)
        real = IsolatedResult("error", None, "CannotPlan: base is not known to be a multiple of 16 bytes", 1.0)
        tried.outcomes.append(real)
        with pytest.warns(PlanWarning, match="multiple of 16 bytes") as caught:
            settled(scope, lambda: masked(address=4098))
        assert len(caught) == 1
        masked(address=4098)
        masked()
    assert machine.warps[-2:] == [UNPLANNED, PLANNED]


def test_an_empty_launch_is_never_tried(machine: Machine, times: Times, tmp_path: Path, gemm: Any) -> None:
    scope = planned(tmp_path)
    with scope:
        for _ in range(5):
            gemm.kernel[(0, 2)](*gemm_arguments())
        assert not trials(scope)._open
        assert not trials(scope)._work
    assert set(machine.warps) == {UNPLANNED}


def test_other_pointers_reach_a_plan_as_they_are(
    machine: Machine, times: Times, tmp_path: Path, children: Any, masked: Any
) -> None:
    """Nothing of a launch's addresses is kept: a graph that is replayed with others gets those."""
    children(1.5)
    scope = planned(SCHEME)
    with scope:
        settled(scope, masked)
        for address in (1 << 20, 1 << 24):
            masked(address=address)
            _, warps, arguments = machine.launches[-1]
            assert warps == PLANNED
            assert [argument.data_ptr() for argument in arguments[:2]] == [address, address]
