"""GPU: random cases of the corpus, each as it is and planned.

A seed draws a kernel, sizes, gaps between rows, dtype and configuration; outputs as the kernel is and under
``planned(measure=False)`` must both be right, and nothing around the tensors may be written; a case that ends its child
is run again as it is alone, to say whose fault that was.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from random import Random

import corpus_registry
from bench_target import CARD
from children import cores, each
from gpu_jobs import guarded
from row_store import Row, RowStore, of_shard

LIMIT_S = 180.0
"""The longest silence of a child."""
SOAK_TIMES = 2.0
"""A soaked output may be worse than the entry's tolerance by this factor: small sizes average less."""


def case_of(seed: int, names: Sequence[str]) -> Row:
    """What the soak runs for ``seed``: the same on every machine for the same corpus."""
    draw = Random(seed)
    entry = corpus_registry.entries()[draw.choice(sorted(names))]
    sizes = {name: draw.choice(choices) for name, choices in sorted(entry.choices.items())}
    return {
        "seed": seed, "kernel": entry.name, "sizes": sizes, "dtype": draw.choice(entry.dtypes),
        "pads": {name: draw.choice((0, 0, 8, 16, 1)) for name in entry.padded},
        "config": draw.randrange(len(entry.configs)),
    }  # fmt: skip


def soak_jobs(jobs: Sequence[Row]) -> Iterator[Row]:
    return guarded(jobs, soaked)


def soaked(case: Row) -> Row:
    """One case as it is and planned; "ok" where both are right and nothing around the tensors was written."""
    from corpus_launch import Made, errors, fixed
    from tl_launch import wait

    from warpplan.kernels import planned

    entry = corpus_registry.entries()[case["kernel"]]
    problem = entry.problem(case["sizes"], case["dtype"]).padded(case["pads"])
    made = Made(problem, case["seed"])
    wanted = problem.reference({name: view.clone() for name, view in made.views.items()})
    launch = fixed(entry, problem, entry.configs[case["config"]], made.views)
    made.reset()
    launch()
    wait()
    as_is = errors(made.outputs(), wanted)
    if case.get("as_is_alone"):
        return {"status": "ok" if as_is <= SOAK_TIMES * entry.tolerance else "wrong as it is", "as_is": as_is}
    said: list[str] = []
    with planned(tempfile.mkdtemp(), measure=False, background=False), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        launch()  # decides, and runs as it is
        wait()
        made.reset()
        launch()
        wait()
        said = [str(warning.message)[:200] for warning in caught]
    found = errors(made.outputs(), wanted)
    overwritten = made.overwritten()
    limit = SOAK_TIMES * entry.tolerance
    right = found <= limit and not overwritten
    status = "wrong as it is" if not as_is <= limit else "ok" if right else "wrong"
    return {"status": status, "as_is": as_is, "planned": found, "overwritten": overwritten, "said": said}


def summarised_soak(rows: Sequence[Row]) -> Row:
    statuses = [r["status"] for r in rows]
    return {status: statuses.count(status) for status in sorted(set(statuses))}


def run_soak(arguments: argparse.Namespace, until: float, names: list[str]) -> RowStore:
    settings = {"phase": "soak", "kernels": sorted(names)}
    store = RowStore(arguments.out / f"corpus_soak_{CARD}.json", ("seed",), settings, fresh=arguments.fresh)
    seeds = range(arguments.seed, arguments.seed + arguments.cases)
    left = [seed for seed in of_shard(list(seeds), arguments.shard) if (seed,) not in store.rows()]
    listed = [case_of(seed, names) for seed in left]
    ended: list[Row] = []

    def report(case: Row, result: Row) -> None:
        if result["status"] == "skipped":
            return
        store.add({**case, **result})
        if result["status"] not in ("ok", "refused"):
            print(f"{case}: {result}", flush=True)
        if result["status"] not in ("ok", "refused", "wrong", "wrong as it is"):
            ended.append({**case, **result})

    each("corpus_soak:soak_jobs", listed, limit_s=LIMIT_S, workers=cores(), until=until, on_result=report)
    for row in ended:
        alone = each("corpus_soak:soak_jobs", [{**row, "as_is_alone": True}], limit_s=LIMIT_S, until=until)[0]
        if alone["status"] not in ("ok", "skipped"):
            store.add({**row, "status": f"{row['status']} as it is"})
    return store
