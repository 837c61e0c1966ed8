"""No GPU: how far each plan that is served is from the best of any partition and order of its operations.

    python benchmarks/optimality.py [WORDS] [--workers N] [--out DIR]

Every loop of the kernels here, over all of their candidates, and every kernel of the corpus under the strategy that is
served, beside its free joint problem (``planner/predict/certificate.py``). Writes ``optimality.json``, whose rows are

    {"kernel", "dtype", "loop", "strategy", "served_ii_cycles", "free_ii_cycles", "bound_cycles", "free_partitions"}

and whose summary counts, for each kernel or family of the corpus, the loops that are proven optimal, those for which
something shorter was found, and by how much at most.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import corpus_registry
from children import cores, each, first_line
from corpus_entry import Entry, options, source
from plan_corpus import DEVICE, LIMIT_S, configurations
from results_file import RESULTS, head, write

from warpplan.kernels import registry
from warpplan.kernels.gemm.candidates import table as gemm_table
from warpplan.kernels.gemm.graph import plan_candidate as gemm_plan
from warpplan.kernels.gemm.work import loop_of
from warpplan.kernels.grouped_gemm.candidates import table as grouped_table
from warpplan.kernels.grouped_gemm.graph import plan_candidate as grouped_plan
from warpplan.kernels.grouped_gemm.space import SCALES
from warpplan.kernels.vector_add.graph import plan_candidate as vector_add_plan
from warpplan.kernels.vector_add.space import candidates as vector_add_candidates
from warpplan.planner.values.device import device
from warpplan.planner.values.plan import Outcome
from warpplan.service.workflow.profiles import Profiles

NAME = "optimality.json"
CLEAR = 1.05
"""A predicted gain that a measurement must confirm: a partition predicted to win by more and measured to lose is a
defect of the costs."""
Row = dict[str, Any]


def template_rows() -> Iterator[Row]:
    """A row for each loop of our own kernels' candidates."""
    gpu, profile = device(DEVICE), Profiles().of(DEVICE).profile
    for name in ("gemm", "grouped_gemm", "vector_add"):
        for dtype in registry.kernel(name).declaration.dtypes:
            for label, outcome in _outcomes(name, dtype, gpu, profile):
                if outcome.optimality is not None:
                    yield {
                        "kernel": name, "dtype": dtype, "loop": label, "strategy": "template",
                        **asdict(outcome.optimality),
                    }  # fmt: skip


def _outcomes(name: str, dtype: str, gpu: Any, profile: Any) -> Iterator[tuple[str, Outcome]]:
    if name == "vector_add":
        for each_config in vector_add_candidates(dtype):
            outcome = vector_add_plan(each_config, dtype, gpu, profile.costs)
            yield outcome.plan.graph if outcome.plan else "", outcome
        return
    eight = dtype.startswith("float8")
    if name == "gemm":
        tables = [
            gemm_table(dtype, gpu, profile.costs, promoted) for promoted in ((False, True) if eight else (False,))
        ]
        plan = gemm_plan
    else:
        scales = SCALES if eight else SCALES[:1]
        tables = [grouped_table(dtype, gpu, profile.costs, "forward", scale) for scale in scales]
        plan = grouped_plan
    for config in dict.fromkeys(loop_of(config) for found in tables for config in found.configs):
        outcome = plan(config, dtype, gpu, profile.costs)
        yield f"{outcome.plan.graph if outcome.plan else ''}, {config.depth} slots", outcome


def certify_jobs(jobs: Sequence[tuple[str, int]]) -> Iterator[Row]:
    """Runs in a child: ``{"rows"}`` of each (entry, number of its configuration)."""
    for name, index in jobs:
        try:
            yield {"rows": captured_rows(corpus_registry.entries()[name], index)}
        except Exception as error:
            yield {"rows": [], "reason": first_line(error)}


def captured_rows(entry: Entry, index: int) -> list[Row]:
    """A row for each loop of one configuration that loads by TMA, under the strategy ranked first."""
    from triton.backends.compiler import GPUTarget

    from warpplan.kernels.compiler.analysis.capture import capture
    from warpplan.kernels.compiler.costing import hopper_ranking
    from warpplan.kernels.compiler.costing.free_problem import certificates
    from warpplan.kernels.compiler.pointers.planned_cut import explained, planned_cut

    config, gpu, profile = entry.configs[index], device(DEVICE), Profiles().of(DEVICE).profile
    at_cut = planned_cut(source(entry, entry.problem(), config), GPUTarget("cuda", 90, 32), options(config))
    captured = explained(capture(at_cut.text), at_cut.described)
    served = hopper_ranking.rank(captured, profile, gpu, stages=config.num_stages)[0]
    found = certificates(captured, served, profile, gpu) if served.plans else ()
    return [
        {
            "kernel": entry.name, "family": entry.family, "dtype": entry.dtypes[0], "number": index, "loop": loop.id,
            "strategy": str(served.scheme) if served.scheme else "left alone", **asdict(optimality),
        }
        for loop, optimality in zip(captured.at(served.copies).loading if found else (), found, strict=True)
    ]  # fmt: skip


def summarised(rows: Sequence[Row]) -> dict[str, Row]:
    """By our own kernel and dtype, and by the corpus' families."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.get("family") or f"{row['kernel']} {row['dtype']}"].append(row)
    return {name: counted(members) for name, members in groups.items()}


def counted(rows: Sequence[Row]) -> Row:
    """Loops proven optimal; with a shorter interval found, clearly shorter, by how much at most; left open."""
    gains = [row["served_ii_cycles"] / row["free_ii_cycles"] for row in rows]
    return {
        "loops": len(rows),
        "proven": sum(row["served_ii_cycles"] <= row["bound_cycles"] for row in rows),
        "shorter_found": sum(gain > 1 for gain in gains),
        "clearly_shorter_found": sum(gain > CLEAR for gain in gains),
        "open": sum(row["free_ii_cycles"] > row["bound_cycles"] for row in rows),
        "most_gain": round(max(gains), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="parts of the corpus' names, families or styles")
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    jobs = [
        (entry.name, index) for entry in corpus_registry.chosen(arguments.words) for index in configurations(entry, 2)
    ]
    results = each("optimality:certify_jobs", jobs, workers=arguments.workers, limit_s=LIMIT_S)
    rows = [*template_rows(), *(row for result in results for row in result.get("rows", ()))]
    lost = [{"kernel": name, "number": index, "reason": result["reason"]}
            for (name, index), result in zip(jobs, results, strict=True) if result.get("reason")]  # fmt: skip
    summary = summarised(rows)
    for name, figures in summary.items():
        print(f"{name:28} {figures}")
    for failure in lost:
        print(f"no certificate for {failure['kernel']}: {failure['reason']}")
    about = head("optimality", f"none: planned with the profile of an {DEVICE}")
    write(arguments.out / NAME, {**about, "summary": summary, "lost": lost, "rows": rows})


if __name__ == "__main__":
    main()
