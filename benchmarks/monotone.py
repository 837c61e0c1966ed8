"""More freedom, never a worse plan: writes ``benchmarks/results/monotone.json``.

Pairs of solves of random loops (those of ``tests/planner/strategies.py``, and the training loops of ``loop_splits.py``
with their costs moved), which differ in one allowance: the number of partitions, shared memory, registers, tensor
memory, rings of any depth against rings of one, and the work limit. A pair violates where the freer solve has no plan
and the other has one, or a longer interval; of equal intervals, in loops of so few operations that ties are broken by a
model, where more dependences cross partitions. For the work limit also where the bound is lower.

Hypothesis draws the random loops from a fixed seed. Run it with ``python benchmarks/monotone.py --pairs 1000``; an
interrupted run goes on where it stopped, ``--shard 1/2`` and ``2/2`` are for two processes.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from loop_graphs import graphs
from planning_speed import cpu_name
from results_file import RESULTS, head
from row_store import Row, RowStore, add_arguments, of_shard

from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.search_params import SearchParams

KINDS = ("partitions", "memory", "registers", "tensor memory", "depth", "work limit")
SEED = 20
WORK_S = 10.0
"""Work limit of a solve, in seconds of a slow core."""
TRAINING_SHARE = 25
"""One loop in this many is a training loop with its costs moved, which are larger than random ones."""
MOVED = 0.1
"""By what share a training loop's costs are moved at most."""


def random_loops(count: int) -> list[DependenceGraph]:
    """``count`` loops of the tests' generator, in the order that Hypothesis draws them from the fixed seed."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.planner.strategies import graphs as strategy

    found: list[DependenceGraph] = []

    @seed(SEED)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy(most_ops=14, most_partitions=4, rules=True))
    def draw(graph: DependenceGraph) -> None:
        found.append(graph)

    draw()
    return [replace(graph, name=f"random {at}") for at, graph in enumerate(found[:count])]


def moved(graph: DependenceGraph, number: int) -> DependenceGraph:
    """A training loop with its cycles moved at random, clones alike."""
    first = {other: one for clone in graph.clones for one, other in zip(graph.clones[0], clone, strict=True)}

    def cycles(name: str, value: int) -> int:
        made = random.Random(f"{graph.name} {number} {name}")
        return max(int(value > 0), round(value * made.uniform(1 - MOVED, 1 + MOVED)))

    ops = tuple(
        replace(
            op,
            **{
                name: cycles(f"{first.get(op.id, op.id)} {name}", getattr(op, name))
                for name in ("latency", "occupancy", "issue")
            },
        )
        for op in graph.ops
    )
    return replace(graph, ops=ops, name=f"{graph.name} ~{number}")


def loops(pairs: int) -> list[DependenceGraph]:
    """One loop a pair."""
    training, drawn = list(graphs().values()), random_loops(pairs)
    return [
        moved(training[at // TRAINING_SHARE % len(training)], at) if at % TRAINING_SHARE == 0 else drawn[at]
        for at in range(min(pairs, len(drawn)))
    ]


Solve = tuple[DependenceGraph, SolveOptions]


def pair(graph: DependenceGraph, number: int) -> tuple[str, Solve, Solve]:
    """Which allowance is raised for this loop, the solve with less, and the one with more."""
    made = random.Random(f"{SEED} {number}")
    kind, limits = KINDS[number % len(KINDS)], graph.limits
    options = SolveOptions(work_limit_s=WORK_S, search=replace(SearchParams(), speculation=False))
    more, freer = limits, options
    factor = made.choice([1.1, 1.5, 2.0, 4.0])
    match kind:
        case "partitions":
            more = replace(limits, max_partitions=limits.max_partitions + made.choice([1, 1, 2, 4]))
        case "memory":
            more = replace(limits, smem_bytes=int(factor * limits.smem_bytes))
        case "registers":
            more = replace(limits, registers=int(factor * limits.registers))
        case "tensor memory":
            more = replace(limits, tmem_columns=int(factor * limits.tmem_columns) + 1)
        case "depth":
            options = replace(options, depth=made.choice([1, 2, 3]))
        case _:
            options = replace(options, work_limit_s=WORK_S * made.choice([0.002, 0.01, 0.1, 0.5]))
    return kind, (graph, options), (replace(graph, limits=more), freer)


def interval(outcome: Outcome) -> int | None:
    return None if outcome.plan is None else outcome.plan.schedule.ii_cycles


def crossings(graph: DependenceGraph, outcome: Outcome) -> int:
    """Pairs of dependent operations in different partitions: the first objective among plans of one interval."""
    assert outcome.plan is not None
    home = {placement.op: placement.partition for placement in outcome.plan.schedule.placements}
    return sum(home[a] != home[b] for a, b in {(e.src, e.dst) for e in graph.edges})


def violations(kind: str, graph: DependenceGraph, less: Outcome, more: Outcome) -> list[str]:
    """In what the freer solve is worse."""
    found = []
    one, other = interval(less), interval(more)
    if one is not None and (other is None or other > one):
        found.append(f"{one} cycles against {other}")
    if kind == "work limit" and more.status != "infeasible" and more.bound < less.bound:
        found.append(f"bound {less.bound} against {more.bound}")
    tiny = len(graph.ops) <= SearchParams().driver.tiny_loop_operations
    if one is not None and one == other and tiny and crossings(graph, more) > crossings(graph, less):
        found.append(f"{crossings(graph, less)} crossings against {crossings(graph, more)}")
    return found


def measure(graph: DependenceGraph, number: int) -> Row:
    kind, less, more = pair(graph, number)
    restricted, freer = solve(*less), solve(*more)
    return {
        "pair": number,
        "loop": graph.name,
        "operations": len(graph.ops),
        "allowance": kind,
        "ii": [interval(restricted), interval(freer)],
        "bound": [restricted.bound, freer.bound],
        "status": [restricted.status, freer.status],
        "violations": violations(kind, graph, restricted, freer),
    }


def summary(rows: Sequence[Row]) -> dict[str, Row]:
    return {
        kind: {
            "pairs": len(of),
            "shorter": sum(row["ii"][1] is not None and row["ii"][0] != row["ii"][1] for row in of),
            "both_proven": sum(set(row["status"]) <= {"optimal", "infeasible"} for row in of),
            "violations": sum(bool(row["violations"]) for row in of),
        }
        for kind in KINDS
        if (of := [row for row in rows if row["allowance"] == kind])
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, RESULTS / "monotone.json", "loops")
    parser.add_argument("--pairs", type=int, default=1000, help="how many")
    parser.add_argument("--report", action="store_true", help="only write the result of the pairs solved so far")
    return parser.parse_args()


def main() -> None:
    options = parse()
    settings_ = {"work_limit_s": WORK_S, "pairs": options.pairs, "seed": SEED}
    store = RowStore(options.out, ("pair",), settings_, fresh=options.fresh)
    wanted = [
        (number, graph)
        for number, graph in enumerate(loops(options.pairs))
        if not options.only or any(part in graph.name for part in options.only)
    ]
    for number, graph in [] if options.report else of_shard(wanted, options.shard):
        if (number,) in store.rows():
            continue
        row = measure(graph, number)
        store.add(row)
        if row["violations"]:
            print(row, flush=True)
    known = store.rows()
    rows = [known[key] for key in sorted(known)]
    complete = len(rows) == len(wanted)
    found = summary(rows)
    store.write({**head("monotone", cpu_name()), **settings_, "summary": found}, rows, complete=complete)
    print(found)
    print(f"{len(rows)} of {len(wanted)} pairs written to {store.out}")


if __name__ == "__main__":
    main()
