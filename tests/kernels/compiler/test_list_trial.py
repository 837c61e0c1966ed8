"""What the child of a list's trial does, with Python functions for kernels: on the CPU, where torch is."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("triton", reason="needs triton")

from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from warpplan.kernels.compiler.exceptions import CannotPlan  # noqa: E402
from warpplan.kernels.compiler.launching.arguments import Copies, Storages, describe  # noqa: E402
from warpplan.kernels.compiler.launching.autotuned.list_children import list_trial  # noqa: E402
from warpplan.kernels.compiler.launching.autotuned.list_children.list_trial import ListBench, ResetCopies  # noqa: E402
from warpplan.planner.errors import MeasurementFailed  # noqa: E402

Json = dict[str, Any]
NAMES = ["x", "y", "count"]
NO_RESETS: Json = {"zero": [], "restore": [], "integers": False}


class BenchOnCpu(ListBench):
    """Runs "kernels" that are Python functions of (x, y, count)."""

    def __init__(self, folder: Path, unplanned: Any, resets: Json = NO_RESETS) -> None:
        base = torch.zeros(64, 64)
        values = {
            "x": TensorDescriptor.from_tensor(base, [16, 16]), "y": torch.zeros(64, 64),
            "count": torch.zeros(4, dtype=torch.int32),
        }  # fmt: skip
        self._arguments = json.loads(json.dumps(describe(values, set(), Storages(folder))))
        self._names, self._resets, self._unplanned = NAMES, resets, unplanned

    def _made(self, seed: int = 0, memory: Copies | None = None) -> ResetCopies:
        return ResetCopies(
            self._arguments, self._names, self._resets, device="cpu", seed=seed, magnitude=self.magnitude, memory=memory
        )

    def _launch(self, kernel: Any, copies: Copies, *, wait: bool = True) -> None:
        assert isinstance(copies, ResetCopies)
        copies.reset()
        kernel(*copies.values)

    def sets(self, wanted: int) -> int:
        return wanted

    def load(self, planned: Any) -> None:
        """There are no launchers."""


def accumulate(x: Any, y: Any, count: Any) -> None:
    y += 2 * x.base
    count += 1


def once(x: Any, y: Any, count: Any) -> None:
    """Right where ``y`` starts at zero and ``count`` as it was."""
    assert not count.any()
    y.copy_(2 * x.base)
    count += 1


def test_a_planned_kernel_is_compared_with_its_own_configuration(tmp_path: Path) -> None:
    bench = BenchOnCpu(tmp_path, accumulate)
    bench.run_and_check(None)
    bench.run_and_check(lambda x, y, count: (y.add_(x.base + x.base), count.add_(1)))
    with pytest.raises(CannotPlan, match="first planned launch computes something else"):
        bench.run_and_check(lambda x, y, count: (y.add_(x.base), count.add_(1)))


def test_a_tile_that_was_added_is_compared_with_one_of_the_list(tmp_path: Path) -> None:
    listed = BenchOnCpu(tmp_path, accumulate)
    BenchOnCpu(tmp_path, lambda x, y, count: (y.add_(x.base + x.base), count.add_(1))).run_and_check(None, listed)
    with pytest.raises(CannotPlan, match="first planned launch computes something else"):
        BenchOnCpu(tmp_path, lambda x, y, count: (y[:60].add_(2 * x.base[:60]), count.add_(1))).run_and_check(
            None, listed
        )
    with pytest.raises(CannotPlan, match="no configuration of the list is left"):
        list_trial._against({"against": 0}, {1: listed})


def test_what_the_tuner_resets_is_reset_before_each_launch(tmp_path: Path) -> None:
    resets = {"zero": ["y"], "restore": ["count"], "integers": False}
    BenchOnCpu(tmp_path, accumulate, resets).run_and_check(once)
    BenchOnCpu(tmp_path, accumulate, {**resets, "restore": [], "integers": True}).run_and_check(once)
    with pytest.raises(CannotPlan, match="something else"):
        BenchOnCpu(tmp_path, accumulate).run_and_check(
            lambda x, y, count: (y.copy_(2 * x.base), count.add_(1))
        )  # fmt: skip


def test_a_descriptors_tensor_is_restored(tmp_path: Path) -> None:
    def spoils(x: Any, y: Any, count: Any) -> None:
        y.copy_(x.base)
        x.base.mul_(3)

    bench = BenchOnCpu(tmp_path, spoils, {"zero": [], "restore": ["x"], "integers": False})
    bench.run_and_check(spoils)
    copies = bench.on(bench._copies())
    before = copies.values[0].base.clone()
    for _ in range(2):
        copies.reset()
        spoils(*copies.values)
    assert torch.equal(copies.values[1], before), "each launch reads what the first one read"


def test_configurations_share_memory_and_keep_their_own_blocks(tmp_path: Path) -> None:
    first, second = (BenchOnCpu(tmp_path, accumulate) for _ in range(2))
    second._arguments["arguments"][0]["block_shape"] = [32, 32]
    memory = first._copies()
    other = second.on(memory)
    assert other.values[1].data_ptr() == memory.values[1].data_ptr()
    assert (memory.values[0].block_shape, other.values[0].block_shape) == ([16, 16], [32, 32])


@pytest.fixture
def on_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The child's functions over Python functions for kernels, timed by how many there are."""
    timed: list[Any] = []

    def times(benches: Json, planned: Json, *, warm_s: float = 0.2) -> dict[str, float]:
        timed.append(sorted(benches))
        return {str(number): 10.0 + number for number in benches}

    def benched(candidate: Json, resets: Json, *, beside: bool) -> BenchOnCpu:
        return BenchOnCpu(tmp_path, candidate["kernel"])

    monkeypatch.setattr(list_trial, "benched", benched)
    monkeypatch.setattr(list_trial, "_planned", lambda candidate: candidate["planned"])
    monkeypatch.setattr(list_trial, "times", times)
    return timed


def request(*planned: Any, right: tuple[int, ...] = (), dropped: tuple[int, ...] = (), beside: bool = False) -> Json:
    candidates = [{"kernel": accumulate, "planned": kernel, "against": None} for kernel in planned]
    return {"candidates": candidates, "right": right, "dropped": dropped, "resets": NO_RESETS, "beside": beside}


def wrong(x: Any, y: Any, count: Any) -> None:
    y.fill_(7)


def lost(x: Any, y: Any, count: Any) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def short(x: Any, y: Any, count: Any) -> None:
    raise RuntimeError("out of resource: threads")


def test_what_the_child_of_a_list_streams(on_cpu: list[Any]) -> None:
    items = list(list_trial.tried(request(None, accumulate, wrong, short, accumulate, right=(4,))))
    steps = [(item["step"], item.get("candidate")) for item in items]
    assert steps == [
        ("start", None), ("check", 0), ("right", 0), ("check", 1), ("right", 1), ("check", 2), ("failed", 2),
        ("check", 3), ("failed", 3), ("time", None), ("times", None),
    ]  # fmt: skip
    assert "something else" in items[6]["reason"]
    assert "out of resource" in items[8]["reason"]
    assert items[-1]["us"] == {"0": 10.0, "1": 11.0, "4": 14.0}
    assert on_cpu == [[0, 1, 4]]


def test_a_lost_context_ends_the_child_at_its_candidate(on_cpu: list[Any]) -> None:
    items: list[Json] = []
    with pytest.raises(RuntimeError, match="CUDA error"):
        collections.deque(map(items.append, list_trial.tried(request(None, lost, accumulate))), maxlen=0)
    assert items[-1] == {"step": "check", "candidate": 1}
    again = list(list_trial.tried(request(None, lost, accumulate, right=(0,), dropped=(1,))))
    assert again[-1]["us"] == {"0": 10.0, "2": 12.0}


def test_a_candidate_whose_timing_fails_takes_no_other_with_it(
    on_cpu: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def times(benches: Json, planned: Json) -> dict[str, float]:
        on_cpu.append(sorted(benches))
        if 1 in benches:
            raise MeasurementFailed("1: RuntimeError: no memory in a capture", field="candidate", value="1")
        return {str(number): 10.0 * (number + 1) for number in benches}

    monkeypatch.setattr(list_trial, "times", times)
    items = list(list_trial.tried(request(None, accumulate, accumulate, right=(0, 1, 2))))
    assert [item["step"] for item in items] == ["start", "time", "untimed", "times"]
    assert (items[2]["candidate"], items[3]["us"]) == (1, {"0": 10.0, "2": 30.0})
    assert "no memory" in items[2]["reason"]
    assert on_cpu == [[0, 1, 2], [0, 2]]


def test_a_lost_context_while_timing_ends_the_child(on_cpu: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def times(benches: Json, planned: Json) -> dict[str, float]:
        raise MeasurementFailed("0: RuntimeError: CUDA error: unspecified", field="candidate", value="0")

    monkeypatch.setattr(list_trial, "times", times)
    with pytest.raises(MeasurementFailed, match="CUDA error"):
        list(list_trial.tried(request(None, right=(0,))))


def test_times_are_taken_on_shared_sets_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import warpplan.kernels.timing as timing

    launched: list[tuple[str, int]] = []

    def paired(candidates: Json, *, sets: int, rounds: int, warm_s: float, settle_s: float) -> dict[str, Any]:
        assert (rounds, warm_s, settle_s) == (list_trial.ROUNDS, list_trial.WARM_S, 0.0)
        for name, call in candidates.items():
            for at in range(sets):
                call(at)
                launched.append((name, at))
        return {name: timing.summarize([float(name) + 1]) for name in candidates}

    class Properties:
        L2_cache_size = 16_384

    monkeypatch.setattr(timing, "paired", paired)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: Properties)
    benches = {number: BenchOnCpu(tmp_path, accumulate) for number in (0, 3)}
    found = list_trial.times(benches, {0: None, 3: accumulate})
    assert found == {"0": 1.0, "3": 4.0}
    assert len(launched) == 2 * len({at for _, at in launched}) > 2
    assert list_trial.times({}, {}) == {}


def test_those_that_lie_close_are_timed_again_each_alone_for_a_while(
    on_cpu: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = {0: 100.0, 1: 99.0, 2: 200.0, 3: 104.0}

    def times(
        benches: Json, planned: Json, *, rounds: int = 20, warm_s: float = 0.5, settle_s: float = 0.0
    ) -> dict[str, float]:
        on_cpu.append((sorted(benches), rounds, warm_s, settle_s))
        return {str(number): mixed[number] + (10.0 if len(benches) < 4 and number == 1 else 0) for number in benches}

    monkeypatch.setattr(list_trial, "times", times)
    items = list(list_trial.tried(request(None, accumulate, accumulate, accumulate, right=(0, 1, 2, 3))))
    assert [item["us"] for item in items if item["step"] == "times"] == [
        {"0": 100.0, "1": 99.0, "2": 200.0, "3": 104.0}, {"0": 100.0, "1": 109.0, "3": 104.0},
    ]  # fmt: skip
    last = list_trial.FINAL_ROUNDS, 0.0, list_trial.SETTLE_S
    assert on_cpu == [([0, 1, 2, 3], 20, 0.5, 0.0), ([0, 1, 3], *last)]
    assert list_trial.finalists({"0": 1.0, "1": 2.0}) == [0]
    assert len(list_trial.finalists({str(n): 1.0 for n in range(9)})) == list_trial.MOST_FINALISTS


def test_beside_a_job_it_is_timed_once_and_in_brief(
    on_cpu: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import warpplan.kernels.timing as timing

    called: list[Json] = []

    def paired(candidates: Json, **terms: Any) -> dict[str, Any]:
        called.append(terms)
        disturbed = {name: [float(name) + 1, float(name) + 1, *[100.0] * 8] for name in candidates}
        return {name: timing.summarize(samples) for name, samples in disturbed.items()}

    monkeypatch.setattr(timing, "paired", paired)
    items = list(list_trial.tried(request(None, accumulate, accumulate, beside=True)))
    (found,) = (item for item in items if item["step"] == "times")
    assert found["us"] == {"0": 1.0, "1": 2.0, "2": 3.0}, "of the rounds that no job disturbed"
    assert called == [
        {
            "sets": list_trial.BRIEF_SETS, "rounds": list_trial.BRIEF_ROUNDS,
            "round_ms": list_trial.BRIEF_ROUND_MS, "warm_s": list_trial.BRIEF_WARM_S,
        }
    ]  # fmt: skip
    assert on_cpu == []
    assert all(item["gpu_s"] >= 0 for item in items if item["step"] in ("right", "times"))


def test_a_kernel_that_overflows_is_compared_on_smaller_numbers(tmp_path: Path) -> None:
    def grows(x: Any, y: Any, count: Any) -> None:
        y.copy_(torch.exp(torch.exp(8 * x.base.abs().clamp(min=0.5 * x.base.abs().mean()))))

    bench = BenchOnCpu(tmp_path, grows)
    bench.run_and_check(grows)
    assert bench.magnitude < 1.0
    assert float(bench._copies().values[0].base.std()) == pytest.approx(bench.magnitude, rel=0.1)
    with pytest.raises(CannotPlan, match="something else"):
        bench.run_and_check(lambda x, y, count: y.copy_(x.base))


def test_a_kernel_whose_own_results_differ_is_said_to_be_so(tmp_path: Path) -> None:
    launches: list[int] = []

    def races(x: Any, y: Any, count: Any) -> None:
        launches.append(1)
        y.copy_(x.base * len(launches))

    with pytest.raises(CannotPlan, match="at each launch as it is"):
        BenchOnCpu(tmp_path, races).run_and_check(once)
