"""No GPU: what `planned` would make of every kernel of the corpus, and why where nothing.

    python benchmarks/plan_corpus.py [WORDS] [--configs 2] [--workers N]

Each kernel, at one or two configurations of its list, is compiled for sm_90 to the cut, captured, ranked with the
profile of an H200, lowered under the best strategy that can be, finished, and its barriers are played, as by
``warpplan ws``. Then the finished kernel is played in numpy at small sizes (``corpus_play.py``), and what it computes
is compared with the kernel as written. Each in a child with a time limit: a crash or a hang is a row. Prints a table,
writes ``corpus.json``. A row's ``status``:

    planned   a strategy is predicted to gain, was lowered, and its barriers play to the end
    no gain   strategies fit, and leaving the kernel alone is predicted to be as fast
    refused   none fits: ``operation`` and ``line`` say what keeps it from being specialised
    failed    strategies are predicted to gain, none could be lowered: ``operation`` and ``line`` of the first failure
    hangs     the barriers of the lowered kernel would hang
    differs   the lowered kernel, played, computes something else, or has a race: ``computes`` says what
    error, crash, timeout    a defect of ours, or a kernel that does not compile

``stored`` is the same as ``computes`` of the kernel with TMA stores, where that is tried, too.

Of a planned row ``computes`` is "equal" (to the bit), "within N roundings", or "not played" with the operation that the
player does not know; ``played`` the sizes, ``programs`` how many of the grid.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import corpus_registry
from children import cores, each, first_line
from corpus_entry import STYLES, Entry, options, source
from corpus_play import WRONG, computes
from results_file import RESULTS, head, write

NAME = "corpus.json"
DEVICE = "NVIDIA H200"
LIMIT_S = 180.0
"""For one configuration; the slowest kernels take half of it on one of two shared cores."""
MOST_SCHEMES = 5
"""Strategies that are lowered for one kernel at most, as many as ``planned`` tries."""
GOOD = ("planned", "no gain")
DEFECTS = ("error", "crash", "timeout", "hangs", "differs")
Row = dict[str, Any]


def configurations(entry: Entry, most: int) -> list[int]:
    """Of the list: the first, then the one with the largest tile, in whatever names the kernel gives its sizes."""
    numbers = range(len(entry.configs))

    def tile(index: int) -> int:
        size = 1
        for name, value in entry.configs[index].kwargs.items():
            if name.startswith("BLOCK"):
                size *= value
        return size

    largest = max(numbers, key=lambda i: (tile(i), -i))
    return list(dict.fromkeys((0, largest)))[:most]


def plan_jobs(jobs: Sequence[tuple[str, int]]) -> Iterator[Row]:
    """Runs in a child: a row's findings for each (entry, number of its configuration)."""
    for name, index in jobs:
        begun = time.monotonic()
        try:
            found = planned_as(corpus_registry.entries()[name], index)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(last.filename).name}:{last.lineno}"
            found = {"status": "error", "reason": f"{first_line(error)} at {place}"}
        yield {**found, "seconds": round(time.monotonic() - begun, 1)}


def planned_as(entry: Entry, index: int) -> Row:
    """What is planned for one configuration; see the module."""
    from triton.backends.compiler import GPUTarget

    from warpplan.kernels.compiler.analysis.capture import capture
    from warpplan.kernels.compiler.costing import hopper_ranking
    from warpplan.kernels.compiler.pointers.planned_cut import explained, planned_cut
    from warpplan.planner.values.device import device
    from warpplan.service.workflow.profiles import Profiles

    config = entry.configs[index]
    made = source(entry, entry.problem(), config)
    target = GPUTarget("cuda", 90, 32)
    at_cut = planned_cut(made, target, options(config))
    captured = explained(capture(at_cut.text), at_cut.described)
    profile = Profiles().of(DEVICE).profile
    ranked = hopper_ranking.rank(captured, profile, device(DEVICE), stages=config.num_stages)
    product = any("dot" in work.kind for loop in captured.loops for work in loop.work)
    base = {"loops": len(captured.loops), "dot_in_loop": product, "gain": 1.0, "scheme": None}
    if not any(r.scheme is not None for r in ranked):
        known = next((o for o in captured.obstacles if o.loop), None) or captured.obstacle()
        if known is None or captured.copied:  # what TMA cannot load is copied: something else is in the way
            known = hopper_ranking.no_fit(captured.copied[-1] if captured.copied else captured, device(DEVICE))
        return {**base, "status": "refused", "reason": known.reason, "operation": known.operation, "line": known.line}
    better = [r for r in ranked if r.scheme is not None and r.gain > 1.0 and not r.scheme.stores_by_tma]
    if not better:
        alone = next(r for r in ranked if r.scheme is None)
        nearest = max(r.gain for r in ranked if r.scheme is not None)
        return {**base, "status": "no gain", "reason": alone.reason, "gain": round(nearest, 3)}
    found, scheme = lowered(made, target, options(config), better[:MOST_SCHEMES])
    if scheme is not None:
        found |= computes(entry, index, scheme, target)
        if found["computes"].startswith(WRONG):
            found |= {"status": "differs", "reason": found["computes"]}
        found |= stored_by_tma(entry, index, made, target, [r for r in ranked if r.scheme and r.scheme.stores_by_tma])
    return {**base, **found}


def stored_by_tma(entry: Entry, index: int, made: Any, target: Any, ranked: Sequence[Any]) -> Row:
    """What the kernel computes with TMA stores, for a row: ``stored`` as ``computes``; nothing where it has none."""
    if not ranked:
        return {}
    found, scheme = lowered(made, target, options(entry.configs[index]), ranked[:1])
    if scheme is None:
        return {"stored": found["reason"], **({"status": "hangs"} if found["status"] == "hangs" else {})}
    told = computes(entry, index, scheme, target)["computes"]
    return {"stored": told, **({"status": "differs", "reason": told} if told.startswith(WRONG) else {})}


def lowered(made: Any, target: Any, wanted: dict[str, Any], better: Sequence[Any]) -> tuple[Row, Any]:
    """The first strategy that can be lowered, and what its barriers do; else why the first could not. With the strategy
    where its barriers play to the end."""
    from warpplan.kernels.compiler.exceptions import CannotPlan
    from warpplan.kernels.compiler.inspection.barrier_check import check_barriers
    from warpplan.kernels.compiler.inspection.finished import finished_text

    refusals: list[CannotPlan] = []
    for ranked in better:
        found = {"gain": round(ranked.gain, 3), "scheme": str(ranked.scheme), "tried": len(refusals) + 1}
        try:
            report = check_barriers(finished_text(made, target, wanted, ranked.scheme))
        except CannotPlan as error:
            refusals.append(error)
            continue
        if report.findings:
            return {**found, "status": "hangs", "reason": "; ".join(map(str, report.findings))[:400]}, None
        return {
            **found, "status": "planned", "reason": ranked.reason, "waits_played": report.played,
        }, ranked.scheme  # fmt: skip
    first = refusals[0]
    return {
        "status": "failed", "reason": first.reason, "operation": first.operation, "line": first.line,
        "gain": round(better[0].gain, 3), "scheme": str(better[0].scheme),
    }, None  # fmt: skip


def row(entry: Entry, index: int, result: Row) -> Row:
    """A row of the results file; ``chosen_us`` and its like are what the GPU's benchmark adds in a file of its own."""
    config = entry.configs[index]
    problem = entry.problem()
    return {
        "kernel": entry.name, "family": entry.family, "style": entry.style, "has_dot": entry.has_dot,
        "shape": [f"{name}={value}" for name, value in entry.sizes.items()], "dtype": entry.dtypes[0],
        "config": {**plain(entry.constants(problem, config)), **options(config)}, "number": index, **result,
    }  # fmt: skip


def plain(constants: dict[str, Any]) -> dict[str, Any]:
    """Constexprs as JSON: a dtype by its name."""
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in constants.items()
    }


def outcome(rows: Sequence[Row]) -> str:
    """Of one kernel: a defect where there is one, else the best that one of its configurations came to."""
    found = {r["status"] for r in rows}
    order = (*DEFECTS, "planned", "no gain", "failed", "refused", "skipped")
    return next(status for status in order if status in found)


def summarised(rows: Sequence[Row]) -> Row:
    """Kernels by load style and outcome, all of them and those with a product; the share of the latter that is planned
    or predicted not to gain; refusals without an operation and a line; defects."""
    kernels: dict[str, list[Row]] = defaultdict(list)
    for r in rows:
        kernels[r["kernel"]].append(r)
    by_style = {style: Counter[str]() for style in STYLES}
    with_dot = {style: Counter[str]() for style in STYLES}
    for same in kernels.values():
        result = outcome(same)
        by_style[same[0]["style"]][result] += 1
        if same[0]["has_dot"]:
            with_dot[same[0]["style"]][result] += 1
    total = sum((counts for counts in with_dot.values()), Counter[str]())
    good = sum(total[status] for status in GOOD)
    played = Counter("equal" if r["computes"] == "equal" else r["computes"].split()[0] for r in rows if "computes" in r)
    unsaid = [r["kernel"] for r in rows if r["status"] in ("refused", "failed") and not (r["operation"] and r["line"])]
    return {
        "kernels": len(kernels),
        "configurations": len(rows),
        "by_style": {style: dict(counts) for style, counts in by_style.items()},
        "with_dot_by_style": {style: dict(counts) for style, counts in with_dot.items()},
        "with_dot": total.total(),
        "with_dot_planned_or_no_gain": round(good / max(1, total.total()), 4),
        "with_dot_planned": round(total["planned"] / max(1, total.total()), 4),
        "computes": dict(played),
        "stored": dict(Counter(r["stored"] for r in rows if "stored" in r)),
        "refusals_without_operation_or_line": sorted(set(unsaid)),
        "defects": sorted({r["kernel"] for r in rows if r["status"] in DEFECTS}),
        "goal": 0.85,
    }


def line(r: Row) -> str:
    said = f"{r['gain']:.2f} {r['scheme']}; computes {r['computes']}" if r["status"] == "planned" else r["reason"]
    said += f"; with TMA stores {r['stored']}" if "stored" in r else ""
    where = " ".join(part for part in (r.get("operation", ""), f"({r['line']})" if r.get("line") else "") if part)
    return f"{r['kernel']:34} {r['style']:18} {r['number']:2} {r['status']:8} {where}{': ' if where else ''}{said}"


def table(summary: Row) -> str:
    """Kernels by style and outcome, as text."""
    heads = ("planned", "no gain", "failed", "refused", *DEFECTS)
    lines = [f"{'kernels with a product':24}{''.join(f'{name:>9}' for name in heads)}    all"]
    for style, counts in summary["with_dot_by_style"].items():
        numbers = "".join(f"{counts.get(name, 0):9}" for name in heads)
        lines.append(f"{style:24}{numbers}{sum(counts.values()):7}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="parts of the kernels' names, families or styles")
    parser.add_argument("--configs", type=int, default=2, choices=(1, 2), help="of each kernel's list")
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--limit-s", type=float, default=870.0, help="start nothing later")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    chosen = corpus_registry.chosen(arguments.words)
    if not chosen:
        parser.error(f"no kernel matches {' '.join(arguments.words)}")
    jobs = [(e, i) for e in chosen for i in configurations(e, arguments.configs)]
    until = time.monotonic() + arguments.limit_s
    rows: dict[tuple[str, int], Row] = {}

    def report(job: tuple[str, int], result: Row) -> None:
        made = row(corpus_registry.entries()[job[0]], job[1], {"gain": 1.0, "scheme": None, **result})
        rows[job[0], job[1]] = made
        print(line(made), flush=True)

    listed = [(e.name, i) for e, i in jobs]
    each("plan_corpus:plan_jobs", listed, limit_s=LIMIT_S, workers=arguments.workers, until=until, on_result=report)
    ordered = [rows[key] for key in listed]
    summary = summarised(ordered)
    write(arguments.out / NAME, {**head("corpus", "none: compiled for sm_90"), "summary": summary, "rows": ordered})
    print(f"\n{table(summary)}")
    print(f"planned or no gain, of {summary['with_dot']} with a product: {summary['with_dot_planned_or_no_gain']:.0%}")
    print(f"played: {', '.join(f'{count} {name}' for name, count in summary['computes'].items()) or 'none'}")
    if summary["defects"]:
        print(f"defects: {', '.join(summary['defects'])}")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
