"""Is every scheme of the GEMM right on this GPU, and roughly how fast? One child process a configuration.

    python benchmarks/check_gemm.py [--only TEXT] [--quick] [--no-timing] [--workers 12] [--budget 140]

Prints one JSON line for each failure, each time and, last, the summary; $OUT/check_gemm.json (or the current folder's)
has every case. Small whole numbers make every sum exact, so results must equal the reference bit for bit; C lies inside
a poisoned buffer whose margins must stay poisoned. A child that hangs or dies is a recorded failure. Exit status 1 if
anything failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def find_package() -> None:
    """Give the folders at the root their import names where the package is not installed."""
    try:
        import warpplan.kernels  # noqa: F401
    except ImportError:
        folder = Path(tempfile.mkdtemp(prefix="warpplan-"))
        (folder / "warpplan").mkdir()
        for package in ("planner", "kernels"):
            (folder / "warpplan" / package).symlink_to(ROOT / package)
        sys.path.insert(0, str(folder))


find_package()

import torch  # noqa: E402
import triton  # noqa: E402

from warpplan.kernels.gemm import launch  # noqa: E402
from warpplan.kernels.gemm.candidates import planned_structures  # noqa: E402
from warpplan.kernels.gemm.reference import reference, relative_error  # noqa: E402
from warpplan.kernels.gemm.space import GemmConfig, violations  # noqa: E402
from warpplan.kernels.operands.matrices import tma_stores  # noqa: E402
from warpplan.planner.values.device import H200  # noqa: E402
from warpplan.profiler.embedded import embedded  # noqa: E402

CHILD_LIMIT_S = 60
SHAPES = (
    (1, 1, 8), (1, 136, 72), (7, 133, 72), (64, 64, 64), (129, 257, 136), (300, 520, 1096), (33, 17, 4096),
    (16, 4096, 4096), (1000, 1000, 1000), (512, 768, 2048), (2048, 2176, 192),
)  # fmt: skip
TAIL_SHAPES = ((2560, 2560, 200), (3072, 1536, 328), (2557, 2555, 1160))
"""Full waves of tiles and a ragged last one on 132 SMs, for the configurations that split it."""
RANDOM_SHAPES = ((520, 776, 4168), (520, 776, 4096))
RANDOM_TAIL_SHAPES = ((2560, 2560, 1480), (3072, 1536, 1480))
TIMED_SHAPES = ((8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048), (512, 8192, 4096), (16, 4096, 4096))
POISON = float("nan")

G = GemmConfig
VARIANTS = (
    G("cooperative", 128, 256, 64, 4, 3, group_m=4, persistent=False),
    G("cooperative", 256, 128, 64, 4, 4, epilogue_split=4, staging="ring"),
    G("cooperative", 128, 128, 64, 4, 4, split_k=4),
    G("cooperative", 128, 256, 64, 4, 3, split_k=2, swap=True),
    G("cooperative", 128, 256, 64, 4, 4, epilogue_split=4, staging="ring", swap=True, split_k=3),
    G("cooperative", 128, 256, 64, 4, 3, split_k=3, split_tail=True),
    G("cooperative", 256, 128, 64, 4, 4, epilogue_split=4, staging="ring", split_k=2, split_tail=True),
    G("cooperative", 192, 128, 64, 4, 4),
    G("cooperative", 192, 128, 64, 4, 4, swap=True, persistent=False),
    G("cooperative", 192, 128, 64, 4, 5, epilogue_split=2, staging="ring"),
    G("cooperative", 192, 128, 128, 4, 2, group_m=3),
    G("cooperative", 192, 128, 64, 4, 4, split_k=3),
    G("cooperative", 192, 128, 64, 4, 4, epilogue_split=2, split_k=3, split_tail=True),
    G("cooperative", 192, 128, 64, 4, 5, epilogue_split=2, staging="ring", swap=True, split_k=2, split_tail=True),
    G("pingpong", 128, 128, 64, 4, 4, split_k=3, split_tail=True),
    G("pingpong", 128, 128, 64, 4, 5, epilogue_split=2, staging="ring", split_k=6, split_tail=True),
    G("pingpong", 64, 256, 64, 4, 4, swap=True, split_k=2, split_tail=True),
    G("pingpong", 64, 256, 64, 4, 4, epilogue_split=2, persistent=False),
    G("pingpong", 128, 128, 64, 4, 5, epilogue_split=2, staging="ring", split_k=3),
    G("pingpong", 64, 128, 128, 4, 3, swap=True),
    G("pingpong", 128, 128, 64, 4, 4, epilogue_split=2, swap=True, split_k=2),
    G("single", 128, 256, 64, 8, 3, swap=True),
    G("single", 128, 256, 64, 8, 4, epilogue_split=2, staging="ring", split_k=5),
    G("single", 64, 16, 128, 4, 6, swap=True, split_k=8),
    G("single", 64, 16, 128, 4, 4, swap=True, split_k=4, ctas_per_sm=2),
    G("single", 64, 32, 64, 4, 8, swap=True, split_k=4),
    G("single", 64, 16, 256, 4, 4, swap=True, split_k=4),
    G("single", 128, 256, 64, 8, 3, split_k=2, split_tail=True),
    G("single", 64, 64, 64, 4, 4, ctas_per_sm=2, split_k=3, split_tail=True, persistent=False),
    G("single", 64, 64, 64, 4, 8, swap=True, split_k=6, split_tail=True),
    G("single", 128, 128, 64, 4, 2, group_m=1),
    G("single", 64, 64, 64, 4, 2, ctas_per_sm=2),
    G("pipelined", 128, 256, 64, 8, 3, persistent=False),
)
TIMED = (
    G("single", 128, 256, 64, 8, 3),
    G("single", 128, 256, 64, 8, 4, epilogue_split=2),
    G("cooperative", 128, 256, 64, 4, 3),
    G("cooperative", 128, 256, 64, 4, 4, epilogue_split=2),
    G("cooperative", 256, 128, 64, 4, 4, epilogue_split=2),
    G("pingpong", 64, 256, 64, 4, 4),
    G("pingpong", 128, 128, 64, 4, 5),
    G("pingpong", 128, 128, 64, 4, 6, epilogue_split=2),
    G("single", 128, 128, 64, 8, 6),
    G("pipelined", 128, 256, 64, 8, 4),
    G("single", 64, 16, 128, 4, 8, swap=True, split_k=4),
    G("single", 64, 16, 128, 4, 5, swap=True, split_k=8, ctas_per_sm=2),
)


def configurations(quick: bool) -> list[GemmConfig]:
    listed = () if quick else planned_structures("bfloat16", H200, embedded(H200.name).costs)
    return [c for c in dict.fromkeys((*TIMED, *VARIANTS, *listed)) if not violations(c, "bfloat16", H200)]


def name(config: GemmConfig) -> str:
    fields = dataclasses.asdict(config)
    plain = {f.name: f.default for f in dataclasses.fields(config)}
    tile = (
        f"{config.scheme} {config.block_m}x{config.block_n}x{config.block_k} w{config.consumer_warps} d{config.depth}"
    )
    extra = [f"{k}={v}" for k, v in fields.items() if plain[k] is not dataclasses.MISSING and plain[k] != v]
    return " ".join([tile, *extra])


def whole(rows: int, columns: int, dtype: torch.dtype, seed: int, pad: int = 0) -> torch.Tensor:
    """Whole numbers from -4 to 4, rows ``pad`` elements apart."""
    generator = torch.Generator("cuda").manual_seed(seed)
    full = torch.randint(-4, 5, (rows, columns + pad), generator=generator, device="cuda").to(dtype)
    return full[:, :columns]


def poisoned(m: int, n: int, dtype: torch.dtype, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(C inside, the whole buffer): a margin row above and below, ``pad`` columns to its right."""
    buffer = torch.full((m + 2, n + pad), POISON, device="cuda", dtype=dtype)
    return buffer[1:-1, :n], buffer


def check(
    config: GemmConfig, shape: tuple[int, int, int], dtype: torch.dtype, pads: tuple[int, int, int]
) -> dict[str, Any]:
    m, n, k = shape
    a, b = whole(m, k, dtype, 1, pads[0]), whole(n, k, dtype, 2, pads[1])
    out, buffer = poisoned(m, n, dtype, pads[2])
    run = launch.prepare(a, b, config, out)
    run()
    torch.cuda.synchronize()
    first = out.clone()
    inside = torch.isnan(buffer).sum().item() == buffer.numel() - m * n
    exact = bool(torch.equal(first, reference(a, b).to(dtype)))
    out.fill_(POISON)
    run()
    torch.cuda.synchronize()
    again = bool(torch.equal(first, out))
    row = {"case": "exact", "shape": shape, "dtype": str(dtype)[6:], "pads": pads, "tma": tma_stores(out)}
    if not exact:
        wrong = (first != reference(a, b).to(dtype)).nonzero()
        row |= {"wrong": len(wrong), "first_wrong": wrong[0].tolist(), "error": relative_error(first, reference(a, b))}
    return row | {"ok": exact and inside and again, "exact": exact, "inside": inside, "again": again}


def check_random(config: GemmConfig, shape: tuple[int, int, int], dtype: torch.dtype) -> dict[str, Any]:
    """Random data: close to float64, and ten runs alike to the bit."""
    m, n, k = shape
    torch.manual_seed(0)
    a, b = torch.randn(m, k, device="cuda", dtype=dtype), torch.randn(n, k, device="cuda", dtype=dtype)
    out = torch.full((m, n), POISON, device="cuda", dtype=dtype)
    run = launch.prepare(a, b, config, out)
    results = []
    for _ in range(10):
        out.fill_(POISON)
        run()
        results.append(out.clone())
    torch.cuda.synchronize()
    error = relative_error(results[0], reference(a, b))
    same = all(torch.equal(results[0], r) for r in results)
    limit = {torch.bfloat16: 3e-3, torch.float16: 4e-4}[dtype]
    row = {"case": "random", "shape": shape, "dtype": str(dtype)[6:], "error": error, "same": same}
    return row | {"ok": error < limit and same}


def check_config(config: GemmConfig, report: Path) -> None:
    shapes = (*SHAPES, *TAIL_SHAPES) if config.split_tail else SHAPES
    random = RANDOM_TAIL_SHAPES if config.split_tail else RANDOM_SHAPES
    for dtype in (torch.bfloat16, torch.float16):
        for shape in shapes:
            m, n, _ = shape
            if violations(config, str(dtype)[6:], H200, shape) or (dtype == torch.float16 and m > 512):
                continue
            padding = -n % 8 + 8
            for pads in ((0, 0, 0), (8, 16, padding), (0, 8, padding + 1)):
                write(report, guarded(lambda: check(config, shape, dtype, pads), shape=shape, pads=pads))  # noqa: B023
        shape = next((s for s in random if not violations(config, str(dtype)[6:], H200, s)), None)
        if shape is None:
            write(report, {"ok": False, "failed": f"none of {random} can be split {config.split_k} ways"})
        else:
            write(report, guarded(lambda: check_random(config, shape, dtype), shape=shape))  # noqa: B023


def guarded(work: Any, **about: Any) -> dict[str, Any]:
    """A Python error is a row; a broken CUDA context ends the child."""
    try:
        return work()
    except torch.AcceleratorError:
        raise
    except Exception as error:
        return {"ok": False, **about, "failed": f"{type(error).__name__}: {str(error)[:300]}"}


def graph_of(run: Any, launches: int) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(launches):
                run()
    torch.cuda.synchronize()
    return graph


def time_shape(shape: tuple[int, int, int], report: Path) -> None:
    """Medians of interleaved rounds against torch.matmul, L2 warm."""
    m, n, k = shape
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
    flops = 2 * m * n * k
    launches = max(2, min(50, int(2e-3 / (flops / 6e14 + 4e-6))))
    expected = torch.empty(m, n, device="cuda", dtype=a.dtype)
    graphs = {"torch.matmul": graph_of(lambda: torch.matmul(a, b.T, out=expected), launches)}
    for config in TIMED:
        small = m <= 64
        if config.swap != small or violations(config, "bfloat16", H200, shape):
            continue
        out = torch.empty(m, n, device="cuda", dtype=a.dtype)
        graphs[name(config)] = graph_of(launch.prepare(a, b, config, out), launches)
    times: dict[str, list[float]] = {key: [] for key in graphs}
    for round_ in range(12):
        for key, graph in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if round_ >= 2:
                times[key].append(start.elapsed_time(end) * 1e3 / launches)
    best = sorted(times["torch.matmul"])[5]
    for key, found in times.items():
        us = sorted(found)[len(found) // 2]
        row = {
            "case": "time",
            "ok": True,
            "config": key,
            "shape": shape,
            "us": round(us, 2),
            "tflops": round(flops / us / 1e6, 1),
        }
        write(report, row | {"ratio": round(best / us, 3)})


def write(report: Path, row: dict[str, Any]) -> None:
    with report.open("a") as file:
        file.write(json.dumps(row) + "\n")


def child(work: Any, argument: Any, report: Path, log: Path) -> None:
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    torch.backends.cuda.matmul.allow_tf32 = False
    work(argument, report)


def run_children(jobs: list[tuple[str, Any, Any]], workers: int, deadline: float, folder: Path) -> list[dict[str, Any]]:
    """Run (name, work, argument) jobs, ``workers`` at a time; every row names its job."""
    # Forked before CUDA is touched, so that a child starts with everything imported.
    context = multiprocessing.get_context("fork")
    waiting, running, rows = list(enumerate(jobs)), {}, []
    while waiting or running:
        while waiting and len(running) < workers and time.monotonic() < deadline:
            number, (title, work, argument) = waiting.pop(0)
            report, log = folder / f"{number}-{len(title)}.jsonl", folder / f"{number}.log"
            report.touch()
            process = context.Process(target=child, args=(work, argument, report, log))
            process.start()
            running[process] = (title, report, log, time.monotonic())
        if time.monotonic() >= deadline and waiting:
            rows += [
                emit({"config": title, "ok": False, "failed": "not run: out of time"}) for _, (title, _, _) in waiting
            ]
            waiting = []
        for process, (title, report, log, started) in list(running.items()):
            late = time.monotonic() - started > CHILD_LIMIT_S
            if process.is_alive() and not late:
                continue
            if process.is_alive():
                process.kill()
            process.join(10)
            del running[process]
            rows += [emit({"config": title, **json.loads(line)}) for line in report.read_text().splitlines()]
            if late or process.exitcode:
                why = f"hung: killed after {CHILD_LIMIT_S} s" if late else f"exit {process.exitcode}"
                rows.append(emit({"config": title, "ok": False, "failed": why, "log": log.read_text()[-600:]}))
        time.sleep(0.02)
    return rows


def emit(row: dict[str, Any]) -> dict[str, Any]:
    if not row["ok"] or row.get("case") == "time":
        print(json.dumps(row), flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="configurations whose name contains this")
    parser.add_argument("--quick", action="store_true", help="the hand-picked configurations, not the whole space")
    parser.add_argument("--no-timing", action="store_true")
    parser.add_argument("--no-checks", action="store_true")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--budget", type=float, default=140, help="seconds after which no new child starts")
    options = parser.parse_args()
    deadline = time.monotonic() + options.budget
    started = time.monotonic()
    chosen = [c for c in configurations(options.quick) if options.only in name(c)]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        if not options.no_checks:
            rows += run_children([(name(c), check_config, c) for c in chosen], options.workers, deadline, Path(folder))
        if not options.no_timing:
            timing = [(f"time {shape}", time_shape, shape) for shape in TIMED_SHAPES]
            rows += run_children(timing, 1, deadline, Path(folder))
    failed = [row for row in rows if not row["ok"]]
    summary = {
        "bench": "check_gemm",
        "versions": {"triton": triton.__version__, "torch": torch.__version__, "python": sys.version.split()[0]},
        "seconds": round(time.monotonic() - started, 1),
        "configurations": len(chosen),
        "cases": len(rows),
        "failed": len(failed),
    }
    print(json.dumps(summary), flush=True)
    target = Path(os.environ.get("OUT", ".")) / "check_gemm.json"
    target.write_text(json.dumps(summary | {"rows": rows}, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
