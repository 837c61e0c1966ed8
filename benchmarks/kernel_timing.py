"""What ``bench_kernels.py`` runs in child processes on the GPU: checks, readings of candidates, comparisons.

Each function takes a list of JSON jobs and yields a JSON result a job, as ``children.each`` wants it; no job begins
after its ``until`` (``time.time``). A CUDA error is told as ``fatal``: the process is of no use after it.
"""

from __future__ import annotations

import gc
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from children import first_line
from kernel_cases.bench_case import BenchCase, Launch, Work, case_of, set_count
from kernel_cases.bench_rows import BenchRow

from warpplan.kernels.attention_fwd.kernel import attention_shape
from warpplan.planner.values.tuning import TuningConfig

Result = dict[str, Any]
OURS_LIMIT = {"bfloat16": 1e-2, "float8_e4m3fn": 1e-2}
"""Of ‖C − ref‖ / ‖ref‖, where the result's rounding to bfloat16 alone gives 2e-3."""
WEIGHTS_LIMIT = 2.0**-5
"""The same where a kernel rounds weights of its own to e4m3: independent errors of up to 2^-4 of each, uniform over a
uniform mantissa, come to 2.6 % (tests/kernels/attention_fwd plays 1.4 to 1.7 %)."""
DROPPED = 2.0**-13
"""What the tensor cores drop at most of a sum in fp8 with each 32 keys: they keep some 14 bits (DeepSeek-V3, arXiv
2412.19437, section 3.3.2)."""
FLOPS_LIMIT = {"bfloat16": 900e12, "float8_e4m3fn": 1800e12}
"""Above what an H200 sustains, so that :func:`floor_us` stays below every time."""
COPY_LIMIT = 4.6e12
GRAPH_US = 1_000.0
"""Of a CUDA graph, where its launches are shorter: long beside the clock of its events, short to capture."""
FEW_REPLAYS = 3
"""Of a reading at least."""
UNCAPTURED_READINGS = 5
PEER = "peer"
"""The peer's name among a search's candidates, which are named by number."""


def row_of(values: Mapping[str, Any]) -> BenchRow:
    """The row that :func:`as_json` wrote."""
    return BenchRow(
        values["table"], values["kernel"], tuple(values["sizes"]), values["dtype"], values["split"],
        tuple((name, value) for name, value in values["options"]),
    )  # fmt: skip


def as_json(row: BenchRow) -> dict[str, Any]:
    return dict(vars(row))


def config_of(values: Mapping[str, Any]) -> TuningConfig:
    """A tuning configuration from its JSON form."""
    return TuningConfig.of(
        values["kwargs"], num_warps=values["num_warps"], num_stages=values["num_stages"], num_ctas=values["num_ctas"],
        maxnreg=values["maxnreg"],
    )  # fmt: skip


def _config(values: Mapping[str, Any] | None) -> TuningConfig | None:
    """``None`` where the kernel finds its own."""
    return None if values is None else config_of(values)


def error_limit(row: BenchRow) -> float:
    """What ‖C − ref‖ / ‖ref‖ of ours may be."""
    if row.table != "attention_fp8":
        return OURS_LIMIT[row.dtype]
    return WEIGHTS_LIMIT + attention_shape(row.shape).k_length // 32 * DROPPED


def floor_us(work: Work, dtype: str) -> float:
    """A lower bound of a row's time, to size its CUDA graphs."""
    return max(work.flops / FLOPS_LIMIT[dtype], work.moved_bytes / COPY_LIMIT) * 1e6 + 3.0


def _guarded(run: Callable[[dict[str, Any]], Result], jobs: Sequence[dict[str, Any]]) -> Iterator[Result]:
    """``run`` of every job, an exception told as a result."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA GPU")
    for job in jobs:
        if time.time() > job["until"]:
            yield {"status": "skipped", "reason": "out of time"}
            continue
        try:
            result = run(job)
            yield result
            if "fatal" in result:
                return
        except Exception as error:
            result = {"status": "error", "reason": first_line(error)}
            try:
                torch.cuda.synchronize()
            except Exception:
                yield result | {"fatal": True}
                return
            yield result


# Checks: first compile, first run, result compared


def check(jobs: Sequence[dict[str, Any]]) -> Iterator[Result]:
    """``{"error", "seconds"}`` of each job: the relative error of a ``{"row", "config"}``; of a ``{"row", "peer"}`` no
    error, but one launch, which compiles what the peer compiles."""
    return _guarded(_check, jobs)


def _check(job: dict[str, Any]) -> Result:
    import torch

    started = time.monotonic()
    row = row_of(job["row"])
    case = case_of(row.table)
    torch.manual_seed(0)
    error = 0.0
    if "peer" in job:
        case.peers(row)[job["peer"]](case.operands(row))()
        torch.cuda.synchronize()
    else:
        error = case.relative_error(row, _config(job["config"]), case.operands(row))
    result = {"error": error, "seconds": round(time.monotonic() - started, 2)}
    torch.cuda.empty_cache()
    if not error < error_limit(row):
        return {**result, "error": str(error), "status": "wrong", "reason": f"relative error {error:.3g}"}
    return result


# Readings of the candidates, a few at a time


class _Prepared:
    """A row's operands and the graph of its first peer, kept from one chunk of its candidates to the next."""

    def __init__(self, row: BenchRow) -> None:
        import torch
        from graph_timing import capture

        torch.manual_seed(0)
        self.row, self.case = row, case_of(row.table)
        work = self.case.work(row)
        self.estimate_us = floor_us(work, row.dtype)
        self.sets = [self.case.operands(row) for _ in range(set_count(work))]
        self.peer, make = next(iter(self.case.peers(row).items()))
        self.launches = [make(o) for o in self.sets]  # they own what the graph reads and writes
        self.graph = capture(self.launches, self.estimate_us, GRAPH_US)


_prepared: dict[tuple[str, ...], _Prepared] = {}


def prepare_row(row: BenchRow) -> _Prepared:
    import torch

    if row.key not in _prepared:
        _prepared.clear()
        gc.collect()
        torch.cuda.empty_cache()
        _prepared[row.key] = _Prepared(row)
    return _prepared[row.key]


def search(jobs: Sequence[dict[str, Any]]) -> Iterator[Result]:
    """For each ``{"row", "configs"}``, with how it is read (``kernel_estimates.READINGS``), the times of these
    configurations, [median, low, high] in µs or the reason why there is none, in turn with the row's first peer:
    ``{"times", "peer", "peer_us"}``."""
    return _guarded(_search, jobs)


def _search(job: dict[str, Any]) -> Result:
    import torch
    from graph_timing import capture, summary

    prepared = prepare_row(row_of(job["row"]))
    graphs = {PEER: prepared.graph}
    reasons: dict[int, str] = {}
    owned: list[list[Launch]] = []  # a launch owns buffers that its graph writes to
    for index, values in enumerate(job["configs"]):
        try:
            launches = [prepared.case.ours(prepared.row, _config(values), o) for o in prepared.sets]
            graphs[str(index)] = capture(launches, prepared.estimate_us, GRAPH_US)
            owned.append(launches)
        except Exception as error:
            torch.cuda.synchronize()  # raises where the GPU is lost
            reasons[index] = first_line(error)
    found = {name: [round(us, 3) for us in summary(us).values()] for name, us in in_turn(graphs, job).items()}
    times = [reasons[index] if index in reasons else found[str(index)] for index in range(len(job["configs"]))]
    del graphs, owned
    return {
        "times": times, "peer": prepared.peer, "peer_us": found[PEER][0], "device": torch.cuda.get_device_name(),
    }  # fmt: skip


def _reading(graph: tuple[Any, int], settle_ms: float, read_ms: float) -> float:
    """Mean µs of a launch, over about ``read_ms`` after about ``settle_ms``."""
    from graph_timing import replay_us

    first = replay_us(*graph, 1)[0]
    replay_ms = first * graph[1] / 1e3
    kept = max(FEW_REPLAYS, round(read_ms / replay_ms))
    return statistics.fmean(replay_us(*graph, kept + round(settle_ms / replay_ms))[-kept:])


# Comparisons


def compare(jobs: Sequence[dict[str, Any]]) -> Iterator[Result]:
    """For each ``{"row", "ours", "check"}``, with how it is read (``kernel_estimates.READINGS``), the times of our
    configurations (``ours`` maps a name to ``{"config"}``, or ``{"config", "row"}`` where it runs other operands) and
    of every peer, read in turn: ``{"times", "samples", "waited", "failed", "error", "roofline_us", "rates"}``.
    ``samples`` are the readings of each round. ``waited`` has the peers that no graph can hold, and beside them the
    plan named by ``check``, all by the same clock. A wrong result has no times."""
    return _guarded(_compare, jobs)


def _compare(job: dict[str, Any]) -> Result:
    import torch
    from graph_timing import capture, summary

    row = row_of(job["row"])
    case = case_of(row.table)
    rates = _rates(row.dtype)
    torch.manual_seed(0)
    work = case.work(row)
    estimate = floor_us(work, row.dtype)
    sets: dict[BenchRow, list[Any]] = {row: [case.operands(row) for _ in range(set_count(work))]}
    makers: dict[str, tuple[BenchRow, Callable[[Any], Launch]]] = {
        name: _ours(case, row_of(spec.get("row", job["row"])), spec["config"]) for name, spec in job["ours"].items()
    }
    makers |= {name: (row, make) for name, make in case.peers(row).items()}
    graphs, failed = {}, {}
    launches: dict[str, list[Launch]] = {}  # a launch owns buffers that its graph writes to
    for name, (its_row, make) in makers.items():
        if its_row not in sets:
            sets[its_row] = [case.operands(its_row) for _ in sets[row]]
        try:
            launches[name] = [make(o) for o in sets[its_row]]
            graphs[name] = capture(launches[name], estimate, GRAPH_US)
        except Exception as error:
            torch.cuda.synchronize()  # raises where the GPU is lost
            failed[name] = first_line(error)
    samples = in_turn(graphs, job)
    times = {name: summary(us) for name, us in samples.items()}
    waiting = dict(case.uncaptured(row))
    if waiting and job["check"] in graphs:
        waiting[job["check"]] = makers[job["check"]][1]
    waited = {name: summary(_waited_us(make(sets[row][0]))) for name, make in waiting.items()}
    del graphs, launches
    checked = job["ours"].get(job["check"])
    error = None if checked is None else case.relative_error(row, _config(checked["config"]), sets[row][0])
    if error is not None and not error < error_limit(row):
        return {"status": "wrong", "reason": f"relative error {error:.3g}"}
    roofline = max(work.moved_bytes / rates["copy_bytes_per_s"], work.flops / rates["flops_per_s"]) * 1e6
    result = {
        "times": {name: {key: round(us, 3) for key, us in sample.items()} for name, sample in times.items()},
        "samples": {name: [round(us, 3) for us in found] for name, found in samples.items()},
        "waited": {name: {key: round(us, 3) for key, us in sample.items()} for name, sample in waited.items()},
        "failed": failed, "error": error, "roofline_us": round(roofline, 3), "rates": rates,
        "flops": work.flops, "moved_bytes": work.moved_bytes, "device": torch.cuda.get_device_name(),
    }  # fmt: skip
    del sets
    gc.collect()
    torch.cuda.empty_cache()
    # A capture that failed leaves PyTorch's random generator in it: no later one in this process would succeed.
    return result | ({"fatal": True} if failed else {})


def in_turn(graphs: Mapping[str, tuple[Any, int]], job: dict[str, Any]) -> dict[str, list[float]]:
    """Each round's reading of every contender, in another random order each round and for each row: a contender's
    neighbours, whose power the clock still answers to, and its place are not always the same. With one order for all
    rows, the contender that followed cuBLAS in both rounds was 5 % slower than the others in the mean of 48 rows
    (``benchmarks/results/reading_order_h100.json``). The first of them runs for ``warm_ms`` before: a cool card that is
    limited by power is faster than it stays."""
    order = random.Random(json.dumps(job["row"], sort_keys=True))
    times: dict[str, list[float]] = {name: [] for name in graphs}
    if graphs and job["warm_ms"]:
        _reading(next(iter(graphs.values())), job["warm_ms"], 0.0)
    for round_ in range(-job["discarded"], job["rounds"]):
        for name in order.sample(list(graphs), len(graphs)):
            us = _reading(graphs[name], job["settle_ms"], job["read_ms"])
            if round_ >= 0:
                times[name].append(us)
    return times


def _ours(case: BenchCase, row: BenchRow, config: Mapping[str, Any] | None) -> tuple[BenchRow, Callable[[Any], Launch]]:
    return row, lambda operands: case.ours(row, _config(config), operands)


def _waited_us(launch: Launch) -> list[float]:
    """A launch that waits for the GPU itself, by the clock from idle GPU to idle GPU."""
    import torch

    samples = []
    for _ in range(UNCAPTURED_READINGS + 1):
        torch.cuda.synchronize()
        started = time.perf_counter()
        launch()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - started) * 1e6)
    return samples[1:]


_measured_rates: dict[str, dict[str, float]] = {}


def _rates(dtype: str) -> dict[str, float]:
    """This process's ceilings: bytes read and written a second by a copy of 2 GiB, FLOP/s of cuBLAS's best."""
    import torch

    if dtype not in _measured_rates:
        source = torch.empty(2**31, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        copied = 2 * source.numel() / (_events_us(lambda: target.copy_(source)) / 1e6)
        del source, target
        flops = max(2 * n**3 / (_events_us(_square(n, dtype)) / 1e6) for n in (4096, 8192))
        _measured_rates[dtype] = {"copy_bytes_per_s": copied, "flops_per_s": flops}
    return _measured_rates[dtype]


def _square(n: int, dtype: str) -> Launch:
    import torch

    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty(n, n, device="cuda", dtype=torch.bfloat16)
    if dtype == "bfloat16":
        return lambda: torch.mm(a, b.T, out=out)
    a8, b8, one = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn), torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(
        a8, b8.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True, out=out
    )


def _events_us(launch: Launch, count: int = 20) -> float:
    import torch

    for _ in range(3):
        launch()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        launch()
        event.record()
    events[-1].synchronize()
    return statistics.median(first.elapsed_time(second) * 1e3 for first, second in itertools.pairwise(events))
