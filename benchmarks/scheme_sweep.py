"""GPU: every plain kernel under every setting a user would try and every scheme worth trying: is it right, how fast?

    python benchmarks/scheme_sweep.py --out benchmarks/results

Compiles on all cores first. Writes ``compiler_schemes_h200.json``, a row for each (case, setting, scheme): "ok" with
the time of a short reading, "wrong", "hang", "refused" with the reason. Schemes are named outright, past the planner
and its checks.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import tl_cases
from children import cores, each, first_line
from results_file import RESULTS, head, write
from tl_case import Case, Setting

from warpplan.kernels.compiler.strategy.hopper import HopperStrategy

NAME = "compiler_schemes_h200.json"
Job = dict[str, Any]
COMPILE_LIMIT_S, RUN_LIMIT_S = 90.0, 60.0
MOST_HANGS = 3
"""Hangs of one kernel after which its other schemes are left out: each costs a new process."""
WGMMA_ROWS = 64
MOST_ACCUMULATOR_REGISTERS = 160


@functools.cache
def cases() -> dict[str, Case]:
    return {case.name: case for case in tl_cases.all_cases()}


def schemes(case: Case, setting: Setting) -> tuple[HopperStrategy, ...]:
    """Consumers of 64 rows or more that hold their share of the tile, with the two deepest rings that fit; the deepest
    walking over the grid, too, and for the first tile without a wgmma group in flight."""
    slot = case.slot(setting)
    if not slot:
        return ()
    rows = setting.constants["BLOCK_M"]
    columns = sum(v for k, v in setting.constants.items() if k in ("BLOCK_N", "D"))  # scores and output at once
    deepest = min(6, (tl_cases.SHARED_BYTES - 1024 - case.resident(setting)) // slot)
    found = []
    for consumers, warps in ((1, 4), (2, 4), (1, 8)):
        share = rows // consumers
        if share * 4 < WGMMA_ROWS * warps or share * columns > MOST_ACCUMULATOR_REGISTERS * 32 * warps:
            continue
        depths = [d for d in (deepest, deepest - 1) if d >= 2]
        found += [HopperStrategy(consumers, (depth,), warps, 1) for depth in depths]
        if setting.tile == case.settings[0].tile:
            found += [HopperStrategy(consumers, (depth,), warps, 0) for depth in depths[:1]]
    # A kernel that walks over its tiles by itself refuses to be walked.
    walked = [scheme for scheme in found if scheme.in_flight and scheme.depths == (deepest,)]
    return (*found, *(replace(scheme, persistent=1) for scheme in walked))


def tiles(case: Case) -> list[int]:
    """The first setting of each distinct tile; a scheme brings its own warps and depths."""
    seen: dict[Any, int] = {}
    for index, setting in enumerate(case.settings):
        seen.setdefault(setting.tile, index)
    return list(seen.values())


def jobs(case: Case) -> list[Job]:
    unplanned: list[Job] = [{"case": case.name, "setting": i, "scheme": None} for i in range(len(case.settings))]
    planned = [
        {"case": case.name, "setting": i, "scheme": [s.consumers, list(s.depths), s.warps, s.in_flight, s.persistent]}
        for i in tiles(case)
        for s in schemes(case, case.settings[i])
    ]
    return unplanned + planned


def scheme_of(job: Job) -> HopperStrategy | None:
    if job["scheme"] is None:
        return None
    consumers, depths, warps, in_flight, persistent = job["scheme"]
    return HopperStrategy(consumers, tuple(depths), warps, in_flight, persistent)


def what(job: Job) -> str:
    """The kernel and its variant, whatever the shape: what compiles once, and hangs once."""
    case = cases()[job["case"]]
    return f"{case.family}, {case.settings[job['setting']]}, {scheme_of(job)}"


def compile_jobs(wanted: list[Job]) -> Iterator[dict[str, Any]]:
    """Runs in a child; fills the compile caches."""
    from tl_launch import compile_case

    for job in wanted:
        case, started = cases()[job["case"]], time.monotonic()
        try:
            compiled = compile_case(case, case.settings[job["setting"]], scheme_of(job))
            shared = compiled.metadata.shared
            if shared > tl_cases.SHARED_BYTES:
                raise ValueError(f"{shared} bytes of shared memory: at most {tl_cases.SHARED_BYTES} fit")
        except Exception as error:
            yield {"status": "refused", "reason": first_line(error)}
        else:
            yield {"status": "ok", "seconds": round(time.monotonic() - started, 2), "shared_bytes": shared}


def run_jobs(wanted: list[Job]) -> Iterator[dict[str, Any]]:
    """Runs in a child with the GPU to itself; it ends where a launch hangs."""
    from graph_timing import capture, run_for, summary
    from tl_launch import allow_scratch, compile_case, direct, ended, errors, input_sets, right, tensors, wait

    @functools.lru_cache(maxsize=1)
    def sets(case: Case) -> list[Any]:
        return [tensors(case, seed) for seed in range(input_sets(case))]

    allow_scratch()
    for job in wanted:
        case = cases()[job["case"]]
        setting = case.settings[job["setting"]]
        try:
            compiled = compile_case(case, setting, scheme_of(job))
            found = errors(case, functools.partial(direct, compiled, case, setting))
            if not right(found):
                yield {"status": "wrong", "errors": found}
                continue
            graph = capture([direct(compiled, case, setting, made) for made in sets(case)], floor_us(case))
            wait()
            run_for(*graph, 8.0)
            us = round(summary(run_for(*graph, 10.0))["us"], 3)
            spills = {"registers": compiled.n_regs, "spills": compiled.n_spills}
            yield {"status": "ok", "errors": found, "us": us, **spills}
        except Exception as error:
            yield (result := ended(error))
            if "fatal" in result:
                os._exit(1)


def floor_us(case: Case) -> float:
    """A lower bound of the time, to size the graphs."""
    return max(case.flops / 900e12, case.bytes / 4.8e12) * 1e6 + 3


def compile_all(wanted: list[Job], *, until: float) -> dict[str, dict[str, Any]]:
    """Each distinct variant once, on all cores: its result by :func:`what`."""
    distinct = {what(job): job for job in reversed(wanted)}
    done = each(
        "scheme_sweep:compile_jobs", list(distinct.values()), limit_s=COMPILE_LIMIT_S, workers=cores(), until=until
    )
    return dict(zip(distinct, done, strict=True))


def sweep(
    wanted: list[Job], *, until: float, on_result: Callable[[Job, dict[str, Any]], None] = lambda job, result: None
) -> list[dict[str, Any]]:
    """Compile, then run each job; variants that do not compile, or hang or crash at one shape, are not run again."""
    compiled = compile_all(wanted, until=until)
    bad: dict[str, str] = {v: r.get("reason", r["status"]) for v, r in compiled.items() if r["status"] != "ok"}
    hangs: dict[str, int] = {}

    def skip(job: Job) -> str:
        family = cases()[job["case"]].family
        if job["scheme"] is not None and hangs.get(family, 0) >= MOST_HANGS:
            return f"{MOST_HANGS} schemes of this kernel hang"
        return bad.get(what(job), "")

    def note(job: Job, result: dict[str, Any]) -> None:
        if result["status"] in ("hang", "timeout", "crash"):
            bad.setdefault(what(job), f"{result['status']} at {job['case']}")
            family = cases()[job["case"]].family
            hangs[family] = hangs.get(family, 0) + 1
        on_result(job, result)

    return each("scheme_sweep:run_jobs", wanted, limit_s=RUN_LIMIT_S, until=until, skip=skip, on_result=note)


def row(job: Job, result: dict[str, Any]) -> dict[str, Any]:
    case = cases()[job["case"]]
    scheme = scheme_of(job)
    return {
        "kernel": case.family, **job, "setting_text": str(case.settings[job["setting"]]),
        "scheme_text": str(scheme) if scheme else None, **result,
    }  # fmt: skip


def selected(only: str) -> list[Case]:
    """Cases whose name contains one of the comma-separated words; all where there are none."""
    words = [word for word in only.split(",") if word]
    found = [case for case in cases().values() if not words or any(word in case.name for word in words)]
    if not found:
        print(f"error: no case is named like {only!r}: expected some of {', '.join(cases())}", file=sys.stderr)
        raise SystemExit(2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="words in the cases' names, comma-separated")
    parser.add_argument("--limit-s", type=float, default=240.0, help="start nothing later; what is done is kept")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    import torch

    wanted = [job for case in selected(arguments.only) for job in jobs(case)]
    started, rows = time.monotonic(), []

    def report(job: Job, result: dict[str, Any]) -> None:
        rows.append(row(job, result))
        if job["scheme"] is not None or result["status"] != "ok":
            detail = f"{result['us']} us" if "us" in result else result.get("reason") or result.get("errors")
            print(f"{time.monotonic() - started:5.0f} s {what(job)}: {result['status']} {detail}", flush=True)

    try:
        sweep(wanted, until=started + arguments.limit_s, on_result=report)
    finally:
        write(arguments.out / NAME, {**head("compiler_schemes", torch.cuda.get_device_name()), "rows": rows})


if __name__ == "__main__":
    main()
