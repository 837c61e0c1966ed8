"""What of a list is ranked, tried and kept on disk: pure functions and files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.kernels.compiler.launching.autotuned.list_choice import (
    LEAST_UNPLANNED,
    MOST_PLANNED,
    MOST_UNPLANNED,
    Candidate,
    ranked,
    to_try,
    within_bounds,
)
from warpplan.kernels.compiler.launching.autotuned.list_decisions import (
    ListDecision,
    ListFolder,
    ListSituation,
    Tried,
    from_json,
    to_json,
)
from warpplan.kernels.compiler.launching.autotuned.list_extend import MOST_ADDED, extended
from warpplan.kernels.compiler.launching.autotuned.tuner_calls import KnownTimings
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.planner.errors import MalformedFile

TWO, ONE = HopperStrategy(2, (3,)), HopperStrategy(1, (4,))
UNKNOWN = KnownTimings()
schemes = st.builds(
    HopperStrategy, st.integers(1, 2), st.lists(st.integers(1, 8), min_size=1, max_size=1).map(tuple), st.just(4)
)
times = st.floats(0.1, 1e4)
candidates = st.lists(
    st.builds(Candidate, st.integers(0, 7), st.none() | schemes, times), max_size=40,
    unique_by=lambda c: (c.config, c.scheme),
).map(lambda found: sorted(found, key=lambda c: c.predicted_us))  # fmt: skip


def test_what_cannot_win_by_its_bound_is_left_out() -> None:
    assert within_bounds([10.0, None, 25.0, 15.0, 0.0], UNKNOWN) == [4, 0, 3]
    assert within_bounds([0.0, 0.0, None], UNKNOWN) == [0, 1], "nothing is known of a kernel without products"
    assert within_bounds([None, None], UNKNOWN) == []


def test_a_time_that_is_known_says_more_than_a_bound() -> None:
    known = KnownTimings(1, (40.0, 30.0, 90.0, float("inf")))
    assert within_bounds([10.0, 12.0, 29.0, 31.0], known) == [0, 1, 2]
    assert within_bounds([10.0, 12.0, 29.0, 31.0], KnownTimings(3)) == [0, 1, 3], "the winner is always among them"


def test_times_that_are_known_scale_what_is_predicted() -> None:
    results: dict[int, Any] = {
        0: {"strategies": [[TWO.to_json(), 8.0], [None, 10.0]]},
        1: {"strategies": [[ONE.to_json(), 5.0], [None, 6.0]]},
        2: {"strategies": [[None, None]]},
        3: {"reason": "no answer for 60 s: killed"},
        4: {"strategies": [[None, 1.0]]},
    }
    found = ranked(results, [1.0, 1.0, 6.0, 1.0, 1.0], KnownTimings(0, (20.0, 30.0, None, 1.0, float("inf"))))
    assert [(c.config, c.scheme, c.predicted_us) for c in found] == [
        (2, None, 10.0), (0, TWO, 16.0), (0, None, 20.0), (1, ONE, 25.0), (1, None, 30.0),
    ]  # fmt: skip


@given(candidates, st.integers(0, 7) | st.none())
def test_few_are_tried_each_once_and_the_best_of_each_kind(found: list[Candidate], winner: int | None) -> None:
    alike = [f"tile {config // 2}" for config in range(8)]
    planned, unplanned, spare = to_try(found, alike, KnownTimings(winner))
    assert not spare or len(planned) == MOST_PLANNED
    assert len(planned) <= MOST_PLANNED
    assert len(unplanned) <= MOST_UNPLANNED
    made = [(alike[c.config], c.scheme) for c in (*planned, *spare)]
    assert len(set(made)) == len(made)
    as_they_are = [c for c in found if c.scheme is None]
    if winner is not None:
        assert unplanned == [c for c in as_they_are if c.config == winner]
    else:
        assert unplanned == as_they_are[: len(unplanned)]
        assert len(unplanned) >= min(LEAST_UNPLANNED, len(as_they_are))
    if planned:
        assert planned[0] == next(c for c in found if c.scheme is not None)


def test_the_best_of_each_tile_and_family_comes_first() -> None:
    found = [
        Candidate(0, TWO, 1.0), Candidate(0, replace(TWO, depths=(4,)), 1.1), Candidate(1, TWO, 1.15),
        Candidate(2, ONE, 1.2), Candidate(2, None, 1.3),
    ]  # fmt: skip
    planned, *_ = to_try(found, ["large", "large", "small"], UNKNOWN)
    assert [(c.config, c.predicted_us) for c in planned] == [(0, 1.0), (2, 1.2), (0, 1.1)]


def test_one_tile_does_not_take_all_trials_where_another_may_win() -> None:
    schemes = [HopperStrategy(1, (6,), warps, 1, persistent) for persistent in (1, 0) for warps in (4, 8)]
    large = [Candidate(0, scheme, 1.0 + i / 100) for i, scheme in enumerate([*schemes, TWO])]
    found = [*large, Candidate(1, ONE, 1.06), Candidate(1, TWO, 1.07), Candidate(1, None, 1.08)]
    planned, _, spare = to_try(found, ["large", "small"], UNKNOWN)
    assert [c.config for c in planned] == [0, 0, 0, 1, 1]
    assert spare == large[3:]
    alone, _, more = to_try([c for c in found if c.config == 0 or c.scheme is None], ["large", "small"], UNKNOWN)
    assert (alone, more) == (large, []), "nothing else is worth trying"


SITUATION = ListSituation("my.gemm", "abc", "(4096,)", ("BM: 64", "BM: 128"), "NVIDIA H200", "570.1", "3.6.0", "0.2")
DECISION = ListDecision(
    SITUATION, 1, TWO, "", (Tried(1, TWO, 10.0), Tried(1, None, 14.0), Tried(0, None, None, "hang"))
)
decisions = st.builds(
    ListDecision, st.just(SITUATION), st.none() | st.integers(0, 1), st.none() | schemes, st.text(max_size=20),
    st.lists(
        st.builds(Tried, st.integers(0, 1), st.none() | schemes, st.none() | times, st.text(max_size=9)), max_size=4
    ).map(tuple),
)  # fmt: skip


@given(decisions)
def test_a_decision_on_a_list_is_read_as_it_was_written(decision: ListDecision) -> None:
    assert from_json(json.loads(json.dumps(to_json(decision))), "here") == decision


def test_a_decision_says_what_it_gains() -> None:
    assert "(BM: 128), 2 x 4 warps, 3 slots, in flight, 1.40x as fast" in str(DECISION)
    assert "left to Triton's own tuning: no loop" in str(ListDecision(SITUATION, None, None, "no loop"))
    assert str(ListDecision(SITUATION, 0)) == "my.gemm: (BM: 64), as it is"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", "warpplan/kernel-plan-1"), ("key", "0" * 64), ("config", 2), ("config", True), ("config", "1"),
        ("scheme", {"consumers": 9, "depths": [3]}), ("tried", [{"config": 0}]), ("tried", 3),
        ("tried", [{"config": 0, "scheme": None, "us": float("nan"), "reason": ""}]), ("situation", {"kernel": "x"}),
    ],
)  # fmt: skip
def test_nonsense_is_no_decision_on_a_list(field: str, value: object) -> None:
    with pytest.raises(MalformedFile, match="here"):
        from_json({**to_json(DECISION), field: value}, "here")


def test_every_field_of_a_list_counts() -> None:
    changed = {replace(SITUATION, **{name: "other"}).digest for name in SITUATION.__dict__ if name != "configs"}
    swapped = replace(SITUATION, configs=SITUATION.configs[::-1]).digest
    assert len(changed | {SITUATION.digest, swapped}) == len(SITUATION.__dict__) + 1


def test_lists_are_decided_once_and_measurements_outrank_predictions(tmp_path: Path) -> None:
    folder, predicted = ListFolder(tmp_path), ListDecision(SITUATION, 0)
    assert folder.load(SITUATION) is None
    assert folder.settle(predicted) == predicted
    assert folder.settle(DECISION) == DECISION
    assert folder.settle(predicted) == folder.settle(replace(DECISION, config=0)) == DECISION == folder.load(SITUATION)
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text()[:-30])
    with pytest.raises(MalformedFile, match=f"{file.name}.*delete it"):
        folder.load(SITUATION)
    (tmp_path / "file").write_text("")
    assert ListFolder(tmp_path / "file" / "below").settle(DECISION) == DECISION


class Config:
    """As much of a ``triton.Config`` as is read."""

    def __init__(self, kwargs: dict[str, Any], num_warps: int = 4, **more: Any) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, more.get("num_stages", 3)
        self.num_ctas, self.maxnreg, self.pre_hook = 1, None, more.get("pre_hook")


@given(st.lists(st.tuples(st.sampled_from([16, 64, 128, 256]), st.sampled_from([32, 64])), min_size=2, max_size=6))
def test_tiles_that_are_added_are_neighbours(tiles: list[tuple[int, int]]) -> None:
    listed = [Config({"BM": m, "BK": k, "GROUP": 8, "EVEN": True, "SPLIT": 1}, 8, pre_hook=len) for m, k in tiles]
    found = extended(listed)
    assert found[: len(listed)] == listed
    added = found[len(listed) :]
    assert len(added) <= MOST_ADDED
    made = [(config.kwargs["BM"], config.kwargs["BK"]) for config in added]
    assert len({*made, *tiles}) == len(made) + len(set(tiles))
    for config, (m, k) in zip(added, made, strict=True):
        assert any((m in (2 * a, a // 2) and k == b) or (m == a and k in (2 * b, b // 2)) for a, b in tiles)
        assert (config.kwargs["GROUP"], config.kwargs["EVEN"], config.kwargs["SPLIT"]) == (8, True, 1)
        assert (config.num_warps, config.pre_hook) == (8, len)
    if len({m for m, _ in tiles}) == 1:
        assert {m for m, _ in made} <= {m for m, _ in tiles}, "a size that the list does not vary is no tile's"
