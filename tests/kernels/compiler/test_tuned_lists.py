"""Kernels under ``@triton.autotune``: configuration and strategy decided at once. Triton's own Autotuner, real front
end and compiles, launches that a driver notes down; the children that rank and try are stood in for where a test is not
about them."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="needs triton")
sys.path.insert(0, str(Path(__file__).parent))

import kernels_under_test as kernels  # noqa: E402
import triton.language as tl  # noqa: E402
from planned_machine import Machine, Tensor, running  # noqa: E402
from triton import knobs  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402
from triton.runtime.errors import AutotunerError  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402
from tuned_kernels import (  # noqa: E402
    HANG,
    LEAST,
    ONE,
    PREDICTED,
    SMALL,
    TIMES,
    TWO,
    UNTIMED,
    WIDE,
    Bench,
    Children,
    boxes,
    config,
    launch,
    named,
    pooled,
    strategy,
    trying,
)

from warpplan.kernels import PlanWarning, planned  # noqa: E402
from warpplan.kernels.compiler.costing import hopper_ranking  # noqa: E402
from warpplan.kernels.compiler.launching import decide, progress  # noqa: E402
from warpplan.kernels.compiler.launching import planned as planned_module  # noqa: E402
from warpplan.kernels.compiler.launching.autotuned import list_choice, list_decide, list_launches  # noqa: E402
from warpplan.kernels.compiler.launching.autotuned.list_children import job_pool, list_jobs, trial_child  # noqa: E402
from warpplan.kernels.isolate import IsolatedResult  # noqa: E402
from warpplan.kernels.warn_once import forget_warnings  # noqa: E402
from warpplan.planner.errors import InvalidGraph  # noqa: E402

pytestmark = pytest.mark.matrix
Json = dict[str, Any]


@triton.jit
def checked_gemm(a, b, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WHOLE: tl.constexpr):
    tl.static_assert(BM <= 128)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([tl.program_id(0) * BM, k]), b.load([tl.program_id(1) * BN, k]).T, acc)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    where = c_ptr + rows[:, None] * N + columns[None, :]
    if WHOLE:
        tl.store(where, acc.to(tl.bfloat16))
    else:
        tl.store(where, acc.to(tl.bfloat16), mask=(rows < M)[:, None] & (columns < N)[None, :])


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Triton's cache, shared by the tests of this module: each kernel compiles once."""
    return tmp_path_factory.mktemp("triton")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[Machine]:
    monkeypatch.setattr(decide, "default_folder", lambda: cache / "planned")
    monkeypatch.setattr(planned_module, "_tables", {})
    monkeypatch.setattr(decide, "gpu", lambda number: ("NVIDIA H200", 90))
    monkeypatch.setattr(list_launches, "describe", lambda *a: {"arguments": [], "storages": []})
    forget_warnings()
    with running(cache) as machine:
        yield machine


@pytest.fixture
def tuned(machine: Machine) -> Callable[..., Any]:
    """A fresh autotuned GEMM over a list, with its benchmark."""

    def make(configs: list[Any], kernel: Any = kernels.gemm, layer: Any = lambda k: k, **options: Any) -> Any:
        tuner = triton.autotune(configs, key=["M", "N", "K"], do_bench=Bench(machine), **options)
        return tuner(layer(JITFunction(kernel.fn)))

    return make


def twice(call: Callable[[], Any]) -> None:
    call()
    call()


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Children]:
    def install(predicted: dict[Any, float], us: dict[Any, Any] | None = None) -> Children:
        stand_in = Children(predicted, us or {})
        monkeypatch.setattr(list_decide, "JobPool", pooled(stand_in.job))
        monkeypatch.setattr(list_decide, "TrialChild", trying(stand_in.trial))
        return stand_in

    return install


@pytest.fixture
def no_children(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a child was started")

    def install() -> None:
        for module, name in ((list_decide, "JobPool"), (list_decide, "TrialChild"), (decide, "run_isolated")):
            monkeypatch.setattr(module, name, refuse)

    return install


def decided(folder: Path) -> Json:
    (file,) = folder.glob("*.list.json")
    return dict(json.loads(file.read_text()))


def test_configuration_and_strategy_are_decided_at_once(
    machine: Machine, tuned: Any, children: Any, no_children: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(progress, "TRIAL_LISTENERS", [heard.append])
    tried = children(PREDICTED, TIMES)
    tuner = tuned([config(SMALL), config(WIDE)])
    with planned(tmp_path, background=False):
        for _ in range(3):
            launch(tuner)
    assert [grid for grid, _, _ in machine.launches] == [(32, 64, 1)] * 3, "the 128 x 64 tile, from the first launch on"
    assert machine.warps == [4, 12, 12], "as it is once, then two consumers and a producer"
    assert tuner.do_bench.count == 0
    assert sorted(tried.compiled, key=str) == sorted(PREDICTED, key=str)
    assert len(tried.trials) == 1
    found = decided(tmp_path)
    assert found["config"] == 1
    assert found["scheme"]["consumers"] == 2
    assert sorted(t["us"] for t in found["tried"]) == sorted(TIMES.values())
    assert [(d.planned_us, d.unplanned_us) for d in heard] == [(15.0, 31.0)], "listeners hear what is kept, once"
    no_children()
    later = tuned([config(SMALL), config(WIDE)])
    planned_module._tables.clear()
    with planned(tmp_path, background=False):
        launch(later)
        launch(later)
    assert machine.warps[3:] == [4, 12]


def test_outside_of_planned_a_kernel_runs_as_triton_tunes_it(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path
) -> None:
    children(PREDICTED, TIMES)
    run = Autotuner.run
    tuner = tuned([config(SMALL, warps=2), config(WIDE)])
    children({**PREDICTED, (64, 64, 2, None): 24.0}, {**TIMES, (64, 64, 2, None): 22.0})
    with planned(tmp_path, background=False):
        launch(tuner)
        assert not tuner.cache
        assert Autotuner.run is not run
    assert Autotuner.run is run
    launch(tuner)
    assert tuner.do_bench.count == 2
    assert (machine.warps[-1], tuner.best_config.kwargs["BM"]) == (2, 64)
    with planned(tmp_path, background=False):
        launch(tuner)
    assert machine.warps[-1] == 12
    assert tuner.best_config.kwargs["BM"] == 128


@pytest.mark.parametrize("least", [22.0, 21.9])
def test_what_is_not_faster_than_the_lists_best_is_not_kept(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path, least: float
) -> None:
    times = {key: least if key[-1] else us for key, us in TIMES.items()}
    children(PREDICTED, times)
    tuner = tuned([config(WIDE), config(SMALL)])
    with planned(tmp_path, background=False):
        launch(tuner)
        launch(tuner)
    assert [(grid, warps) for grid, warps, _ in machine.launches] == [((64, 64, 1), 4)] * 2
    assert (decided(tmp_path)["config"], decided(tmp_path)["scheme"]) == (1, None)


@pytest.mark.parametrize("outcome", [HANG, IsolatedResult("crash", None, "SIGABRT", 1.0), "computes something else"])
def test_a_candidate_that_fails_takes_no_other_with_it(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path, outcome: Any
) -> None:
    tried = children(PREDICTED, {**TIMES, (128, 64, 4, TWO): outcome})
    tuner = tuned([config(SMALL), config(WIDE)])
    with planned(tmp_path, background=False):
        launch(tuner)
        kept = launch(tuner)
    assert len(tried.trials) == (1 if isinstance(outcome, str) else 2)
    assert kept.metadata.num_warps == 8, "one consumer and a producer"
    (reason,) = (t["reason"] for t in decided(tmp_path)["tried"] if t["us"] is None)
    assert reason in (outcome, getattr(outcome, "reason", ""))


@pytest.mark.parametrize("key", [(128, 64, 4, TWO), (128, 64, 4, None)])
def test_a_candidate_whose_timing_fails_is_left_out_alone(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path, key: Any
) -> None:
    children(PREDICTED, {**TIMES, key: UNTIMED})
    tuner = tuned([config(SMALL), config(WIDE)])
    with planned(tmp_path, background=False):
        launch(tuner)
    found = decided(tmp_path)
    assert [t["reason"] for t in found["tried"] if t["us"] is None] == ["no memory in a capture"]
    assert all(t["reason"] == "" for t in found["tried"] if t["us"] is not None)
    assert found["config"] == 1
    assert found["scheme"]["consumers"] == (1 if key[-1] == TWO else 2)


def test_a_plan_that_does_not_compile_is_replaced_by_the_next(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = children(PREDICTED, TIMES)

    def job(target: str, shared: Json, job: Json) -> Json:
        found = tried.job(target, shared, job)
        return {"reason": "out of resource"} if strategy(job.get("scheme")) == TWO else found

    monkeypatch.setattr(list_choice, "MOST_PLANNED", 1)
    monkeypatch.setattr(list_decide, "JobPool", pooled(job))
    tuner = tuned([config(SMALL), config(WIDE)])
    with planned(tmp_path, background=False):
        launch(tuner)
    assert tried.compiled[-1] == (128, 64, 4, ONE), "after all others, its own configuration among them"
    assert len(tried.compiled) == 4
    found = decided(tmp_path)
    assert (found["config"], found["scheme"]["consumers"]) == (1, 1)
    assert [t["reason"] for t in found["tried"] if t["us"] is None] == ["out of resource"]


def test_children_that_all_die_leave_the_list_to_triton(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path
) -> None:
    tuner = tuned([config(SMALL), config(WIDE)])
    tried = children(PREDICTED, dict.fromkeys(TIMES, HANG))
    with (
        planned(tmp_path, background=False),
        pytest.warns(PlanWarning, match="Triton tunes its list: .*could be timed: no ans") as caught,
    ):
        twice(lambda: launch(tuner))
    assert tuner.do_bench.count == 2
    assert len([w for w in caught if "its list" in str(w.message)]) == 1
    assert not list(tmp_path.glob("*.list.json")), "the machine failed: a later process may succeed"
    assert [len(request["dropped"]) for request in tried.trials] == [0, 2, 5], "with each all that is compared with it"


def test_configurations_that_cannot_run_are_dropped(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """One does not compile, one takes more shared memory than there is, as Triton drops them."""
    deep = config({**WIDE, "BK": 128}, warps=8, stages=6)
    tried = children({**PREDICTED, (128, 64, 8, None): 1.0}, {**TIMES, (128, 64, 8, None): 1.0})
    configs = [config({"BM": 256, "BN": 64}), deep, config(SMALL), config(WIDE)]
    tuner = tuned(configs, checked_gemm)
    with planned(tmp_path, background=False):
        launch(tuner, WHOLE=True)
        launch(tuner, WHOLE=True)
    assert machine.warps == [4, 12]
    assert (256, 64, 4) not in tried.ranked, "its assertion fails in the front end"
    assert (128, 64, 8, None) in tried.compiled
    found = decided(tmp_path)
    assert (found["config"], tuner.best_config.kwargs["BM"]) == (3, 128)
    assert any("out of resource" in t["reason"] for t in found["tried"])
    assert not [w for w in recwarn if issubclass(w.category, PlanWarning)]


def test_a_configuration_of_too_many_warps_is_tried_as_it_is_and_may_win(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No strategy is compared with it, for nothing predicts it: its time does."""
    wide = (128, 64, 16)
    tried = children(PREDICTED, {**TIMES, (*wide, None): 9.0})
    answers = []

    def job(target: str, shared: Json, job: Json) -> Json:
        if target == list_jobs.COMPILE or named(job["kernel"]) != wide:
            return tried.job(target, shared, job)
        answers.append(list_jobs.rank(shared, job))
        return answers[-1]

    monkeypatch.setattr(list_decide, "JobPool", pooled(job))
    with planned(tmp_path, background=False):
        launch(tuned([config(SMALL), config(WIDE), config(WIDE, warps=16)]))
    (answer,) = answers
    assert answer["strategies"] == [[None, None]]
    assert "num_warps is 16; set it to 4 or 8" in answer["obstacle"]
    assert (*wide, None) in tried.compiled
    found = decided(tmp_path)
    assert (found["config"], found["scheme"]) == (2, None)


def test_a_configuration_that_cannot_be_ranked_stays_as_it_is(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Json] = []
    tried = children(PREDICTED, TIMES)

    def job(target: str, shared: Json, job: Json) -> Json:
        if target != list_jobs.COMPILE:
            with monkeypatch.context() as patch:
                patch.setattr(hopper_ranking, "rank", unsolvable)
                seen.append(list_jobs.rank(shared, job))
        return tried.job(target, shared, job)

    def unsolvable(*args: Any, **options: Any) -> Any:
        raise InvalidGraph("operation 'acc' has issue -1")

    monkeypatch.setattr(list_decide, "JobPool", pooled(job))
    with planned(tmp_path, background=False):
        launch(tuned([config(SMALL), config(WIDE)]))
    obstacle = "InvalidGraph: operation 'acc' has issue -1"
    assert seen == [{"strategies": [[None, None]], "obstacle": obstacle}] * 2


def test_a_list_of_which_nothing_compiles_is_tritons(machine: Machine, tuned: Any, children: Any) -> None:
    children({}, {})
    tuner = tuned([config({"BM": 256, "BN": n}) for n in (64, 128)], checked_gemm)
    left = pytest.warns(PlanWarning, match="no configuration of its list compiles")
    with planned(background=False), left, pytest.raises(triton.CompilationError):
        launch(tuner, WHOLE=True)


def test_a_hook_that_raises_leaves_the_list_to_triton(machine: Machine, tuned: Any, children: Any) -> None:
    tried = children(PREDICTED, TIMES)
    raised: list[int] = []

    def hook(arguments: Json) -> None:
        boxes(arguments)
        if not raised:
            raised.append(1)
            raise OSError("no such thing")

    tuner = tuned([config(SMALL, hook=hook), config(WIDE, warps=8)])
    with pytest.warns(PlanWarning, match="Triton tunes its list: OSError: no such thing"), planned(background=False):
        launch(tuner)
    assert tuner.do_bench.count == 2
    assert not tried.ranked


def test_an_empty_list_is_tritons_error(machine: Machine, tuned: Any, children: Any) -> None:
    children(PREDICTED, TIMES)
    tuner = tuned([config(SMALL), config(WIDE)], prune_configs_by={"early_config_prune": lambda *a, **k: []})
    left = pytest.warns(PlanWarning, match="Triton tunes its list")
    with (
        planned(background=False),
        left,
        pytest.raises(AutotunerError, match="No valid autotuner configs after pruning"),
    ):
        launch(tuner)


def test_the_tuners_own_pruning_is_honoured(machine: Machine, tuned: Any, children: Any, tmp_path: Path) -> None:
    tried = children(PREDICTED, TIMES)
    seen: list[Any] = []

    def early(configs: list[Any], arguments: Json, **kwargs: Any) -> list[Any]:
        seen.append((arguments["M"], kwargs["warmup"]))
        return [c for c in configs if c.kwargs["BN"] == 64]

    def model(**arguments: Any) -> float:
        return float(arguments["BM"] * arguments["num_warps"])

    pruning = {"early_config_prune": early, "perf_model": model, "top_k": 1}
    tuner = tuned([config(LEAST), config(WIDE), config(SMALL)], prune_configs_by=pruning)
    with planned(tmp_path, background=False):
        launch(tuner)
    assert seen == [(4096, False)]
    assert tried.ranked == [(64, 64, 4)]
    assert decided(tmp_path)["situation"]["configs"] == [str(tuner.configs[2])]


def test_each_key_is_decided_and_another_list_is_another_decision(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path
) -> None:
    tried = children(PREDICTED, TIMES)
    tuner, other = tuned([config(SMALL), config(WIDE)]), tuned([config(WIDE), config(SMALL)])
    with planned(tmp_path, background=False):
        for m in (4096, 4224, 4096):
            launch(tuner, m)
        launch(other)
    assert len(tried.trials) == len(list(tmp_path.glob("*.list.json"))) == 3


def test_hooks_see_the_configuration_at_each_launch(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path
) -> None:
    children(PREDICTED, TIMES)
    seen: list[Any] = []

    def hook(arguments: Json) -> None:
        boxes(arguments)
        seen.append((arguments["BM"], arguments["M"], arguments["num_warps"], "grid" in arguments))

    tuner = tuned([config(SMALL), config(WIDE, hook=hook)])
    with planned(tmp_path, background=False):
        launch(tuner)
        seen.clear()
        launch(tuner)
        launch(tuner)
    assert seen == [(128, 4096, 4, True)] * 2
    assert machine.warps == [4, 12, 12]


def test_heuristics_of_each_configuration_are_honoured(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path
) -> None:
    tried = children(PREDICTED, TIMES)

    def layered(kernel: Any) -> Any:
        return triton.heuristics({"WHOLE": lambda args: args["M"] % args["BM"] == 0})(kernel)

    tuner = tuned([config(SMALL), config(WIDE)], checked_gemm, layered)
    with planned(tmp_path, background=False):
        launch(tuner, 4160)
        launch(tuner, 4160)
    whole = {named(c["kernel"]): "arith.cmpi slt" not in c["kernel"]["text"] for c in tried.trials[0]["candidates"]}
    assert whole == {(64, 64, 4): True, (128, 64, 4): False}
    assert [(grid, warps) for grid, warps, _ in machine.launches] == [((33, 64, 1), 4), ((33, 64, 1), 12)]
    assert [arguments[-1] for *_, arguments in machine.launches] == [False] * 2


def test_tiles_are_added_where_the_user_says_so_and_compared_with_the_lists_own(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path
) -> None:
    deep = {(256, 64, 4, None): 21.0, (64, 64, 4, None): 24.0, (128, 64, 4, None): 30.0, (128, 64, 4, TWO): 29.0}
    tried = children(deep, {**deep, (256, 64, 4, None): 12.0})
    tuner = tuned([config(SMALL), config(WIDE)])
    with planned(tmp_path, background=False, extend=True):
        launch(tuner)
        launch(tuner)
    assert {tile[:2] for tile in tried.ranked} >= {(64, 64), (128, 64), (256, 64)}
    (request,) = tried.trials
    against = {named(c["kernel"])[0]: c["against"] for c in request["candidates"] if c["planned"] is None}
    assert against == {64: None, 128: None, 256: 0}
    assert named(request["candidates"][0]["kernel"])[0] == 64, "the best of the list's own"
    assert [grid for grid, _, _ in machine.launches] == [(16, 64, 1)] * 2
    assert tuner.best_config.kwargs == {"BM": 256, "BN": 64, "BK": 32}
    assert len(tuner.configs) == 2
    with planned(tmp_path, background=False, extend=True, measure=False):
        launch(tuned([config(SMALL), config(WIDE)]))
    assert machine.launches[-1][0] != (16, 64, 1), "what cannot be compared is not added"


def test_a_winner_that_triton_knows_is_the_one_that_is_timed_as_it_is(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path
) -> None:
    tuner = tuned([config(SMALL), config(WIDE), config(LEAST, warps=8)])
    launch(tuner)
    assert tuner.cache[next(iter(tuner.cache))].kwargs["BM"] == 64
    tried = children(
        {**PREDICTED, (64, 32, 8, None): 20.0, (64, 64, 4, ONE): 90.0},
        {**TIMES, (64, 64, 4, ONE): 90.0},
    )
    with planned(tmp_path, background=False):
        launch(tuner)
        launch(tuner)
    assert (64, 32, 8, None) not in tried.compiled
    assert (64, 64, 4, None) in tried.compiled
    assert machine.warps[-1] == 12


def test_timings_on_disk_are_read(machine: Machine, tuned: Any, children: Any, tmp_path: Path) -> None:
    """With a cache of its own on disk, which holds no configuration that has a hook."""
    folder = tmp_path / "cache"
    folder.mkdir()
    with knobs.cache.scope():
        knobs.cache.dir = str(folder)

        def make() -> Any:
            return tuned([config(tile, warps, hook=None) for warps in (4, 8)], cache_results=True)

        tile = {"BM": 128, "BN": 128, "BK": 64}
        launch(make())
        first = {(128, 128, 4, None): 30.0, (128, 128, 4, TWO): 16.0}
        tried = children({**first, (128, 128, 8, None): 1.0, (128, 128, 8, TWO): 0.9}, first)
        again = make()
        with planned(tmp_path / "plans", background=False):
            launch(again)
            launch(again)
    assert again.do_bench.count == 0
    assert list(again.configs_timings.values()) == [[4.0] * 3, [8.0] * 3]
    assert (128, 128, 8, None) not in tried.compiled, "the slower one, by its timing"
    assert machine.warps[-1] == 12


@triton.jit
def adding_gemm(a, b, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([tl.program_id(0) * BM, k]), b.load([tl.program_id(1) * BN, k]).T, acc)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    tl.atomic_add(c_ptr + rows[:, None] * N + columns[None, :], acc)


def test_what_is_reset_and_restored_is_told_to_the_trial(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path
) -> None:
    tried = children(PREDICTED, TIMES)
    tuner = tuned([config(SMALL), config(WIDE)], reset_to_zero=["c_ptr"], restore_value=["b"])
    with planned(tmp_path, background=False):
        launch(tuner)  # whose stand-ins for tensors could not be zeroed: nothing of the job's own is touched
    assert tried.trials[0]["resets"] == {"zero": ["c_ptr"], "restore": ["b"], "integers": False}


def test_hooks_of_the_users_own_are_run_around_what_is_described(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, seen = children(PREDICTED, TIMES), []

    def described(*arguments: Any) -> Json:
        seen.append("described")
        return {"arguments": [], "storages": []}

    monkeypatch.setattr(list_launches, "describe", described)
    tuner = tuned(
        [config(SMALL), config(WIDE)],
        pre_hook=lambda arguments, reset_only=False: seen.append(("before", arguments["BM"])),
        post_hook=lambda arguments, exception: seen.append(("after", arguments["BM"])),
    )
    with planned(tmp_path, background=False):
        launch(tuner)
    assert tried.trials[0]["resets"]["integers"]
    assert len(seen) == 3 * 2, "once for each configuration"
    assert {tuple(seen[i : i + 3]) for i in range(0, len(seen), 3)} == {
        (("before", bm), "described", ("after", bm)) for bm in (64, 128)
    }


def test_hooks_that_replace_tensors_leave_the_list_to_triton(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children(PREDICTED, TIMES)
    storages = iter(range(100))
    monkeypatch.setattr(list_launches, "describe", lambda *a: {"arguments": [], "storages": [next(storages)]})
    tuner = tuned([config(SMALL, warps=2), config(WIDE)])
    children({**PREDICTED, (64, 64, 2, None): 24.0}, TIMES)
    with planned(tmp_path, background=False), pytest.warns(PlanWarning, match="launched on different memory"):
        launch(tuner)
    assert tuner.do_bench.count == 2


def test_a_list_in_which_nothing_can_be_planned_is_left_to_triton_for_good(
    machine: Machine, tuned: Any, children: Any, no_children: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children({(64, 64, 4, None): 24.0}, {})
    monkeypatch.setattr(decide, "run_isolated", lambda *a, **k: IsolatedResult("error", None, "CannotPlan: no", 1.0))
    tuner = tuned([config(SMALL), config(WIDE)])
    with planned(tmp_path, background=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        launch(tuner)
    assert tuner.do_bench.count == 2
    assert "no loop loads anything" in decided(tmp_path)["reason"]
    no_children()
    planned_module._tables.clear()
    again = tuned([config(SMALL), config(WIDE)])
    with planned(tmp_path, background=False):
        launch(again)
    assert again.do_bench.count == 2


def test_children_that_rank_nothing_are_not_remembered(
    machine: Machine, tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_decide, "JobPool", pooled(lambda *job: {"reason": "killed by SIGKILL"}))
    monkeypatch.setattr(list_decide, "TrialChild", trying(lambda request: IsolatedResult("ok", None, "", 1.0)))
    tuner = tuned([config(SMALL), config(WIDE)])
    said = r"could be ranked: configuration \d and 1 more: killed by SIGKILL"
    with planned(tmp_path, background=False), pytest.warns(PlanWarning, match=said):
        launch(tuner)
    assert tuner.do_bench.count == 2
    assert not list(tmp_path.glob("*.list.json"))


def test_a_kernel_without_products_starts_no_child(machine: Machine, no_children: Any) -> None:
    no_children()
    configs = [triton.Config({}, num_warps=w) for w in (4, 8)]
    tuner = triton.autotune(configs, key=["columns"], do_bench=Bench(machine))(JITFunction(kernels.softmax.fn))
    with planned(background=False), pytest.warns(PlanWarning, match="has no loads that feed a product") as caught:
        twice(lambda: tuner[(4,)](Tensor(4, 512), Tensor(4, 512), 512, BLOCK=512))
    assert len(caught) == 1
    assert tuner.do_bench.count == 2


def test_one_plan_for_all_is_for_tritons_winner(machine: Machine, tuned: Any, no_children: Any) -> None:
    tuner = tuned([config(SMALL), config(WIDE, warps=8)])
    with planned(ONE, background=False, measure=False):
        launch(tuner)
        launch(tuner)
    assert tuner.do_bench.count == 2
    assert machine.warps[-1] == 8, "four of a consumer and a producer's four"


@pytest.mark.parametrize("heuristic", [False, True])
def test_decorated_kernels_alone_are_decided_on(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path, heuristic: bool
) -> None:
    children(PREDICTED, TIMES)
    run = Autotuner.run
    tuner, other = tuned([config(SMALL), config(WIDE)]), tuned([config(SMALL), config(WIDE)])
    assert planned(tmp_path, background=False)(tuner) is tuner
    assert Autotuner.run is run
    for _ in range(2):
        launch(tuner)
        launch(other)
    assert tuner.do_bench.count == 0
    assert other.do_bench.count == 2
    assert machine.warps[-4:][::3] == [4, 4]
    assert 12 in machine.warps


def test_real_children_decide_by_prediction(
    machine: Machine, tuned: Any, no_children: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranked, compiled and launched without a GPU: the same on every rank."""
    configs = [config(LEAST), config({"BM": 128, "BN": 128, "BK": 64}), config({"BM": 256, "BN": 64})]
    tuner = tuned(configs, checked_gemm)
    with planned(tmp_path, background=False, measure=False):
        launch(tuner, k=4096, WHOLE=True)
        kept = launch(tuner, k=4096, WHOLE=True)
    found = decided(tmp_path)
    assert found["config"] == 1, "the larger of those that compile: less is loaded for each product"
    assert found["scheme"] is not None
    assert "ttg.warp_specialize" in kept.asm["ttgir"]
    assert tuner.do_bench.count == 0
    first = json.dumps(found, sort_keys=True)
    no_children()
    planned_module._tables.clear()
    with planned(tmp_path, background=False, measure=False):
        launch(tuned(configs, checked_gemm), k=4096, WHOLE=True)
    assert json.dumps(decided(tmp_path), sort_keys=True) == first


def test_idle_cores_compile_configurations_as_they_are_while_others_rank(
    machine: Machine, tuned: Any, children: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for size in (2, 16):
        planned_module._tables.clear()
        tried = children(PREDICTED, TIMES)
        monkeypatch.setattr(list_decide, "JobPool", pooled(tried.job, size))
        with planned(tmp_path / str(size), background=False):
            launch(tuned([config(SMALL), config(WIDE)]))
        assert len(tried.compiled) == len(set(tried.compiled)) == len(PREDICTED), "each once"
        assert [scheme for *_, scheme in tried.compiled[:2]].count(None) == 2
        found.append(decided(tmp_path / str(size)))
    assert found[0] == found[1], "the same on every machine"


def test_a_job_that_kills_its_child_costs_its_own_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly_jobs.py").write_text(
        "import os, time\n"
        "prepared = []\n"
        "def prepare(number):\n"
        "    prepared.append(number)\n"
        "def run(job, number):\n"
        "    if job == 'die': os.abort()\n"
        "    if job == 'hang': time.sleep(600)\n"
        "    if job == 'raise': raise ValueError('no such job')\n"
        "    return {'done': number + 10, 'prepared': prepared == [7]}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    jobs = ["work", "die", "work", "hang", "raise", "work", "work"]
    with job_pool.JobPool("deadly_jobs:prepare", 7, most=2, time_limit_s=1.0) as pool:
        found = [answer.result() for answer in [pool.submit("deadly_jobs:run", do, i) for i, do in enumerate(jobs)]]
    assert [result.get("done") for result in found] == [10, None, 12, None, None, 15, 16]
    assert all(result["prepared"] for result in found if "done" in result)
    assert "SIGABRT" in found[1]["reason"]
    assert "no answer" in found[3]["reason"]
    assert found[4]["reason"] == "ValueError: no such job"


def test_a_pool_that_is_left_gives_its_jobs_up(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    write = f"open({str(file)!r}, 'w').write(str(__import__('os').getpid())) and __import__('time').sleep(600)"
    with job_pool.JobPool("os:getpid", most=1, time_limit_s=60.0) as pool:
        given_up = pool.submit("builtins:eval", write)
        until = time.monotonic() + 60
        while not (file.exists() and file.read_text()) and time.monotonic() < until:
            time.sleep(0.02)
    assert "stopped" in given_up.result(30)["reason"]
    stat = Path(f"/proc/{file.read_text()}/stat")
    while stat.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not stat.exists()


def test_a_trial_opens_the_gpu_before_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "opening_trial.py").write_text(
        "import time\n"
        "opened = []\n"
        "def open_gpu(device):\n"
        "    if device > 3: raise RuntimeError('no such GPU')\n"
        "    opened.append(device)\n"
        "def run(request):\n"
        "    yield {'step': 'times', 'us': request['us'], 'opened': opened}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(trial_child, "OPEN", "opening_trial:open_gpu")
    monkeypatch.setattr(trial_child, "TRIAL", "opening_trial:run")
    with trial_child.TrialChild(3, 30.0) as child:
        result = child.run({"us": {"0": 5.0}})
        with child.another() as another:
            assert another.run({"us": {}}).items[0]["opened"] == [3]
    assert result.items == ({"step": "times", "us": {"0": 5.0}, "opened": [3]},)
    with trial_child.TrialChild(4, 30.0) as child:
        refused = child.run({"us": {}})
    assert (refused.status, refused.reason) == ("error", "RuntimeError: no such GPU")
    with trial_child.TrialChild(3, 30.0) as child:
        pass
    child._thread.join(60)
    assert child._child is not None
    until = time.monotonic() + 60
    while child._child.alive and time.monotonic() < until:
        time.sleep(0.02)
    assert not child._child.alive
