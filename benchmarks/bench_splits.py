"""Plans that split K, on training shapes of ``bench_gemm_many.py`` that have few tiles, beside whole ones and cuBLAS.

    python benchmarks/bench_splits.py --dry-run         # no GPU: the rows and the kernels to compile
    python benchmarks/bench_splits.py --limit-s 280     # -> splits_<card>.json; the next call goes on

The ranking's own first eight are seldom splits: what these cost is fitted to these rows (``fit_kernels.py``). Half of
the rows are limited by power; all are read as a search is.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from bench_gemm_many import KEY, key_of, names_of, parser_of, settings_of
from bench_kernels import COMPARE_LIMIT_S, run_checks
from bench_target import CARD, TARGET, require_target
from children import each
from kernel_estimates import Job, check_jobs, label, power_limited, readings
from kernel_plans import PlannedRow, compiled, planned
from kernel_tables import gathered
from kernel_timing import as_json
from many_shapes import DrawnShape, read_list
from results_file import RESULTS, head
from row_store import RowStore

from warpplan.kernels.gemm.space import config_of
from warpplan.planner.errors import WarpplanError
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig
from warpplan.profiler.embedded import embedded
from warpplan.profiler.profile_files import load

OUT = RESULTS / f"splits_{CARD}.json"
SPLITS, WHOLE, OF_ONE_BLOCK = 10, 3, 2
"""Candidates of a row by prediction, best first: splits, plans without a split, and the most splits of one block."""
WITHIN = 1.5
"""The longest predicted time of a row's best split, as a multiple of its best plan's."""


def chosen(plan: PlannedRow) -> PlannedRow:
    """``plan`` with the candidates that are read; with none where no split comes near the best plan."""
    of_block: Counter[tuple[object, ...]] = Counter()
    splits: list[tuple[TuningConfig, float]] = []
    for config, us in plan.ranked:
        c = config_of(config)
        block = (c.scheme, c.block_m, c.block_n, c.block_k)
        if c.split != "none" and us <= WITHIN * plan.ranked[0][1] and of_block[block] < OF_ONE_BLOCK:
            of_block[block] += 1
            splits.append((config, us))
    whole = [(config, us) for config, us in plan.ranked if config_of(config).split == "none"]
    return replace(plan, ranked=(*splits[:SPLITS], *whole[:WHOLE]) if splits else ())


def rows(shapes: Sequence[DrawnShape], profile: Profile, limited: bool) -> Iterator[tuple[DrawnShape, PlannedRow]]:
    """The training shapes with splits that come near, in the list's order: those that power limits, or the others."""
    for shape in shapes:
        if shape.split != "train" or power_limited(shape.row) != limited:
            continue
        try:
            plan = chosen(planned(shape.row, profile))
        except WarpplanError:
            continue
        if plan.ranked:
            yield shape, plan


def job_of(shape: DrawnShape, plan: PlannedRow, failures: dict[str, str], until: float) -> Job:
    """The candidates that compiled and computed what they should, by their position."""
    ours = {
        str(position): {"config": config.as_dict()}
        for position, (config, _) in enumerate(plan.ranked)
        if compiled(plan.row, config)[0] not in failures
    }
    shared = {"row": as_json(plan.row), "key": key_of(shape), "until": until}
    return {**shared, **readings(plan.row, "search"), "ours": ours, "check": next(iter(ours), None)}


def row_of_result(shape: DrawnShape, plan: PlannedRow, job: Job, result: dict[str, Any]) -> dict[str, Any]:
    """A row of the results file; times are medians in µs, ``None`` where a candidate did not run."""
    times = result["times"]
    return {
        **names_of(shape),
        "configs": [config.as_dict() for config, _ in plan.ranked],
        "ranked_us": [times[name]["us"] if (name := str(i)) in times else None for i in range(len(plan.ranked))],
        "peers": {name: sample["us"] for name, sample in times.items() if name not in job["ours"]},
        "relative_error": result["error"],
        "failed": result["failed"],
    }


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__, OUT)
    parser.add_argument("--rows", type=int, default=40, help="how many of the list's first rows, half of each kind")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    until = time.time() + arguments.limit_s
    profile = load(arguments.profile) if arguments.profile else embedded(TARGET.name)
    halves = (islice(rows(read_list(), profile, limited), arguments.rows // 2) for limited in (False, True))
    plans = dict(chain.from_iterable(zip(*halves, strict=True)))
    checks = check_jobs([(plan, [c for c, _ in plan.ranked]) for plan in plans.values()], peers=False)
    if arguments.dry_run:
        print("\n".join(f"{label(s.row)}: {len(p.ranked)} candidates" for s, p in plans.items()))
        print(f"{len(plans)} rows, {len(checks)} kernels to compile")
        return 0
    import torch

    name = torch.cuda.get_device_name()
    require_target(name)
    settings = settings_of(name, profile, head("splits", name)["versions"])
    store = RowStore(arguments.out, KEY, settings, fresh=arguments.fresh)
    failures = run_checks(checks, arguments.workers, until)
    by_key = {key_of(shape): shape for shape in plans}

    def keep(job: Job, result: dict[str, Any]) -> None:
        shape = by_key[tuple(job["key"])]
        if "times" not in result:
            print(f"{label(shape.row)}: {result['status']}: {result['reason']}", flush=True)
            return
        row = row_of_result(shape, plans[shape], job, result)
        store.add(row)
        ours = [us for us in row["ranked_us"] if us is not None]
        print(f"{label(shape.row)}: best {min(ours):.2f} us, cublas {row['peers']['cublas']:.2f} us", flush=True)

    left = [job_of(s, p, failures, until) for s, p in plans.items() if key_of(s) not in store.rows()]
    each("kernel_timing:compare", [job for job in left if job["check"]], limit_s=COMPARE_LIMIT_S, on_result=keep)
    found = store.rows()
    kept, configs = gathered([found[key_of(shape)] for shape in plans if key_of(shape) in found])
    store.write(
        {**head("splits", name), "settings": settings, "configs": configs}, kept, complete=len(kept) == len(plans)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
