"""What it gains to launch a GEMM before the kernel ahead of it has ended, on training shapes of a few microseconds.

    python benchmarks/bench_early_launch.py --dry-run         # no GPU: the rows and the kernels to compile
    python benchmarks/bench_early_launch.py --limit-s 200     # -> early_launch_<card>.json; the next call goes on

For each shape the best specialised kernel of the ranking, launched as any kernel is ("plain"), early ("waits"), and
early and letting the next launch begin early ("launches"); its best kernel of one partition, plain and early
("pipelined"); and cuBLAS. Launches of each are timed one after the other, as in ``bench_gemm_many.py``, and together
with a small kernel of PyTorch ("between"), which lets no launch begin early; from a CUDA graph, and in a stream whose
host is ahead of the GPU.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from bench_gemm_many import KEY, key_of, names_of, parser_of, settings_of
from bench_kernels import COMPARE_LIMIT_S, run_checks
from bench_target import CARD, TARGET, require_target
from children import each
from kernel_cases.bench_case import Launch, case_of, set_count
from kernel_estimates import Job, check_jobs, label, readings
from kernel_plans import PlannedRow, compiled, planned
from kernel_tables import gathered
from kernel_timing import GRAPH_US, as_json, floor_us, in_turn, row_of
from kernel_timing import config_of as of_json
from many_shapes import DrawnShape, read_list
from results_file import RESULTS, head
from row_store import RowStore

from warpplan.kernels.gemm.space import config_of, tuning
from warpplan.planner.errors import WarpplanError
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig
from warpplan.profiler.embedded import embedded
from warpplan.profiler.profile_files import load

OUT = RESULTS / f"early_launch_{CARD}.json"
LONGEST_US = 60.0
"""Of the predicted times of a row's first candidate: far above where early launches stop to gain. Chosen by hand."""
EARLY, PLAIN = {"waits": 0, "launches": 1, "pipelined": 2}, {"plain": 0, "pipelined plain": 2}
"""Contenders that are launched early, and as any kernel is, with the position of their configuration in a row."""
STREAM_ROUNDS, STREAM_LAUNCHES = 3, 60
SLEEP_CYCLES = 12_000_000
"""SM cycles, some 7 ms, that the GPU sleeps while the host launches a reading in a stream. Chosen by hand: the hosts of
two rows of 42 were slower, and these have no time in that way; doubled, readings take twice as long."""


def candidates(plan: PlannedRow) -> PlannedRow | None:
    """``plan`` with its best specialised kernel, without and with an early next launch, and its best of one partition;
    ``None`` where one is lacking, or the best takes long."""
    if plan.ranked[0][1] > LONGEST_US:
        return None
    best: dict[bool, tuple[TuningConfig, float]] = {}
    for config, us in plan.ranked:
        best.setdefault(config_of(config).specialized, (config, us))
    if len(best) < 2:
        return None
    kept = []
    for launches in (False, True):
        config = tuning(replace(config_of(best[True][0]), launch_dependents=launches))
        kept.append((config, best[True][1]))
    return replace(plan, ranked=(*kept, best[False]))


def rows(shapes: Sequence[DrawnShape], profile: Profile) -> Iterator[tuple[DrawnShape, PlannedRow]]:
    """The training shapes that count, in the list's order."""
    for shape in shapes:
        if shape.split != "train":
            continue
        try:
            plan = candidates(planned(shape.row, profile))
        except WarpplanError:
            continue
        if plan is not None:
            yield shape, plan


@contextmanager
def launched_plainly() -> Iterator[None]:
    """Launches that are prepared here wait for the kernel before as any kernel does."""
    from warpplan.kernels.device.early_launch import LAUNCH_OPTIONS

    kept = dict(LAUNCH_OPTIONS)
    LAUNCH_OPTIONS.clear()
    try:
        yield
    finally:
        LAUNCH_OPTIONS.update(kept)


def measure(jobs: Sequence[Job]) -> Iterator[dict[str, Any]]:
    """``{"us": {way: {contender: µs}}}`` of each ``{"row", "configs", "until"}``; runs in a child process."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA GPU")
    for job in jobs:
        yield {"status": "skipped", "reason": "out of time"} if time.time() > job["until"] else _measured(job)
        torch.cuda.empty_cache()


def _measured(job: Job) -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    row = row_of(job["row"])
    case = case_of(row.table)
    work = case.work(row)
    estimate = floor_us(work, row.dtype)
    sets = [case.operands(row) for _ in range(set_count(work))]
    configs = [of_json(values) for values in job["configs"]]
    launches: dict[str, list[Launch]] = {"cublas": [case.peers(row)["cublas"](o) for o in sets]}
    launches |= {name: [case.ours(row, configs[i], o) for o in sets] for name, i in EARLY.items()}
    with launched_plainly():
        launches |= {name: [case.ours(row, configs[i], o) for o in sets] for name, i in PLAIN.items()}
    other = torch.zeros(64, device="cuda")
    between = {
        name: [f for launch in ours for f in (launch, lambda: other.add_(1.0))] for name, ours in launches.items()
    }
    found = {
        "graph": _graph_us(launches, 1, estimate, job), "graph_between": _graph_us(between, 2, estimate, job),
        "stream": _stream_us(launches, 1), "stream_between": _stream_us(between, 2),
    }  # fmt: skip
    return {"us": found}


def _graph_us(
    launches: Mapping[str, Sequence[Launch]], kernels: int, estimate_us: float, job: Job
) -> dict[str, list[float]]:
    """[median, low, high] of ``kernels`` launches of each contender, read in turn."""
    from graph_timing import capture, summary

    graphs = {name: capture(ours, estimate_us, GRAPH_US) for name, ours in launches.items()}
    read = in_turn(graphs, job)
    return {name: [round(us * kernels, 3) for us in summary(samples).values()] for name, samples in read.items()}


def _stream_us(launches: Mapping[str, Sequence[Launch]], kernels: int) -> dict[str, list[float]]:
    """The same in a stream; a contender whose host fell behind the GPU in every round has no time."""
    from graph_timing import summary

    read: dict[str, list[float]] = {name: [] for name in launches}
    for round_, (name, ours) in itertools.product(range(STREAM_ROUNDS + 1), launches.items()):
        us = _ahead_us(ours, kernels)
        if round_ and us is not None:
            read[name].append(us)
    return {name: [round(us, 3) for us in summary(samples).values()] for name, samples in read.items() if samples}


def _ahead_us(launches: Sequence[Launch], kernels: int) -> float | None:
    """Mean µs of ``kernels`` launches, all enqueued before the first one runs; ``None`` where they were not."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    enqueued: list[Callable[[], object]] = list(itertools.islice(itertools.cycle(launches), STREAM_LAUNCHES * kernels))
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    begin.record()
    for launch in enqueued:
        launch()
    end.record()
    ahead = not begin.query()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / STREAM_LAUNCHES if ahead else None


def row_of_result(shape: DrawnShape, plan: PlannedRow, result: dict[str, Any]) -> dict[str, Any]:
    """A row of the results file; ``ranked_us`` are the medians of :data:`EARLY` from graphs, among their like."""
    graph = result["us"]["graph"]
    return {
        **names_of(shape), "configs": [config.as_dict() for config, _ in plan.ranked],
        "ranked_us": [graph[name][0] for name in EARLY], "us": result["us"],
    }  # fmt: skip


def summed_up(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By the time of "waits", the geometric means of what the other contenders take beside it, in each way."""
    summary: dict[str, Any] = {}
    for low, high in ((0, 3), (3, 4), (4, 6), (6, 9), (9, 20), (20, 100)):
        some = [row["us"] for row in found if low <= row["us"]["graph"]["waits"][0] < high]
        for way in some[0] if some else ():
            of_way = [us[way] for us in some if us[way].keys() == {"cublas", *EARLY, *PLAIN}]
            if of_way:
                ratios = {
                    name: round(statistics.geometric_mean(us[name][0] / us["waits"][0] for us in of_way), 4)
                    for name in of_way[0]
                }
                summary.setdefault(f"{low}_to_{high}_us", {})[way] = {"rows": len(of_way), **ratios}
    return summary


def main() -> int:
    parser = parser_of(__doc__, OUT)
    parser.add_argument("--rows", type=int, default=60, help="how many of the list's first training rows")
    arguments = parser.parse_args()
    until = time.time() + arguments.limit_s
    profile = load(arguments.profile) if arguments.profile else embedded(TARGET.name)
    plans = dict(itertools.islice(rows(read_list(), profile), arguments.rows))
    checks = check_jobs([(plan, [c for c, _ in plan.ranked]) for plan in plans.values()], peers=False)
    if arguments.dry_run:
        print("\n".join(f"{label(s.row)}: {p.ranked[0][1]:.2f} us predicted" for s, p in plans.items()))
        print(f"{len(plans)} rows, {len(checks)} kernels to compile")
        return 0
    import torch

    name = torch.cuda.get_device_name()
    require_target(name)
    settings = settings_of(name, profile, head("early_launch", name)["versions"])
    store = RowStore(arguments.out, KEY, settings, fresh=arguments.fresh)
    failures = run_checks(checks, arguments.workers, until)
    by_key = {key_of(shape): shape for shape in plans}
    jobs = [
        {
            "row": as_json(plan.row), "key": key_of(shape), "until": until, **readings(plan.row, "many"),
            "configs": [config.as_dict() for config, _ in plan.ranked],
        }
        for shape, plan in plans.items()
        if key_of(shape) not in store.rows() and not any(compiled(plan.row, c)[0] in failures for c, _ in plan.ranked)
    ]  # fmt: skip

    def keep(job: Job, result: dict[str, Any]) -> None:
        shape = by_key[tuple(job["key"])]
        if "us" not in result:
            print(f"{label(shape.row)}: {result['status']}: {result['reason']}", flush=True)
            return
        store.add(row_of_result(shape, plans[shape], result))
        medians = {way: {n: us[0] for n, us in of_way.items()} for way, of_way in result["us"].items()}
        print(f"{label(shape.row)}: {medians}", flush=True)

    each("bench_early_launch:measure", jobs, limit_s=COMPARE_LIMIT_S, on_result=keep)
    found = store.rows()
    kept, configs = gathered([found[key_of(shape)] for shape in plans if key_of(shape) in found])
    begin = {**head("early_launch", name), "settings": settings, "summary": summed_up(kept), "configs": configs}
    store.write(begin, kept, complete=len(kept) == len(plans))
    return 0


if __name__ == "__main__":
    sys.exit(main())
