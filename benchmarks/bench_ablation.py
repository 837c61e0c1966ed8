"""What each technique of the search is worth: writes ``benchmarks/results/solver_ablation.json``.

Every loop of both splits (``loop_splits.py``) is searched with the default parameters and once with each technique
switched off (the booleans of ``SearchParams``), with ``--constants`` also with some constants halved and doubled. All
searches have the same work budget, counted in deterministic time and in the size of models: what else the machine does
changes nothing. They run on one thread: speculation changes no answer, and so is not among the techniques here.

Per loop and variant: the smallest interval found, the bound proven, the work in seconds of a slow core, the stages of
the schedule and the slots of its rings. A variant whose search went exactly as the default is left out of a row. The
summary counts, per technique and split, the loops proven, and those that are better and worse than with the default: a
shorter interval, or the same interval with a better bound.

Some techniques have no part in such a run, and get one of their own:

- what begins only after the first rounds (``bound_bisection``), with more work on the loops left open: ``--open-in
  benchmarks/results/solver_ablation.json --work-limit-s 5 --techniques bound_bisection --out
  benchmarks/results/solver_ablation_open.json``;
- what serves loops of dependences and units alone (``core_feasibility``), on those of ``modulo_instances.py``:
  ``--split modulo --out benchmarks/results/solver_ablation_modulo.json``.

The recorded files name four techniques more, which are gone because they helped no split: ``fixed_order``, a start
from the order of the schedule-first baseline; ``thorough_proofs``, proofs with presolve and linear relaxations;
``core_bound``, a bound from recurrences on shared units without search; and ``unit_alternation``, partitions that
alternate on units that are busy all the time.

Run it with ``python benchmarks/bench_ablation.py``, ``--shard 1/2`` and ``2/2`` for two processes. An interrupted run
goes on where it stopped; the result file has the loops finished so far.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from pathlib import Path
from unittest.mock import patch

from heldout.generator import FAMILIES
from loop_splits import SPLITS, loops
from modulo_instances import instances
from planning_speed import cpu_name
from results_file import RESULTS, head, read_rows, write
from row_store import Row, RowStore, add_arguments, of_shard

from warpplan.planner.bounds.min_ii import min_ii
from warpplan.planner.cpsat.work_budget import WorkBudget
from warpplan.planner.errors import Infeasible
from warpplan.planner.packing.ring_layout import require_capacity
from warpplan.planner.problem.assignment import rings, slots
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.partition_sizes import check_given
from warpplan.planner.search import search_state
from warpplan.planner.search.ii_search import search
from warpplan.planner.values.deadline import Deadline
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.search_params import SearchParams

WORK_LIMIT_S = 1.0
DEFAULT = "default"
BASE = replace(SearchParams(), speculation=False)
CONSTANTS = ("attempts.stage_window", "driver.attempt_seconds", "driver.proof_attempts", "driver.precision")
"""Those that are halved and doubled."""
SETS = (*SPLITS, "modulo")


@dataclass(frozen=True)
class SearchEnd:
    """Where one search ended. ``ii`` is None without a schedule; it is proven where it equals ``bound``, and where
    ``infeasible`` says that there is none."""

    ii: int | None
    bound: int
    work_s: float
    stages: int = 0
    infeasible: bool = False
    slots: int = 0

    @property
    def proven(self) -> bool:
        return self.infeasible or self.ii == self.bound

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Smaller is better."""
        return not (self.infeasible or self.ii is not None), self.ii or 0, 0 if self.infeasible else -self.bound


def techniques() -> list[str]:
    """The switches of :class:`SearchParams`, in its order."""
    return [f.name for f in fields(SearchParams) if isinstance(getattr(BASE, f.name), bool) and getattr(BASE, f.name)]


def variants(names: Sequence[str], *, constants: bool = False) -> dict[str, SearchParams]:
    """The default, and one change each."""
    found = {DEFAULT: BASE}
    found |= {f"without {name}": replace(BASE, **{name: False}) for name in names}
    for name in CONSTANTS if constants else ():
        found |= {f"{name} x{factor}": scaled(name, factor) for factor in (0.5, 2)}
    return found


def scaled(name: str, factor: float) -> SearchParams:
    """The default with the constant ``group.name`` times ``factor``, whole and at least 1 where it is whole."""
    group_name, _, constant = name.partition(".")
    group = getattr(BASE, group_name)
    value = getattr(group, constant)
    changed = max(1, round(value * factor)) if isinstance(value, int) else value * factor
    return replace(BASE, **{group_name: replace(group, **{constant: changed})})


@contextmanager
def budgets() -> Iterator[list[tuple[float, WorkBudget]]]:
    """The work budgets that searches begin with inside, each with what it began with: the search's own, and that of the
    search without resources whose order it tries."""
    found: list[tuple[float, WorkBudget]] = []

    def recorded(left: float, deadline: Deadline) -> WorkBudget:
        budget = WorkBudget(left, deadline)
        found.append((left, budget))
        return budget

    with patch.object(search_state, "WorkBudget", recorded):
        yield found


def searched(graph: DependenceGraph, params: SearchParams, work_limit_s: float) -> SearchEnd:
    """One search within ``work_limit_s``."""
    problem = Problem(graph, SolveOptions(work_limit_s=work_limit_s, search=params))
    try:
        check_given(problem)
        require_capacity(problem)
        bound = min_ii(problem)
    except Infeasible:
        return SearchEnd(None, 0, 0.0, infeasible=True)
    with budgets() as given:
        result = search(problem, bound)
    work = round(sum(work_limit - budget.left for work_limit, budget in given), 4)
    if result.best is None:
        return SearchEnd(None, result.bound, work, infeasible=result.infeasible)
    starts = result.best.starts
    stages = 1 + (max(starts) - min(starts)) // result.ii_cycles
    deep = sum(slots(problem, result.ii_cycles, result.best, ring) for ring in rings(problem, result.best))
    return SearchEnd(result.ii_cycles, result.bound, work, stages, slots=deep)


def measure(split: str, graph: DependenceGraph, chosen: dict[str, SearchParams], work_limit_s: float) -> Row:
    """A loop's row; a variant that went as the default is left out."""
    found = {name: searched(graph, params, work_limit_s) for name, params in chosen.items()}
    default = found[DEFAULT]
    return {
        "kernel": graph.name.split()[0],
        "split": split,
        "loop": graph.name,
        "operations": len(graph.ops),
        "found": {name: columns(f) for name, f in found.items() if name == DEFAULT or f != default},
    }


def columns(found: SearchEnd) -> list[int | float | bool | None]:
    return [found.ii, found.bound, found.work_s, found.stages, found.infeasible, found.slots]


def of_row(row: Row, variant: str) -> SearchEnd:
    return SearchEnd(*row["found"].get(variant, row["found"][DEFAULT]))


def summary(rows: Sequence[Row], names: Sequence[str]) -> dict[str, dict[str, Row]]:
    """Per variant, per split."""
    splits = {split: [row for row in rows if row["split"] == split] for split in SETS}
    return {name: {split: figures(of, name) for split, of in splits.items() if of} for name in names}


def figures(rows: Sequence[Row], variant: str) -> Row:
    """``ii_sum`` and ``ii_sum_default`` are over the loops that have a schedule both ways, ``ii_ratio_mean`` is the
    geometric mean of their ratios: in the sum, a few loops that are far from proven outweigh all others."""
    pairs = [(of_row(row, DEFAULT), of_row(row, variant)) for row in rows]
    both = [(d, v) for d, v in pairs if d.ii is not None and v.ii is not None]
    return {
        "loops": len(pairs),
        "proven": sum(v.proven for _, v in pairs),
        "proven_default": sum(d.proven for d, _ in pairs),
        "without_plan": sum(v.ii is None and not v.infeasible for _, v in pairs),
        "ii_sum": sum(v.ii or 0 for _, v in both),
        "ii_sum_default": sum(d.ii or 0 for d, _ in both),
        "ii_ratio_mean": round(math.exp(statistics.fmean(math.log((v.ii or 1) / (d.ii or 1)) for d, v in both)), 4)
        if both
        else None,
        "shorter": sum((v.ii or 0) < (d.ii or 0) for d, v in both),
        "longer": sum((v.ii or 0) > (d.ii or 0) for d, v in both),
        "better": sum(v.rank < d.rank for d, v in pairs),
        "worse": sum(v.rank > d.rank for d, v in pairs),
        "equal": sum(v.rank == d.rank for d, v in pairs),
        "same_search": sum(v == d for d, v in pairs),
        "work_s": round(sum(v.work_s for _, v in pairs), 2),
        "work_s_default": round(sum(d.work_s for d, _ in pairs), 2),
        "stages": sum(v.stages for _, v in both),
        "stages_default": sum(d.stages for d, _ in both),
        "slots": sum(v.slots for _, v in both),
        "slots_default": sum(d.slots for d, _ in both),
    }


NOISE = 0.01
"""A share of the work below which a difference counts as none."""


def helps(with_it_off: Row) -> bool:
    """Whether the technique pays on the split: without it fewer proofs, longer intervals, or more work."""
    off = with_it_off
    return (
        off["proven"] < off["proven_default"]
        or off["worse"] > off["better"]
        or off["longer"] > off["shorter"]
        or (
            (off["proven"], off["worse"], off["longer"]) == (off["proven_default"], off["better"], off["shorter"])
            and off["work_s"] > (1 + NOISE) * off["work_s_default"]
        )
    )


def interleaved() -> Iterator[tuple[str, DependenceGraph]]:
    """The loops for classic modulo scheduling, the training loops, then the held-out ones, a number of every family
    after the other: an interrupted run has some of each."""
    yield from (("modulo", instance.graph) for instance in instances())
    yield from (("train", graph) for graph in loops("train").values())
    heldout = loops("heldout").values()
    families = [[g for g in heldout if g.name.split()[0] == family] for family in FAMILIES]
    yield from (("heldout", graph) for number in zip_longest(*families) for graph in number if graph is not None)


def open_loops(result: Path) -> set[str]:
    """The loops that the default left unproven there."""
    return {row["loop"] for row in read_rows(result) if not of_row(row, DEFAULT).proven}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, RESULTS / "solver_ablation.json", "loops")
    parser.add_argument("--split", nargs="+", choices=SETS, default=("train", "heldout"), help="which loops")
    parser.add_argument("--open-in", type=Path, metavar="FILE", help="only loops that the result FILE left open")
    parser.add_argument("--techniques", nargs="+", choices=techniques(), default=techniques(), metavar="NAME")
    parser.add_argument("--work-limit-s", type=float, default=WORK_LIMIT_S, help="work budget of a search")
    parser.add_argument("--report", action="store_true", help="only summarise the rows that the result file has, anew")
    parser.add_argument("--constants", action="store_true", help="constants halved and doubled, too")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.report:
        recorded = json.loads(options.out.read_text())
        write(options.out, {**recorded, **conclusions(recorded["rows"], recorded["variants"])})
        return
    left_open = None if options.open_in is None else open_loops(options.open_in)
    wanted = [
        (split, graph)
        for split, graph in interleaved()
        if split in options.split
        and (not options.only or any(part in graph.name for part in options.only))
        and (left_open is None or graph.name in left_open)
    ]
    chosen = variants(options.techniques, constants=options.constants)
    settings = {"work_limit_s": options.work_limit_s, "variants": list(chosen)}
    store = RowStore(options.out, ("loop",), settings, fresh=options.fresh)
    for split, graph in of_shard(wanted, options.shard):
        if (graph.name,) in store.rows():
            continue
        row = measure(split, graph, chosen, options.work_limit_s)
        known = store.add(row)
        default = of_row(row, DEFAULT)
        print(
            f"{len(known)}/{len(wanted)} {graph.name:<62} II {default.ii} (bound {default.bound}), "
            f"{default.work_s:.2f} s of work; {len(row['found']) - 1} variants differ",
            flush=True,
        )
        report(store, [g.name for _, g in wanted], settings)
    report(store, [g.name for _, g in wanted], settings, last=True)


def report(store: RowStore, names: Sequence[str], settings: Row, *, last: bool = False) -> None:
    """Writes what is there; the partial file goes with the ``last`` report, if all rows are there."""
    known = store.rows()
    rows = [known[(name,)] for name in names if (name,) in known]
    result = {**head("solver_ablation", cpu_name()), **settings, **conclusions(rows, settings["variants"])}
    complete = last and len(rows) == len(names)
    store.write(result, rows, complete=complete)
    if complete:
        print(f"helps no split: {result['helps_none']}")
        print(f"written to {store.out}")


def conclusions(rows: Sequence[Row], names: Sequence[str]) -> Row:
    """The summary, and the techniques without which no split is worse off (``helps_none``); those of them that changed
    not one search had no part in this run and are apart (``never_used``)."""
    found = summary(rows, names)
    useless = [name for name, of in found.items() if name != DEFAULT and not any(map(helps, of.values()))]
    idle = [name for name in useless if all(f["same_search"] == f["loops"] for f in found[name].values())]
    return {"helps_none": [name for name in useless if name not in idle], "never_used": idle, "summary": found}


if __name__ == "__main__":
    main()
