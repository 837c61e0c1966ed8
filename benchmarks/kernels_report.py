"""What the kernels' benchmark showed, from its committed results: ratios, regret, errors, goals. No GPU needed.

    python benchmarks/kernels_report.py

Writes ``results/kernels_summary_h200.json``. Ratios are the other's time over the chosen plan's: above 1 the chosen
plan is faster. ``regret`` is the chosen plan's time over the best found, less 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_target import CARD, TARGET
from fit_kernels import searched
from kernel_cases.bench_rows import SPLITS, TABLES
from kernel_tables import SearchedRow, compare_path, exhaustive_path
from recorded_rankings import ranking
from results_file import RESULTS, head, read_rows, write
from time_statistics import geomean

from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded

Row = dict[str, Any]
ROOFLINE = "roofline"


@dataclass(frozen=True)
class Goal:
    """What a ratio of a group's held-out rows should be: its geometric mean, and each row's."""

    group: str
    other: str
    geomean: float
    each: float = 0.0


GOALS = (
    Goal("grouped_gemm forward", "torch._grouped_mm", 1.20, 1.00),
    Goal("grouped_gemm forward", "128-row block loop", 2.62, 2.62),
    Goal("grouped_gemm forward", ROOFLINE, 0.85),
    Goal("grouped_gemm dgrad", "torch._grouped_mm", 1.10),
    Goal("grouped_gemm wgrad", "torch._grouped_mm", 1.10),
    Goal("grouped_gemm_fp8", "torch._scaled_grouped_mm", 1.05),
    Goal("grouped_gemm_fp8 compute-bound", "own bfloat16", 1.50),
    Goal("gemm_fp8", "torch._scaled_mm", 1.02),
    Goal("attention_fp8", "own bfloat16", 1.40),
    Goal("gemm_bias_act", "torch._addmm_activation", 1.00),
    Goal("gemm_bias_act", "eager", 1.10),
    Goal("gemm_bias_act", "torch.compile", 1.06),
    Goal("linear", "torch", 1.00, 0.95),
)
REGRET_GOAL, ERROR_GOAL = 0.03, 0.08


def groups_of(row: Row) -> list[str]:
    """The groups that a row counts in: its table, grouped products one by one, and of grouped fp8 also the rows whose
    products take longer than their bytes."""
    table = row["table"]
    if table == "grouped_gemm":
        product = next((part.split("=")[1] for part in row["shape"] if str(part).startswith("product=")), "forward")
        return [f"{table} {product}"]
    products_us = row["flops"] / row["rates"]["flops_per_s"] * 1e6
    moving_us = row["moved_bytes"] / row["rates"]["copy_bytes_per_s"] * 1e6
    compute_bound = table == "grouped_gemm_fp8" and products_us > moving_us
    return [table, f"{table} compute-bound"] if compute_bound else [table]


def ratios_of(row: Row) -> dict[str, float]:
    """The time of everything that the chosen plan is compared with over the chosen plan's, by the same clock."""
    others = {**row["peers"], **row["others"], ROOFLINE: row["roofline_us"]}
    waited = dict(row.get("waited", {}))
    own_waited = waited.pop("chosen", None)
    return {name: us / row["chosen_us"] for name, us in others.items()} | {
        name: us / own_waited for name, us in waited.items() if own_waited
    }


def ratios(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Geometric mean, least and largest of each other's time over the chosen plan's, over the rows that have it."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, ratio in ratios_of(row).items():
            found.setdefault(name, []).append(ratio)
    return {
        name: {
            "rows": len(values),
            "geomean": round(geomean(values), 4),
            "least": round(min(values), 4),
            "largest": round(max(values), 4),
        }
        for name, values in found.items()
    }


def comparison_summary(rows: Sequence[Row]) -> Row:
    """Ratios, regret against the best that was compared, and the error of the chosen plan's predicted time; ``failed``
    counts the rows whose chosen plan has no time."""
    ran = [row for row in rows if "chosen_us" in row]
    summary: Row = {"rows": len(rows), "failed": len(rows) - len(ran), "ratios": ratios(ran)}
    predicted = [row for row in ran if "predicted_us" in row]
    if predicted:
        regrets = [row["chosen_us"] / row["best_us"] for row in predicted]
        errors = [abs(row["predicted_us"] / row["chosen_us"] - 1) for row in predicted]
        summary |= {
            "regret": round(geomean(regrets) - 1, 4),
            "worst_regret": round(max(regrets) - 1, 4),
            "best_of_8_regret": round(geomean(r["best_of_8_us"] / r["best_us"] for r in predicted) - 1, 4),
            "time_error_median": round(float(np.median(errors)), 4),
        }
    return summary


def replay(searched: SearchedRow, profile: Profile) -> Row:
    """Today's ranking of a row's measured configurations: the first one's regret, the median error over all."""
    times = dict(zip(searched.configs, searched.time_us.tolist(), strict=True))
    known = [(us, times[c]) for c, us in ranking(searched.row, profile) if c in times]
    predicted, real = np.array(known).T
    return {
        "configurations": len(known),
        "regret": float(real[0] / real.min() - 1),
        "best_of_8_regret": float(real[:8].min() / real.min() - 1),
        "time_error_median": float(np.median(np.abs(predicted / real - 1))),
        "chosen_error": float(abs(predicted[0] / real[0] - 1)),
    }


def replay_summary(rows: Sequence[Row]) -> Row:
    return {
        "rows": len(rows),
        "regret": round(geomean(1 + r["regret"] for r in rows) - 1, 4),
        "worst_regret": round(max(r["regret"] for r in rows), 4),
        "best_of_8_regret": round(geomean(1 + r["best_of_8_regret"] for r in rows) - 1, 4),
        "time_error_median": round(float(np.median([r["time_error_median"] for r in rows])), 4),
        "chosen_error_median": round(float(np.median([r["chosen_error"] for r in rows])), 4),
    }


def goals(summaries: dict[str, dict[str, Row]]) -> list[Row]:
    """Each goal with what the held-out rows gave, and whether that meets it: not where a chosen plan failed."""
    found = []
    for goal in GOALS:
        summary = summaries.get(goal.group, {}).get("heldout", {"ratios": {}})
        ratio = summary["ratios"].get(goal.other)
        if ratio is not None:
            met = ratio["geomean"] >= goal.geomean and ratio["least"] >= goal.each and not summary["failed"]
            found.append({**vars(goal), "measured": ratio["geomean"], "least": ratio["least"], "met": met})
    return found


def report(folder: Path, profile: Profile) -> Row:
    """``{"compared", "replayed", "goals"}`` of the results in ``folder``, by group and split."""
    compared: dict[str, dict[str, list[Row]]] = {}
    replayed: dict[str, dict[str, Row]] = {}
    for table in TABLES:
        if (path := compare_path(folder, table)).exists():
            for row in read_rows(path):
                for group in groups_of(row):
                    compared.setdefault(group, {}).setdefault(row["split"], []).append(row)
        if (path := exhaustive_path(folder, table)).exists():
            rows_searched = searched(path)
            for split in SPLITS:
                rows = [replay(m, profile) for m in rows_searched if m.row.split == split]
                if rows:
                    replayed.setdefault(table, {})[split] = replay_summary(rows)
    summaries = {
        group: {split: comparison_summary(rows) for split, rows in by_split.items()}
        for group, by_split in compared.items()
    }
    return {"compared": summaries, "replayed": replayed, "goals": goals(summaries)}


def print_report(found: Row) -> None:
    for group, by_split in found["compared"].items():
        for split, summary in by_split.items():
            text = "; ".join(f"{n} {r['geomean']:.3f} (least {r['least']:.3f})" for n, r in summary["ratios"].items())
            regret = (
                f"regret {summary['regret']:.2%}, error {summary['time_error_median']:.1%}; "
                if "regret" in summary
                else ""
            )
            failed = f" ({summary['failed']} failed)" if summary["failed"] else ""
            print(f"{group} {split}, {summary['rows']} rows{failed}: {regret}{text}")
    for table, splits in found["replayed"].items():
        for split, summary in splits.items():
            print(
                f"replayed {table} {split}, {summary['rows']} rows: regret {summary['regret']:.2%} "
                f"(worst {summary['worst_regret']:.1%}), median error {summary['time_error_median']:.1%}"
            )
    for goal in found["goals"]:
        print(
            f"{'met   ' if goal['met'] else 'MISSED'} {goal['group']} over {goal['other']}: {goal['measured']:.3f} of "
            f"{goal['geomean']:.2f}, least {goal['least']:.3f} of {goal['each']:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found = report(arguments.results, embedded(TARGET.name))
    print_report(found)
    path = arguments.results / f"kernels_summary_{CARD}.json"
    write(path, {**head("kernels_summary", TARGET.name), **found})


if __name__ == "__main__":
    main()
