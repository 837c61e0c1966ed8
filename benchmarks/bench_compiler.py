"""GPU: unmodified `tl` kernels, planned against the same kernels unplanned, and against cuBLAS and cuDNN.

    python benchmarks/bench_compiler.py --out benchmarks/results

Both sides are tuned over the same tiles: the unplanned kernel over warps and stages, the planned one over schemes. The
readings of ``scheme_sweep.py`` (taken now, or read with ``--sweep FILE``) choose three finalists of each side. These,
the unplanned kernel at the planned tile, ``planned()`` around the fastest unplanned setting (``--planned``) and the
peers are timed alternately in one process, L2 cache cold and the clock settled, after each has been checked on fresh
inputs. Writes ``compiler_h200.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from children import each, first_line
from results_file import RESULTS, head, read_rows, write
from scheme_sweep import NAME as SWEEP
from scheme_sweep import Job, cases, floor_us, jobs, row, scheme_of, selected, sweep
from tl_case import Case

NAME = "compiler_h200.json"
FINALISTS = 3
ROUNDS = 7
SHORT_US, SHORT_ROUNDS = 50.0, 21
"""Kernels that take so little time scatter by several per cent from round to round."""
LIMIT_S = 90.0
POWER_LIMITED_FLOP_PER_BYTE = 300.0
GOALS = {"gemm_over_cublas": 1.0, "worst_over_itself": 0.99, "specialised_over_unplanned": 1.15}


def finalists(case: Case, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The child's job: the best settings and schemes that a sweep's rows of ``case`` name."""
    ok = sorted((r for r in rows if r["case"] == case.name and r["status"] == "ok"), key=lambda r: r["us"])
    plain = [r["setting"] for r in ok if r["scheme"] is None]
    planned = [[r["setting"], r["scheme"]] for r in ok if r["scheme"] is not None][:FINALISTS]
    at_tile = [i for i in plain if planned and case.settings[i].tile == case.settings[planned[0][0]].tile]
    chosen = list(dict.fromkeys(plain[:FINALISTS] + at_tile[:1]))
    return {"case": case.name, "unplanned": chosen, "planned": planned, "same_tile": at_tile[:1]}


def compare_jobs(wanted: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Runs in a child; see the module. A launch that hangs ends it."""
    from tl_launch import allow_scratch, ended

    allow_scratch()
    for job in wanted:
        try:
            yield compare(cases()[job["case"]], job)
        except Exception as error:
            yield (result := ended(error))
            if "fatal" in result:
                os._exit(1)


def compare(case: Case, job: dict[str, Any]) -> dict[str, Any]:
    """Time of every contender, its errors, and what did not run."""
    from graph_timing import paired, summary
    from tl_launch import compile_case, direct, errors, input_sets, ordinary, right, tensors

    makers: dict[str, Any] = {}
    for index in job["unplanned"]:
        setting = case.settings[index]
        makers[f"unplanned {index}"] = functools.partial(direct, compile_case(case, setting, None), case, setting)
    for number, (index, scheme) in enumerate(job["planned"]):
        setting = case.settings[index]
        compiled = compile_case(case, setting, scheme_of({"scheme": scheme}))
        makers[f"planned {number}"] = functools.partial(direct, compiled, case, setting)
    decisions = Path(tempfile.mkdtemp(prefix="warpplan-"))
    context: Any = contextlib.nullcontext()
    if "api" in job:
        from warpplan.kernels import planned

        context = planned(decisions, background=False)
        makers["planned()"] = functools.partial(ordinary, case, case.settings[job["api"]])
    sets = [tensors(case, seed) for seed in range(input_sets(case))]
    contenders, found, failed = {}, {}, {}
    with context:
        if "planned()" in makers:
            errors(case, makers["planned()"])  # the first launch is never planned
        for name, maker in makers.items():
            found[name] = errors(case, maker)
            if right(found[name]):
                contenders[name] = [maker(made) for made in sets]
            else:
                failed[name] = f"wrong: {found[name]}"
        for name, peer in case.peers.items():
            try:
                contenders[name] = [peer(made) for made in sets]
                contenders[name][0]()
            except Exception as error:
                contenders.pop(name)
                failed[name] = first_line(error)
        heavy = case.flops / case.bytes > POWER_LIMITED_FLOP_PER_BYTE
        rounds = ROUNDS if floor_us(case) > SHORT_US else SHORT_ROUNDS
        times = paired(contenders, floor_us(case), rounds, *((20.0, 15.0) if heavy else (2.0, 6.0)))
    return {
        "status": "ok", "times": {name: summary(samples) for name, samples in times.items()}, "errors": found,
        "failed": failed, "decided": [json.loads(file.read_text()) for file in decisions.glob("*.json")],
    }  # fmt: skip


def compared(case: Case, job: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """A results row; ratios are other time over planned time. A kernel that no scheme fits is what ``planned()`` makes
    of it; where that was not timed there is no planned time."""
    base = {"kernel": case.family, "case": case.name, "dtype": "bfloat16", "status": result["status"]}
    if result["status"] != "ok":
        return {**base, "reason": result.get("reason", "")}
    us = {name: t["us"] for name, t in result["times"].items()}
    unplanned = min((us[n], n) for n in us if n.startswith("unplanned"))
    named = [(us[n], n) for n in us if n.startswith("planned ")]
    whole = us.get("planned()")
    decided = [{key: d[key] for key in ("scheme", "reason", "planned_us", "unplanned_us")} for d in result["decided"]]
    best = min(named) if named else (whole, "planned()")
    index, scheme = job["planned"][int(best[1].split()[1])] if named else (job.get("api"), None)
    same = us.get(f"unplanned {job['same_tile'][0]}") if job["same_tile"] else None

    def over(other: float | None) -> float | None:
        return round(other / best[0], 4) if other and best[0] else None

    return {
        **base,
        "unplanned_us": unplanned[0], "unplanned": str(case.settings[int(unplanned[1].split()[1])]),
        "planned_us": best[0], "planned": str(scheme_of({"scheme": scheme})) if scheme else "planned()",
        "tile": str(case.settings[index]).split(",")[0] if index is not None else None,
        "tflops": round(case.flops / best[0] * 1e-6, 1) if best[0] else None,
        "gb_s": round(case.bytes / best[0] * 1e-3, 1) if best[0] else None,
        "over_unplanned": over(unplanned[0]), "over_same_tile": over(same),
        "over_peers": {name: over(us[name]) for name in case.peers if name in us and best[0]},
        "api": str(case.settings[job["api"]]) if whole else None, "api_decided": decided,
        "api_over_unplanned": round(us.get(f"unplanned {job['api']}", unplanned[0]) / whole, 4) if whole else None,
        "specialised": bool(named), "times": result["times"], "errors": result["errors"], "failed": result["failed"],
    }  # fmt: skip


def geometric_mean(values: list[float]) -> float | None:
    return round(math.exp(sum(map(math.log, values)) / len(values)), 4) if values else None


def summarised(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The goals' figures: GEMM over cuBLAS by kernel; the worst that ``planned()`` makes of a kernel's best setting;
    where specialised, the means over the unplanned kernel at the same tile and over its best tile of all."""
    ok = [r for r in rows if r["status"] == "ok" and r["planned_us"]]
    plain = ("gemm_persistent", "gemm_grouped_order")
    return {
        "gemm_over_cublas": {
            kernel: geometric_mean([r["over_peers"]["cublas"] for r in ok if r["kernel"] == kernel and r["over_peers"]])
            for kernel in plain
        },
        "worst_over_itself": min((r["api_over_unplanned"] for r in ok if r["api_over_unplanned"]), default=None),
        "specialised_over_same_tile": geometric_mean([r["over_same_tile"] for r in ok if r["over_same_tile"]]),
        "specialised_over_best_tile": geometric_mean([r["over_unplanned"] for r in ok if r["specialised"]]),
        "specialised": sum(r["specialised"] for r in ok),
        "compared": len(ok),
        "not_compared": [r["case"] for r in rows if r not in ok],
        "goals": GOALS,
    }


def line(r: dict[str, Any]) -> str:
    if r["status"] != "ok":
        return f"{r['case']}: {r['status']}: {r['reason']}"
    if not r["planned_us"]:
        return f"{r['case']}: unplanned {r['unplanned_us']:.1f} us, no scheme runs; {r['failed']}"
    others = {"unplanned": r["over_unplanned"], "same tile": r["over_same_tile"], **r["over_peers"]}
    return (
        f"{r['case']}: {r['planned_us']:.1f} us, {r['tflops']} TFLOP/s ({r['tile']}, {r['planned']}); "
        f"{', '.join(f'{n} {v}' for n, v in others.items())}; planned() {r['api_over_unplanned']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="words in the cases' names, comma-separated")
    parser.add_argument("--sweep", type=Path, help="take the finalists from these readings instead of taking new ones")
    parser.add_argument("--planned", action="store_true", help="time what planned() chooses, too")
    parser.add_argument("--limit-s", type=float, default=420.0, help="start nothing later; what is done is kept")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    import torch

    device, until = torch.cuda.get_device_name(), time.monotonic() + arguments.limit_s
    chosen = selected(arguments.only)
    if arguments.sweep is None:
        wanted: list[Job] = [job for case in chosen for job in jobs(case)]
        # Two thirds of the time at most: the comparison is what counts.
        swept = [row(j, r) for j, r in zip(wanted, sweep(wanted, until=until - arguments.limit_s / 3), strict=True)]
        write(arguments.out / SWEEP, {**head("compiler_schemes", device), "rows": swept})
    else:
        swept = read_rows(arguments.sweep)
    finals = [job for case in chosen if (job := finalists(case, swept))["unplanned"]]
    if arguments.planned:
        seen: set[str] = set()
        for job in finals:  # once a kernel: the first use of a plan compiles and checks in a child of its own
            family = cases()[job["case"]].family
            if family not in seen:
                job["api"] = job["unplanned"][0]
                seen.add(family)
    rows: list[dict[str, Any]] = []

    def report(job: dict[str, Any], result: dict[str, Any]) -> None:
        rows.append(compared(cases()[job["case"]], job, result))
        print(line(rows[-1]), flush=True)
        write(arguments.out / NAME, {**head("compiler", device), "summary": summarised(rows), "rows": rows})

    each("bench_compiler:compare_jobs", finals, limit_s=LIMIT_S, until=until, on_result=report)
    print(json.dumps(summarised(rows), indent=1))


if __name__ == "__main__":
    main()
