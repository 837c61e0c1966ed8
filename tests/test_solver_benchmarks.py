"""The solver's benchmark and its ablation: rows of the right form, runs that go on where they stopped."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import bench_ablation
import bench_solver
from bench_ablation import SearchEnd
from heldout.generator import heldout_loop
from loop_splits import loops
from results_file import write
from row_store import RowStore, of_shard, shard

from warpplan.planner.solve import solve
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.search_params import SearchParams

TINY = heldout_loop("convolution", 14)
"""Five operations, decided in milliseconds."""
SETTINGS = {"work_limit_s": 1.0}


# Rows that are kept


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    out = tmp_path / "result.json"
    RowStore(out, ("loop",), SETTINGS).add({"loop": "a", "ii": 1})
    with out.with_suffix(".partial.jsonl").open("a") as file:
        file.write('{"loop": "b", "i')  # The process ended while it wrote.
    again = RowStore(out, ("loop",), SETTINGS)
    assert set(again.rows()) == {("a",)}
    assert set(again.add({"loop": "b", "ii": 2})) == {("a",), ("b",)}
    again.write({"bench": "solver"}, list(again.rows().values()), complete=True)
    assert [row["ii"] for row in json.loads(out.read_text())["rows"]] == [1, 2]
    assert not out.with_suffix(".partial.jsonl").exists()


def test_rows_of_some_loops_take_the_place_of_recorded_ones(tmp_path):
    out = tmp_path / "solver.json"
    write(out, {"bench": "solver", "rows": [{"loop": "a", "ii": 1}, {"loop": "b", "ii": 2}]})
    store = RowStore(out, ("loop",), SETTINGS)
    assert store.beside_recorded() == [{"loop": "a", "ii": 1}, {"loop": "b", "ii": 2}]
    store.add({"loop": "b", "ii": 3})
    store.add({"loop": "c", "ii": 4})
    assert store.beside_recorded() == [{"loop": "a", "ii": 1}, {"loop": "b", "ii": 3}, {"loop": "c", "ii": 4}]


def test_rows_of_other_settings_do_not_mix(tmp_path):
    out = tmp_path / "result.json"
    RowStore(out, ("loop",), SETTINGS).add({"loop": "a"})
    with pytest.raises(SystemExit, match="--fresh"):
        RowStore(out, ("loop",), {"work_limit_s": 2.0})
    assert RowStore(out, ("loop",), {"work_limit_s": 2.0}, fresh=True).rows() == {}


def test_shards_share_the_tasks_out():
    tasks = list(range(7))
    assert sorted(of_shard(tasks, (1, 3)) + of_shard(tasks, (2, 3)) + of_shard(tasks, (3, 3))) == tasks
    assert shard("2/3") == (2, 3)
    for wrong in ("0/2", "3/2", "1", "a/b"):
        with pytest.raises(Exception, match="I/N"):
            shard(wrong)


# The solver's rows


def test_a_row_of_the_solver(tmp_path, monkeypatch, capsys):
    out = tmp_path / "solver.json"
    arguments = ["bench_solver.py", "--only", "#14", "--split", "heldout", "--work-limit-s", "1", "--repeats", "1"]
    monkeypatch.setattr(bench_solver, "loops", lambda split: {TINY.name: TINY} if split == "heldout" else {})
    monkeypatch.setattr(sys, "argv", [*arguments, "--out", str(out)])
    bench_solver.main()
    result = json.loads(out.read_text())
    assert result["bench"] == "solver"
    assert {"device", "versions", "date", "command"} < set(result)
    (row,) = result["rows"]
    assert (row["split"], row["loop"], row["operations"]) == ("heldout", TINY.name, len(TINY.ops))
    assert row["status"] == "optimal"
    assert row["min_ii"] <= row["bound"] == row["ii"]
    assert row["violations"] == []
    assert row["ii"] <= row["schedule_first"]["bound"]
    figures = result["summary"]["heldout"]
    assert (figures["loops"], figures["proven"], figures["joint_longer"]) == (1, 1, [])
    assert "train" not in result["summary"]
    assert "optimal" in capsys.readouterr().out


def test_a_longer_limit_is_compared_with_what_a_shorter_one_left(tmp_path, monkeypatch):
    """A loop was left with three times the interval it can have; another had its proof, and is not solved again."""
    earlier, out = tmp_path / "solver.json", tmp_path / "longer.json"
    best = bench_solver.measure(TINY, "heldout", 1.0, 1)[0]["ii"]
    rows = [{"loop": TINY.name, "status": "feasible", "ii": 3 * best}, {"loop": "#2", "status": "optimal", "ii": 7}]
    earlier.write_text(json.dumps({"rows": rows}))
    arguments = ["bench_solver.py", "--unproven-in", str(earlier), "--repeats", "1", "--no-baseline", "--out", str(out)]
    both = {TINY.name: TINY, "#2": replace(TINY, name="#2")}
    monkeypatch.setattr(bench_solver, "loops", lambda split: both if split == "heldout" else {})
    monkeypatch.setattr(sys, "argv", arguments)
    bench_solver.main()
    result = json.loads(out.read_text())
    assert [row["loop"] for row in result["rows"]] == [TINY.name]
    figures = result["summary"]["heldout"]
    assert (figures["earlier_gap_median"], figures["earlier_gap_worst"]) == (2.0, 2.0)


def test_a_loop_with_memory_to_spare_begins_near_its_bound():
    """A practice loop at whose bound no schedule is found: one is constructed half as long again."""
    graph = loops("practice")["optimiser hopper 2048 x2 #10"]
    short = SolveOptions(work_limit_s=1.2)
    bare = SearchParams(driver=replace(SearchParams().driver, spare_memory_ladder=()))
    found, without = (solve(graph, options) for options in (short, replace(short, search=bare)))
    assert found.plan.schedule.ii_cycles <= 1.5 * found.bound < 2 * found.bound < without.plan.schedule.ii_cycles


def test_the_summary_counts_gaps_and_percentiles():
    proven = {
        "status": "optimal", "ii": 100, "bound": 100, "wall_s": 0.5, "cpu_s": 0.5, "violations": [],
    }  # fmt: skip
    left_open = proven | {"status": "feasible", "ii": 110, "wall_s": 9.0}
    found = bench_solver.summary([proven, left_open, proven | {"status": "infeasible", "ii": None, "wall_s": 2.0}])
    assert (found["proven"], found["proven_within_1s"], found["optimal"], found["infeasible"]) == (2, 1, 1, 1)
    assert (found["gap_mean"], found["gap_worst"]) == (0.1, 0.1)
    assert (found["median_wall_s"], found["worst_wall_s"]) == (2.0, 9.0)
    assert bench_solver.percentile(range(1, 11), 0.9) == 9


# The ablation


def test_every_switch_of_the_search_but_speculation_has_a_variant():
    chosen = bench_ablation.variants(bench_ablation.techniques())
    switches = {name for name, value in vars(SearchParams()).items() if value is True}
    assert {name.removeprefix("without ") for name in chosen} == (switches - {"speculation"}) | {"default"}
    for name, params in chosen.items():
        assert params.speculation is False
        if name != "default":
            assert getattr(params, name.removeprefix("without ")) is False
            assert replace(params, **{name.removeprefix("without "): True}) == chosen["default"]


@pytest.mark.parametrize("name", bench_ablation.CONSTANTS)
def test_constants_are_doubled_and_halved(name):
    group, _, constant = name.partition(".")
    value = getattr(getattr(bench_ablation.BASE, group), constant)
    for factor in (0.5, 2):
        changed = getattr(getattr(bench_ablation.scaled(name, factor), group), constant)
        assert type(changed) is type(value)
        assert changed == pytest.approx(factor * value, rel=0.3)


def test_a_row_of_the_ablation(tmp_path, monkeypatch):
    out = tmp_path / "ablation.json"
    monkeypatch.setattr(bench_ablation, "loops", lambda split: {TINY.name: TINY} if split == "heldout" else {})
    monkeypatch.setattr(sys, "argv", ["bench_ablation.py", "--work-limit-s", "1", "--out", str(out),
                                      "--techniques", "tie_break", "retiming"])  # fmt: skip
    bench_ablation.main()
    result = json.loads(out.read_text())
    (row,) = result["rows"]
    default = bench_ablation.of_row(row, "default")
    assert default.proven
    assert default.work_s < 1
    assert bench_ablation.searched(TINY, bench_ablation.BASE, 1.0) == default, "the work does not depend on the clock"
    assert set(result["summary"]) == {"default", "without tie_break", "without retiming"}
    assert result["summary"]["without retiming"]["heldout"]["loops"] == 1
    assert bench_ablation.open_loops(out) == set()
    monkeypatch.setattr(sys, "argv", ["bench_ablation.py", "--report", "--out", str(out)])
    bench_ablation.main()
    assert json.loads(out.read_text()) == result


def test_better_and_worse_are_told_apart():
    rows = [
        {"split": "train", "found": {"default": [100, 100, 1.0, 3, False], "off": found}}
        for found in ([100, 100, 1.0, 3, False], [110, 100, 2.0, 3, False], [None, 90, 2.0, 0, False])
    ]
    figures = bench_ablation.summary(rows, ["off"])["off"]["train"]
    assert (figures["better"], figures["worse"], figures["equal"]) == (0, 2, 1)
    assert (figures["ii_sum"], figures["ii_sum_default"], figures["longer"]) == (210, 200, 1)
    assert (figures["proven"], figures["proven_default"], figures["without_plan"]) == (1, 3, 1)
    assert figures["ii_ratio_mean"] == pytest.approx(1.1**0.5, abs=1e-4)
    assert bench_ablation.helps(figures)


def test_what_never_had_a_part_is_told_from_what_helps_nothing():
    default, other = [100, 100, 1.0, 3, False], [100, 100, 1.0, 4, False]
    row = {"split": "train", "found": {"default": default, "without a": other}}
    found = bench_ablation.conclusions([row], ["default", "without a", "without b"])
    assert (found["helps_none"], found["never_used"]) == (["without a"], ["without b"])


def test_what_makes_no_difference_helps_nothing():
    row = {"split": "train", "found": {"default": [100, 100, 1.0, 3, False], "off": [100, 100, 1.005, 4, False]}}
    assert not bench_ablation.helps(bench_ablation.summary([row], ["off"])["off"]["train"])
    slower = {"split": "train", "found": {**row["found"], "off": [100, 100, 1.5, 3, False]}}
    assert bench_ablation.helps(bench_ablation.summary([slower], ["off"])["off"]["train"])


def test_a_proof_of_infeasibility_ranks_before_an_open_end():
    assert SearchEnd(None, 500, 1.0, infeasible=True).proven
    assert SearchEnd(None, 500, 1.0, infeasible=True).rank < SearchEnd(None, 400, 1.0).rank
    assert SearchEnd(100, 99, 1.0).rank < SearchEnd(100, 98, 1.0).rank < SearchEnd(101, 101, 1.0).rank
