"""Autotuned lists under ``planned`` as it is by default: Triton tunes at the first launch, what is best planned is
found on the background thread, and the job's own launches decide. Real tuner, front end, compiles and thread; the
children and the events around launches are stood in for."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="needs triton")
sys.path.insert(0, str(Path(__file__).parent))

import kernels_under_test as kernels  # noqa: E402
from planned_machine import Machine, gemm_arguments, running  # noqa: E402
from triton import knobs  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402
from tuned_kernels import (  # noqa: E402
    HANG,
    PREDICTED,
    SMALL,
    TIMES,
    WIDE,
    Bench,
    Children,
    boxes,
    config,
    launch,
    named,
    pooled,
    trying,
)

from warpplan.kernels import PlanWarning, planned  # noqa: E402
from warpplan.kernels.compiler.background import background_trials  # noqa: E402
from warpplan.kernels.compiler.background.configuration_contest import ConfigurationContest  # noqa: E402
from warpplan.kernels.compiler.background.launch_comparison import ALTERNATING, MOST_PAIRS, PATIENCE  # noqa: E402
from warpplan.kernels.compiler.background.plan_choices import TrialOutcome  # noqa: E402
from warpplan.kernels.compiler.background.watched_kernel import WatchedKernel  # noqa: E402
from warpplan.kernels.compiler.exceptions import CannotPlan  # noqa: E402
from warpplan.kernels.compiler.launching import background_decider, decide  # noqa: E402
from warpplan.kernels.compiler.launching import planned as planned_module  # noqa: E402
from warpplan.kernels.compiler.launching.autotuned import list_beside, list_decide, list_launches, list_table  # noqa: E402
from warpplan.kernels.compiler.launching.autotuned.list_children import list_jobs  # noqa: E402
from warpplan.kernels.compiler.launching.autotuned.list_children.job_pool import JobPool  # noqa: E402
from warpplan.kernels.compiler.launching.autotuned.list_launches import NotedLaunches  # noqa: E402
from warpplan.kernels.compiler.launching.autotuned.tuner_calls import TunedLaunch, tuning_key  # noqa: E402
from warpplan.kernels.compiler.launching.dispatch import waiting  # noqa: E402
from warpplan.kernels.warn_once import forget_warnings  # noqa: E402
from warpplan.planner.errors import MeasurementFailed  # noqa: E402

pytestmark = pytest.mark.matrix
Json = dict[str, Any]
WAIT_S = 60.0
TRITONS, OURS = 4, 12
"""Warps of the 64 x 64 tile as it is, and of the 128 x 64 tile under two consumers."""
_one_at_a_time = threading.RLock()
"""Held by launches and by what stands for children: that compiles in this process, under a hook that is all
threads'."""


class Times:
    """What launches take by the warps of the kernel that ran, as the events around them tell."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.us = machine, {TRITONS: 10.0, 8: 10.0, OURS: 5.0}

    def __call__(self) -> Any:
        took: list[float] = []
        return SimpleNamespace(
            begin=lambda: None,
            end=lambda: took.append(self.us[self.machine.warps[-1]]),
            elapsed_us=lambda: took[0] if took else None,
        )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[Machine]:
    monkeypatch.setattr(decide, "default_folder", lambda: cache / "planned")
    monkeypatch.setattr(planned_module, "_tables", {})
    monkeypatch.setattr(decide, "gpu", lambda number: ("NVIDIA H200", 90))
    for module in (list_launches, background_decider):
        monkeypatch.setattr(module, "describe", lambda *a: {"arguments": [], "storages": []})
    monkeypatch.setattr(background_trials, "POLL_S", 0.01)
    # Triton's winner is not tried as a kernel of its own: these tests are about lists.
    later = TrialOutcome(None, 0.0, "not now")
    monkeypatch.setattr(background_decider.BackgroundDecider, "try_plans", lambda *a: later)
    forget_warnings()
    with running(cache) as machine:
        try:
            yield machine
        finally:
            forget_everything()


def forget_everything() -> None:
    """What this process knows, as where it ends: what comes next is like a new one."""
    for table, *_ in planned_module._tables.values():
        if table._beside is not None:
            table._beside.stop()
    planned_module._tables.clear()


@pytest.fixture
def times(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times(machine)
    monkeypatch.setattr(background_trials, "CudaTimer", times)
    return times


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Children]:
    def install(predicted: Any = PREDICTED, us: Any = TIMES) -> Children:
        stand_in = Children(predicted, us)

        def job(*arguments: Any) -> Json:
            with _one_at_a_time:
                return stand_in.job(*arguments)

        monkeypatch.setattr(list_decide, "JobPool", pooled(job))
        monkeypatch.setattr(list_decide, "TrialChild", trying(stand_in.trial))
        return stand_in

    return install


@pytest.fixture
def tuned(machine: Machine) -> Callable[..., Any]:
    """A fresh tuner over two tiles, of which Triton's benchmark finds the 64 x 64 one the fastest as it is."""

    class SmallestWins(Bench):
        def __call__(self, call: Callable[[], None], quantiles: Any) -> list[float]:
            super().__call__(call, quantiles)
            grid, _, _ = self.machine.launches[-1]
            return [1.0 if grid[0] == 64 else 2.0] * 3

    def make(key: Any = ("M", "N", "K")) -> Any:
        tuner = triton.autotune([config(SMALL), config(WIDE)], key=list(key), do_bench=SmallestWins(machine))
        return tuner(JITFunction(kernels.gemm.fn))

    return make


def launched(tuner: Any, **options: Any) -> Any:
    with _one_at_a_time:
        return launch(tuner, **options)


def decisions(folder: Path) -> list[Json]:
    return [json.loads(file.read_text()) for file in folder.glob("*.list.json")]


def until(done: Callable[[], bool], tuner: Any, **options: Any) -> None:
    """Launch until ``done``, once at least."""
    give_up = time.monotonic() + WAIT_S
    launched(tuner, **options)
    while not done():
        assert time.monotonic() < give_up, "it does not come to an end"
        launched(tuner, **options)
        time.sleep(0.005)


def settled(folder: Path) -> Callable[[], bool]:
    return lambda: any(not found["provisional"] for found in decisions(folder))


def test_triton_tunes_first_and_the_jobs_launches_settle_on_what_is_faster(
    machine: Machine, times: Times, tuned: Any, children: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, tuner = children(), tuned()
    with planned(tmp_path):
        launched(tuner)
        assert tuner.do_bench.count == 2, "Triton's own tuning"
        assert machine.launches[-1][0] == (64, 64, 1), "and its choice"
        until(settled(tmp_path), tuner)
        count = len(machine.launches)
        for _ in range(20):
            launched(tuner)
    assert machine.warps[count + 2 :] == [OURS] * 18
    assert len(tried.trials) == 1
    assert tried.trials[0]["beside"]
    (found,) = decisions(tmp_path)
    assert (found["config"], found["scheme"]["consumers"], found["provisional"]) == (1, 2, False)
    as_it_is = [t["config"] for t in found["tried"] if t["scheme"] is None]
    assert as_it_is == [0, 1], "Triton's winner, and what the planned tile is compared with"

    def refuse(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("a child was started")

    for name in ("JobPool", "TrialChild"):
        monkeypatch.setattr(list_decide, name, refuse)
    later, before = tuned(), len(machine.launches)
    forget_everything()
    with planned(tmp_path):
        until(lambda: machine.warps[-1] == OURS, later)
    assert later.do_bench.count == 0
    assert {grid for grid, _, _ in machine.launches[before:]} == {(32, 64, 1)}


@pytest.mark.parametrize("tiles", [(64, 32, 64, 128), (64, 128)])
def test_while_triton_tunes_children_compile_its_list_from_the_end(
    machine: Machine, times: Times, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiles: tuple[int, ...]
) -> None:
    """With four configurations or more."""
    asked: list[tuple[str, int]] = []
    begun, tuned = threading.Event(), threading.Event()
    ahead = len(tiles) >= list_beside.LEAST_AHEAD

    def job(target: str, shared: Json, work: Json) -> Json:
        asked.append((target, named(work["kernel"])[0]))
        assert tuned.is_set() or ahead
        if asked[-1] == (list_jobs.COMPILE, tiles[1]):
            begun.set()
        return {"reason": "not in this test"}

    def bench(call: Callable[[], None], quantiles: Any) -> list[float]:
        assert begun.wait(WAIT_S if ahead else 0.1) == ahead
        return [1.0] * 3

    monkeypatch.setattr(list_decide, "JobPool", pooled(job))
    configs = [config({"BM": m, "BN": 64}, warps=4 + 4 * (number > 1)) for number, m in enumerate(tiles)]
    tuner = triton.autotune(configs, key=["M", "N", "K"], do_bench=bench)(JITFunction(kernels.gemm.fn))
    with warnings.catch_warnings(), planned(tmp_path):
        warnings.simplefilter("ignore", PlanWarning)
        launch(tuner)
        tuned.set()
        until(lambda: sum(target == list_jobs.RANK for target, _ in asked) == len(tiles), tuner)
    compiled = [m for target, m in asked if target == list_jobs.COMPILE]
    assert compiled == (list(reversed(tiles[1:])) if ahead else [])


def test_triton_finds_what_real_children_have_compiled(
    machine: Machine, times: Times, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hits: list[bool] = []
    configs = [config({"BM": m, "BN": 32}) for m in (16, 32, 64, 128)]

    def bench(call: Callable[[], None], quantiles: Any) -> list[float]:
        if not hits:  # this one is compiled here, the others meanwhile
            give_up = time.monotonic() + WAIT_S
            while len(list(tmp_path.glob("triton/*/gemm.cubin"))) < 3:
                assert time.monotonic() < give_up, "children compile nothing"
                time.sleep(0.05)
        call()
        return [1.0] * 3

    def listen(*, cache_hit: bool, **others: Any) -> None:
        hits.append(cache_hit)

    monkeypatch.setattr(list_decide, "TrialChild", trying(lambda request: HANG))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    tuner = triton.autotune(configs, key=["M", "N", "K"], do_bench=bench)(JITFunction(kernels.gemm.fn))
    with knobs.cache.scope(), knobs.compilation.scope(), planned(tmp_path / "plans"):
        knobs.cache.dir = str(tmp_path / "triton")
        knobs.compilation.listener = listen
        launch(tuner)
    assert hits == [False, True, True, True]


def test_what_the_jobs_launches_show_to_be_slower_goes_back_to_tritons_choice(
    machine: Machine, times: Times, tuned: Any, children: Any, tmp_path: Path
) -> None:
    times.us[OURS] = 20.0
    tried, tuner = children(), tuned()
    with planned(tmp_path):
        until(settled(tmp_path), tuner)
        count = len(machine.launches)
        for _ in range(20):
            launched(tuner)
    assert OURS in machine.warps[:count]
    assert {grid for grid, _, _ in machine.launches[count + 1 :]} == {(64, 64, 1)}
    (found,) = decisions(tmp_path)
    assert (found["config"], found["scheme"]) == (0, None)
    assert len(tried.trials) == 1


def test_a_winner_of_tritons_that_is_best_planned_is_left_to_its_kernels_own_comparison(
    machine: Machine, times: Times, tuned: Any, children: Any, tmp_path: Path
) -> None:
    us = {**TIMES, (64, 64, 4, list(PREDICTED)[4][-1]): 9.0}
    children(us=us)
    tuner = tuned()
    with planned(tmp_path):
        until(lambda: bool(decisions(tmp_path)), tuner)
    (found,) = decisions(tmp_path)
    assert (found["config"], found["provisional"]) == (0, False)
    kernels_own = [json.loads(f.read_text()) for f in tmp_path.glob("*.json") if not f.name.endswith(".list.json")]
    assert [(k["provisional"], k["scheme"]["consumers"]) for k in kernels_own] == [(True, 1)]


def test_without_gpu_time_a_list_is_tritons(
    machine: Machine, times: Times, tuned: Any, children: Any, tmp_path: Path
) -> None:
    tried, tuner = children(), tuned()
    with planned(tmp_path, gpu_share=0):
        for _ in range(5):
            launched(tuner)
        time.sleep(0.1)
    assert (tuner.do_bench.count, tried.ranked, decisions(tmp_path)) == (2, [], [])
    assert {grid for grid, _, _ in machine.launches[2:]} == {(64, 64, 1)}


def test_whoever_waits_has_the_list_decided_at_once(
    machine: Machine, times: Times, tuned: Any, children: Any, tmp_path: Path
) -> None:
    tried, tuner = children(), tuned()
    with planned(tmp_path), waiting():
        launched(tuner)
    assert (tuner.do_bench.count, len(tried.trials)) == (0, 1)
    assert not tried.trials[0]["beside"]
    (found,) = decisions(tmp_path)
    assert not found["provisional"]


def test_a_provisional_decision_is_for_those_whose_launches_compare(
    machine: Machine, times: Times, tuned: Any, children: Any, tmp_path: Path
) -> None:
    tried, tuner = children(), tuned()
    times.us[OURS] = float("nan")  # no comparison comes to an end
    with planned(tmp_path):
        until(lambda: bool(decisions(tmp_path)), tuner)
    (found,) = decisions(tmp_path)
    assert found["provisional"]
    with planned(tmp_path, background=False):
        launched(tuned())
    assert len(tried.trials) == 2, "timed anew, by itself"
    (found,) = decisions(tmp_path)
    assert not found["provisional"]


def test_a_list_that_cannot_be_tried_stays_tritons_with_one_warning(
    machine: Machine, times: Times, tuned: Any, children: Any, tmp_path: Path
) -> None:
    tried, tuner = children(us=dict.fromkeys(TIMES, HANG)), tuned()
    with warnings.catch_warnings(record=True) as caught, planned(tmp_path):
        warnings.simplefilter("always")
        until(lambda: any("choice of its list stays" in str(w.message) for w in caught), tuner)
        for _ in range(5):
            launched(tuner)
    assert len([w for w in caught if "choice of its list stays" in str(w.message)]) == 1
    assert "no answer for 60 s" in str(caught[-1].message)
    assert decisions(tmp_path) == []
    assert len(tried.trials) == 3
    assert machine.launches[-1][0] == (64, 64, 1)


def test_a_hook_that_raises_leaves_the_list_to_triton(
    machine: Machine, times: Times, children: Any, tmp_path: Path
) -> None:
    tried, raised = children(), []

    def hook(arguments: Json) -> None:
        boxes(arguments)
        raised.append(1)
        if len(raised) == 1:
            raise OSError("no such thing")

    configs = [config(SMALL, hook=hook), config(WIDE, warps=8)]
    bench = Bench(machine)
    tuner = triton.autotune(configs, key=["M", "N", "K"], do_bench=bench)(JITFunction(kernels.gemm.fn))
    with pytest.warns(PlanWarning, match="Triton tunes its list: OSError: no such thing"), planned(tmp_path):
        launched(tuner)
    assert bench.count == 2
    assert tried.ranked == []


def test_hooks_that_triton_would_not_run_are_not_run(
    machine: Machine, times: Times, children: Any, tmp_path: Path
) -> None:
    """The key was tuned before: Triton runs the hook of its choice, and none of the user's own."""
    tried, called = children(), []

    def hook(arguments: Json) -> None:
        boxes(arguments)
        called.append(arguments["BM"])

    def users_own(arguments: Json, reset_only: bool = False) -> None:
        called.append("users")

    configs = [config(SMALL, hook=hook), config(WIDE, warps=8, hook=hook)]
    tune = triton.autotune(configs, key=["M", "N", "K"], do_bench=Bench(machine), pre_hook=users_own)
    tuner = tune(JITFunction(kernels.gemm.fn))
    launched(tuner)
    called.clear()
    with planned(tmp_path):
        for _ in range(3):
            launched(tuner)
        time.sleep(0.1)
    assert called == [64] * 3
    assert tried.ranked == []


def test_a_graph_is_captured_of_what_the_job_has_warmed_up(
    machine: Machine, times: Times, tuned: Any, children: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children()
    tuner = tuned(key=["N"])
    with planned(tmp_path):
        for m in (4096, 4095):
            launched(tuner, m=m)
        until(settled(tmp_path), tuner, m=4096)
        until(lambda: machine.warps[-1] == OURS, tuner, m=4096)
        monkeypatch.setattr(list_table, "is_capturing", lambda: True)
        for m, grid in ((4095, (64, 64, 1)), (4096, (32, 64, 1))):
            launched(tuner, m=m)
            assert machine.launches[-1][0] == grid
        monkeypatch.setattr(list_table, "is_capturing", lambda: False)
        launched(tuner, m=4095)
        assert machine.launches[-1][0] == (32, 64, 1)


def test_what_another_process_did_not_compare_is_compared_and_not_tried_again(
    machine: Machine, times: Times, tuned: Any, children: Any, tmp_path: Path
) -> None:
    tried, tuner = children(), tuned()
    ours = times.us[OURS]
    times.us[OURS] = float("nan")  # no comparison comes to an end
    with planned(tmp_path):
        until(lambda: bool(decisions(tmp_path)), tuner)
    forget_everything()
    times.us[OURS] = 2 * times.us[TRITONS] + ours
    later = tuned()
    with planned(tmp_path):
        until(settled(tmp_path), later)
    assert later.do_bench.count == 2
    assert len(tried.trials) == 1
    (found,) = decisions(tmp_path)
    assert (found["config"], found["scheme"]) == (0, None), "slower, by the launches"


def test_launches_that_do_other_work_are_of_other_sizes() -> None:
    a, b = (SimpleNamespace(shape=shape) for shape in ((4, 8), (4, 9)))
    given = [
        ((a, 5), {}), ((b, 5), {}), ((a, 6), {}), ((a, 5), {"CAUSAL": True}), ((a, 5), {"CAUSAL": False}),
        ((a, 5), {"grid": (1,)}), ((a, 5), {"grid": (2,)}), (((a, 1), 5), {}), (((a, 2), 5), {}),
        ((a, 5), {"MODE": "x"}), ((a, 5.5), {}),
    ]  # fmt: skip
    assert len({list_beside.sizes_of(*each) for each in given}) == len(given)
    assert list_beside.sizes_of((a, 5), {"grid": len}) == list_beside.sizes_of((a, 5), {"grid": max})


def test_an_argument_that_cannot_be_copied_keeps_no_tensor_alive(
    machine: Machine, tuned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Json:
        raise CannotPlan("argument 'c_ptr' cannot be copied")

    monkeypatch.setattr(list_launches, "describe", refuse)
    tuner, arguments = tuned(), list(gemm_arguments(4096, 4096, 128)[:6])
    kwargs = {"grid": lambda meta: (64, 64), "warmup": False}
    with _one_at_a_time:
        noted = NotedLaunches(TunedLaunch(tuner, tuple(arguments), kwargs, ()), tuner.configs)
    tensors = [weakref.ref(each) for each in (arguments[0].base, arguments[2])]
    with pytest.raises(CannotPlan, match="cannot be copied"):
        noted.described(1, Path())
    arguments.clear()
    gc.collect()
    assert [tensor() for tensor in tensors] == [None] * 2
    noted.close()


def test_files_of_another_process_stay(machine: Machine, tuned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tuner = tuned()
    kwargs = {"grid": lambda meta: (64, 64), "warmup": False}
    with _one_at_a_time:
        noted = NotedLaunches(TunedLaunch(tuner, gemm_arguments(4096, 4096, 128)[:6], kwargs, ()), tuner.configs)
    folder = Path(noted._folder)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        noted.close()
    assert folder.is_dir()
    noted.close()
    assert not folder.exists()


@pytest.mark.parametrize("begun", [False, True])
def test_a_list_that_the_thread_had_no_time_for_is_decided_on_later(
    machine: Machine, times: Times, tuned: Any, children: Any, tmp_path: Path, monkeypatch: Any, begun: bool
) -> None:
    """A job that is out of the scope for long, between two steps perhaps."""
    tried, tuner, stop = children(), tuned(), threading.Event()
    trials_type = background_trials.BackgroundTrials

    def stopped(*arguments: Any) -> Any:
        stop.set()
        raise MeasurementFailed("stopped")

    with planned(tmp_path) as scope, monkeypatch.context() as out_of_time:
        out_of_time.setattr(trials_type, "_must_stop", lambda self: stop.is_set())
        if begun:
            out_of_time.setattr(list_decide.ListDecider, "_tried", stopped)
        else:
            out_of_time.setattr(trials_type, "perform_job", lambda self: stop.set())
        launched(tuner)
        trials = scope._table()._beside
        assert trials is not None
        until(lambda: stop.is_set() and trials._thread is None, tuner)
        assert len(trials.jobs) == 1
    assert tried.trials == []
    with planned(tmp_path):
        until(settled(tmp_path), tuner)
    assert tuner.do_bench.count == 2, "Triton has tuned it once"
    assert len(tried.trials) == 1


class Job:
    stopped, closed = False, 0

    def perform(self, stop: Callable[[], bool]) -> float:
        raise AssertionError("stopped before")

    def close(self) -> None:
        self.closed += 1


def test_while_a_launch_tunes_the_thread_goes_on_and_what_is_left_is_closed() -> None:
    clock, job = [0.0], Job()
    trials = background_trials.BackgroundTrials(
        lambda: None, gpu_share=0.5, capturing=lambda: False, active=lambda: False, clock=lambda: clock[0],
        threaded=False,
    )  # fmt: skip
    trials.submit(job)
    with trials.jobs.in_launch():
        clock[0] = 2 * background_trials.GRACE_S
        assert not trials._must_stop()
    clock[0] += 2 * background_trials.GRACE_S
    assert trials._must_stop()
    trials.stop()
    assert job.closed == 1


def test_what_waits_for_its_trial_keeps_no_tensor_alive(machine: Machine, tuned: Any) -> None:
    tuner, arguments = tuned(), list(gemm_arguments(4096, 4096, 128)[:6])
    kwargs = {"grid": lambda meta: (64, 64), "warmup": False}
    with _one_at_a_time:
        noted = NotedLaunches(TunedLaunch(tuner, tuple(arguments), kwargs, ()), tuner.configs)
    tensors = [weakref.ref(each) for each in (arguments[0].base, arguments[1].base, arguments[2])]
    calls = [noted.call(number) for number in range(2)]
    assert [call.arguments["a"].block_shape for call in calls] == [(64, 32), (128, 32)], "each as its hook leaves it"
    assert calls[0].arguments["c_ptr"].data_ptr() == 4096
    arguments.clear()
    gc.collect()
    assert [tensor() for tensor in tensors] == [None] * 3
    noted.close()


def test_launches_in_many_threads_tune_and_decide_once(
    machine: Machine, times: Times, tuned: Any, children: Any, tmp_path: Path
) -> None:
    tried, tuner = children(), tuned()
    with planned(tmp_path):
        threads = [threading.Thread(target=launched, args=(tuner,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(settled(tmp_path), tuner)
    assert tuner.do_bench.count == 2
    assert len(tried.trials) == 1


class Contest:
    """A contest of launches that take ``us`` (incumbent, contender)."""

    def __init__(self, us: tuple[float, float], *, trusted: bool = True, watched: int = 0) -> None:
        self.us, self.capturing, self.watched = us, False, watched
        self.ran: list[str] = []
        self.ended: list[Any] = []
        self.timer_fails = self.behind = False
        self.contest = ConfigurationContest(
            7, trusted=trusted, settled=self.settled, capturing=lambda: self.capturing, timer=self.timer
        )

    def settled(self, won: bool, times: Any) -> None:
        self.ended.append((won, times))
        raise OSError("the folder is gone")

    def timer(self) -> Any:
        if self.timer_fails:
            raise RuntimeError("no events")
        took: list[float] = []
        return SimpleNamespace(
            begin=lambda: None,
            end=lambda: took.append(self.us[self.ran[-1] == "contender"]),
            elapsed_us=lambda: took[0] if took and not self.behind else None,
        )

    def launch(self, sizes: int = 7) -> str:
        self.contest.launch(sizes, lambda: self.run("incumbent"), lambda: self.run("contender"))
        return self.ran[-1]

    def run(self, side: str) -> Any:
        self.ran.append(side)
        watched = side == "contender" and self.ran.count(side) <= self.watched
        return WatchedKernel.__new__(WatchedKernel) if watched else object()


@pytest.mark.parametrize(("us", "won"), [((10.0, 5.0), True), ((10.0, 9.95), False), ((5.0, 10.0), False)])
def test_a_contest_is_won_by_what_is_faster_by_more_than_noise(us: tuple[float, float], won: bool) -> None:
    contest = Contest(us)
    for _ in range(300):
        contest.launch()
    ((told, times),) = contest.ended
    assert told is won
    assert times[0] == pytest.approx(us[1])
    assert times[1] == us[0]
    assert contest.ran.count("contender") < 60


def test_launches_of_other_sizes_and_of_captures_run_tritons_choice_and_count_for_nothing() -> None:
    contest = Contest((10.0, 5.0))
    assert {contest.launch(sizes=8) for _ in range(100)} == {"incumbent"}
    contest.capturing = True
    assert {contest.launch() for _ in range(500)} == {"incumbent"}
    assert contest.ended == []


def test_a_contender_counts_once_it_runs_its_plan() -> None:
    """Before that its launches run the configuration as it is."""
    contest = Contest((10.0, 5.0), watched=20)
    for _ in range(40):
        contest.launch()
    assert contest.ended == []
    for _ in range(40):
        contest.launch()
    assert [won for won, _ in contest.ended] == [True]


@pytest.mark.parametrize("trusted", [True, False])
def test_where_launches_never_compare_the_trial_is_trusted_if_it_was_clear(trusted: bool) -> None:
    contest = Contest((10.0, 5.0), trusted=trusted)
    for _ in range(4):
        contest.launch()
    for _ in range(PATIENCE * ALTERNATING * MOST_PAIRS):
        contest.launch(sizes=8)
    assert contest.ended == [(trusted, None)]


def test_a_contender_that_never_runs_its_plan_loses() -> None:
    contest = Contest((10.0, 5.0), watched=10_000)
    for _ in range(PATIENCE * ALTERNATING * MOST_PAIRS):
        contest.launch()
    assert contest.ended == [(False, None)]


def test_a_gpu_that_is_far_behind_is_waited_for() -> None:
    contest = Contest((10.0, 5.0))
    contest.behind = True
    for _ in range(2 * PATIENCE * ALTERNATING * MOST_PAIRS):
        contest.launch()
    assert contest.ended == []
    contest.behind = False
    contest.launch()
    assert [won for won, _ in contest.ended] == [True]


def test_a_timer_that_fails_ends_the_contest_for_tritons_choice() -> None:
    contest = Contest((10.0, 5.0))
    contest.timer_fails = True
    assert {contest.launch() for _ in range(10)} == {"incumbent"}
    assert contest.ended == [(False, None)]


def test_a_pool_that_is_told_to_stop_answers_at_once() -> None:
    with JobPool("time:sleep", 60, most=1, time_limit_s=60.0, stop=lambda: True) as pool:
        begun = time.monotonic()
        assert "stopped" in pool.submit("time:sleep", 60).result()["reason"]
    assert time.monotonic() - begun < 30.0


def test_a_key_is_read_as_triton_makes_it(machine: Machine, tuned: Any) -> None:
    tuner = tuned()
    launched(tuner)
    assert list(tuner.cache) == [tuning_key(tuner, gemm_arguments(4096, 4096, 128)[:6], {})]
