"""Figures from ``benchmarks/results/``: the README's five, the tables of the measurements page, single numbers.

    python docs/_ext/recorded_figures.py    # writes the five into README.md

Figures are computed from rows where a file's summary does not hold them, so that they follow a new recording.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- figures: written by docs/_ext/recorded_figures.py -->", "<!-- end of figures -->"

Row = dict[str, Any]


@cache
def load(name: str) -> dict[str, Any]:
    """The results file ``name``, without its suffix."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def recorded(name: str, path: str, form: str) -> str:
    """One value of a results file, formatted: keys and indices joined by dots. ``KeyError`` where there is none."""
    value: Any = load(name)
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return format(value, form).replace("%", " %").replace("-", "−")


def figure_rows() -> list[tuple[str, str, str]]:
    """(what was measured, the figure, its files) of the five figures of the first screen."""
    return [_gemm(), _unmodified(), _solver(), _packing(), _planning()]


def figure_table() -> str:
    rows = ["| what | measured | results file |", "|---|---|---|"]
    for what, figure, names in figure_rows():
        rows.append(f"| {what} | {figure} | {', '.join(f'`{name}.json`' for name in names.split())} |")
    return "\n".join(rows)


def gemm_table() -> str:
    """One line a held-out shape: the chosen plan's time and rate, and the others' times over it."""
    lines = ["| M, N, K | chosen, µs | TFLOP/s | search | cuBLAS | autotune | Inductor |", "|---" + "|---:" * 6 + "|"]
    for row in load("gemm_h200_heldout")["rows"]:
        m, n, k = row["shape"]
        us = row["chosen_us"]
        others = [row["best_us"], *(row["peers"][peer] for peer in ("cublas", "autotune", "inductor"))]
        cells = [f"{m}, {n}, {k}", f"{us:.1f}", f"{2 * m * n * k / us * 1e-6:.0f}", *(f"{t / us:.2f}" for t in others)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def compiler_table() -> str:
    """One line a specialised case: the planned kernel's time and rate; over it the unplanned one's and the peer's."""
    lines = ["| kernel | planned, µs | TFLOP/s | same tile | best tile | peer |", "|---" + "|---:" * 5 + "|"]
    for row in load("compiler_h200")["rows"]:
        if row["status"] == "ok" and row["specialised"]:
            ratios = (row["over_same_tile"], row["over_unplanned"], next(iter(row["over_peers"].values()), None))
            cells = [row["case"].replace("_", " "), f"{row['planned_us']:.1f}", f"{row['tflops']:.0f}"]
            lines.append(f"| {' | '.join([*cells, *('' if r is None else f'{r:.2f}' for r in ratios)])} |")
    return "\n".join(lines)


def vector_add_table() -> str:
    """One line a held-out length and dtype: the chosen plan's time; over it the prediction and the others' times."""
    lines = ["| N | dtype | chosen, µs | predicted | search | torch.add |", "|---:|---" + "|---:" * 4 + "|"]
    for row in load("vector_add_h200")["rows"]:
        if row["split"] == "heldout":
            us = row["chosen_us"]
            ratios = (row["predicted_us"] / us, row["best_us"] / us, row["peers"]["torch.add"] / us)
            cells = [f"{row['shape'][0]:,}", row["dtype"], f"{us:.2f}", *(f"{ratio:.2f}" for ratio in ratios)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def kernels_table(card: str = "h200") -> str:
    """One line a kernel, split and peer: how many shapes, the peer's time over the chosen plan's, and regret."""
    lines = [
        "| kernel | beside | shapes | geometric mean | least | regret | time error |",
        "|---|---" + "|---:" * 5 + "|",
    ]
    for kernel, splits in load(f"kernels_summary_{card}")["compared"].items():
        for split, named in (("heldout", "held out"), ("train", "training")):
            found = splits.get(split, {"ratios": {}})
            ours = [f"{found[name]:.1%}" if name in found else "" for name in ("regret", "time_error_median")]
            for peer, ratio in found["ratios"].items():
                shapes = f"{ratio['rows']} {named}"
                cells = [kernel, peer, shapes, f"{ratio['geomean']:.3f}", f"{ratio['least']:.3f}", *ours]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def gemm_many_sections() -> str:
    """GEMM over many shapes on each card that has timed some, the one with the most shapes first."""
    cards = [card for card in ("h200", "h100") if (RESULTS / f"gemm_many_summary_{card}.json").exists()]
    cards.sort(key=lambda card: -_of_many(card)["shapes"])
    return "\n\n".join(map(gemm_many_section, cards))


def gemm_many_section(card: str) -> str:
    """Picture and figures of one card."""
    found = load(f"gemm_many_summary_{card}")
    lines = [
        f"### Many shapes on an {card.upper()}",
        "",
        f"`make bench-gemm-many` has timed the first {found['all']['shapes']:,} of 1,200 products of public models' "
        f"layers on an {card.upper()}, in an order drawn before the first run: dense and mixture-of-experts language "
        "models, vision, recommenders; forward and both backward products; 1 to 16,384 tokens. A point is a shape; "
        f"every row is in `gemm_many_{card}.json`.",
        "",
        f"![Speed over cuBLAS by FLOP of the product, {card.upper()}](gemm-many-{card}.svg)",
        "",
        "| | shapes | median | geometric mean | without odd widths | worst 1% | least | best of 8 |",
        "|---" + "|---:" * 7 + "|",
    ]
    groups = {"all": found["all"], **found["split"], **found["kind"], **found["product"]}
    for name, group in groups.items():
        ratio = group["cublas_over_chosen"]
        names = ("median", "geomean", "geomean_regular_widths", "worst_1_percent", "least")
        cells = [f"{ratio[key]:.3f}" for key in names]
        lines.append(f"| {name} | {group['shapes']} | {' | '.join(cells)} | {group['best_of_8_over_chosen']:.3f} |")
    shared = ", ".join(
        f"{entry['feature']} ({entry['of_worst']:.0%} of them, {entry['of_all']:.0%} of all)"
        for entry in found["shared"][:5]
    )
    missed = [
        f"{goal['what']} {goal['measured']:.3f} ({goal['goal']} wanted)" for goal in found["goals"] if not goal["met"]
    ]
    lines += [
        "",
        f"The slowest 5% have in common: {shared}. " + (f"Goals missed: {'; '.join(missed)}." if missed else ""),
    ]
    return "\n".join(lines).replace("%", " %")


def _gemm() -> tuple[str, str, str]:
    heldout = load("gemm_summary_h200")["rows"]["heldout"]
    ratio = heldout["cublas_over_chosen"]
    figure = (
        f"{ratio['geomean']:.2f}× cuBLAS's speed in the geometric mean, {ratio['geomean_regular_widths']:.2f}× where "
        f"rows start on 16 bytes, worst {ratio['worst']:.2f}×; of public models' products {_many_ratio('h100')}, "
        f"{_many_ratio('h200')}"
    )
    what = f"GEMM as chosen, no search on the GPU, {heldout['shapes']} held-out shapes, H200"
    return what, figure, "gemm_summary_h200 gemm_many_summary_h100 gemm_many_summary_h200"


def _of_many(card: str) -> dict[str, Any]:
    """The figures of all shapes that ``bench_gemm_many.py`` has timed on a card."""
    found: dict[str, Any] = load(f"gemm_many_summary_{card}")["all"]
    return found


def _many_ratio(card: str) -> str:
    found = _of_many(card)
    return f"{found['cublas_over_chosen']['geomean']:.3f}× over {found['shapes']:,} on an {card.upper()}"


def _unmodified() -> tuple[str, str, str]:
    summary = load("compiler_h200")["summary"]
    figure = (
        f"{summary['specialised_over_same_tile']:.2f}× the unplanned kernel at the same tile, "
        f"{summary['specialised_over_best_tile']:.2f}× at its best one"
    )
    return f"`planned()` on unmodified Triton kernels, {summary['specialised']} cases, H200", figure, "compiler_h200"


def _solver() -> tuple[str, str, str]:
    rows = load("solver")["rows"]
    parts = []
    for split, name in (("train", "training"), ("practice", "practice"), ("heldout", "held-out")):
        some = [row for row in rows if row.get("split", "train") == split]
        if some:
            times = [row["wall_s"] for row in some]
            proven = sum(row["status"] in ("optimal", "infeasible") for row in some)
            parts.append(
                f"{proven} of {len(some)} {name} loops proven, median {statistics.median(times):.2g} s, "
                f"worst {max(times):.2g} s"
            )
    return "Schedule, partition, rings and memory of a loop, solved together, two cores", "; ".join(parts), "solver"


def _packing() -> tuple[str, str, str]:
    rows = load("packing")["rows"]
    hard = [row for row in rows if row["kernel"] == "minimalloc"]
    packed = sum(row["status"] == "packed" for row in rows)
    figure = (
        f"MiniMalloc's {', '.join(row['instance'].removeprefix('minimalloc-') for row in hard)} within "
        f"{_longest(hard)} s each, {packed} of {len(rows)} packed in all (longest {_longest(rows)} s)"
    )
    return "Buffers into a memory without a byte to spare", figure, "packing"


def _planning() -> tuple[str, str, str]:
    medians = {row["name"]: row["median"] for row in load("planning_speed")["rows"]}
    figure = (
        f"first answer in {medians['first_answer']:.2f} s, later ones in {medians['warm_answer'] * 1e3:.1f} ms; "
        f"10,000 shapes in {medians['batch']:.0f} s"
    )
    return "Planning on two cores, no GPU", figure, "planning_speed"


def _longest(rows: Sequence[Row]) -> str:
    return f"{max(row['wall_s'] for row in rows):.2g}"


def with_figures(readme: str) -> str:
    """``readme`` with today's five figures between their marks."""
    between = re.compile(f"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.DOTALL)
    return between.sub(lambda _: f"\n{figure_table()}\n\n", readme)


def main() -> None:
    readme = ROOT / "README.md"
    readme.write_text(with_figures(readme.read_text()))


if __name__ == "__main__":
    main()
