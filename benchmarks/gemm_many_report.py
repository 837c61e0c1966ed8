"""What GEMM over many shapes showed, from its committed rows: ratios, goals, the worst and what they share, a picture.

    python benchmarks/gemm_many_report.py

Writes ``results/gemm_many_summary_<card>.json`` and ``docs/explanation/gemm-many-<card>.svg``. Ratios are the other's
time over the chosen plan's: above 1 the chosen plan is faster. Rows of a later run (``gemm_many_<card>_again.json``)
stand in the place of the former ones; ``again`` compares the two. ``since`` compares with rows of former plans, in
``gemm_many_<card>_before.json``, and ``today`` is of what the profile that ships would choose, where that was timed. No
GPU needed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_gemm_many import OUT
from bench_target import CARD, TARGET
from gemm_many_picture import picture
from kernel_cases.bench_rows import SPLITS
from kernel_plans import planned
from kernel_tables import spread
from kernel_timing import config_of as tuning_of
from many_shapes import TOKENS, DrawnShape, shape_of
from results_file import RESULTS, head, read_rows, write
from time_statistics import geomean

from warpplan.kernels.gemm.space import config_of
from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded

SUMMARY = RESULTS / f"gemm_many_summary_{CARD}.json"
PICTURE = Path(__file__).parents[1] / "docs" / "explanation" / f"gemm-many-{CARD}.svg"
SM_COUNT = TARGET.sm_count
WORST_PART = 0.01
SHARED_PART = 0.05
"""Of the rows, from the slowest on: those whose features are compared with all rows'. The worst 1 % are a dozen."""
GEOMEAN_GOAL, LEAST_GOAL, LEAST_PART, TOP1_GOAL = 1.03, 0.95, 0.99, 0.985


@dataclass(frozen=True, eq=False)
class ManyRow:
    """A measured row: its shape, how many units of work its plan has for how many resident blocks, and the ratios."""

    shape: DrawnShape
    units: int
    resident: int
    cublas: float
    best_of_8: float
    time_error: float
    wide: bool
    narrow: bool

    @property
    def last_wave(self) -> float:
        """The part of the resident blocks that has a unit of work in the last wave."""
        return (self.units % self.resident or self.resident) / self.resident


FEATURES: Mapping[str, Callable[[ManyRow], bool]] = {
    "fewer units than SMs": lambda r: r.units < SM_COUNT,
    "last of 2 to 4 waves at most half full": lambda r: r.resident < r.units <= 4 * r.resident and r.last_wave <= 0.5,
    "rows of no whole cache lines": lambda r: r.shape.odd_pitch,
    "rows of no whole 16 bytes": lambda r: r.shape.odd_width,
    "64 rows or columns at most": lambda r: min(r.shape.sizes[:2]) <= 64,
    "K of 256 at most": lambda r: r.shape.sizes[2] <= 256,
    "K at least 4 times M and N": lambda r: r.shape.sizes[2] >= 4 * max(r.shape.sizes[:2]),
    "more than 1e12 FLOP": lambda r: 2.0 * np.prod([float(s) for s in r.shape.sizes]) > 1e12,
}
"""What a row may have in common with others that lose, beside the kind of model, the product and the tokens."""


def measured(values: Mapping[str, Any]) -> ManyRow:
    """A row of the results file."""
    shape = shape_of(values)
    config = config_of(tuning_of(values["config"]))
    us = values["chosen_us"]
    return ManyRow(
        shape, config.units(shape.sizes, SM_COUNT), SM_COUNT * config.ctas_per_sm, values["peers"]["cublas"] / us,
        values["best_of_8_us"] / us, abs(values["predicted_us"] / us - 1.0), config.wide,
        config.has_narrow_chunks,
    )  # fmt: skip


def features_of(row: ManyRow) -> list[str]:
    """Every feature of a row in words."""
    low, high = next(span for span in TOKENS if span[0] <= row.shape.tokens <= span[1])
    named = [row.shape.kind, row.shape.product, f"{low} to {high} tokens"]
    return named + [name for name, has in FEATURES.items() if has(row)]


def ratios(rows: Sequence[ManyRow]) -> dict[str, Any]:
    """Statistics of some rows."""
    cublas = np.array([r.cublas for r in rows])
    regular = [r.cublas for r in rows if not r.shape.odd_width]
    return {
        "shapes": len(rows),
        "cublas_over_chosen": {
            "median": round(float(np.median(cublas)), 4),
            "geomean": round(geomean(cublas), 4),
            "geomean_regular_widths": round(geomean(regular), 4) if regular else None,
            "worst_1_percent": round(float(np.quantile(cublas, WORST_PART)), 4),
            "least": round(float(cublas.min()), 4),
            "part_of_0.95": round(float((cublas >= LEAST_GOAL).mean()), 4),
        },
        "best_of_8_over_chosen": round(geomean(r.best_of_8 for r in rows), 4),
        "time_error_median": round(float(np.median([r.time_error for r in rows])), 4),
    }


def shared_features(rows: Sequence[ManyRow], worst: Sequence[ManyRow]) -> list[dict[str, Any]]:
    """How much more frequent each feature is among the ``worst`` than among all ``rows``, the most telling first."""

    def parts(some: Sequence[ManyRow]) -> dict[str, float]:
        found = [name for row in some for name in features_of(row)]
        return {name: found.count(name) / len(some) for name in dict.fromkeys(found)}

    of_all, of_worst = parts(rows), parts(worst)
    shared = [
        {"feature": name, "of_worst": round(part, 3), "of_all": round(of_all[name], 3)}
        for name, part in of_worst.items()
        if part > of_all[name]
    ]
    return sorted(shared, key=lambda entry: entry["of_all"] - entry["of_worst"])


def goals(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each goal beside what was measured."""
    cublas = summary["cublas_over_chosen"]
    listed = (
        ("cuBLAS, geometric mean without odd widths", cublas["geomean_regular_widths"], GEOMEAN_GOAL),
        ("part of the shapes of at least 0.95 of cuBLAS", cublas["part_of_0.95"], LEAST_PART),
        ("chosen plan beside the best of 8, geometric mean", summary["best_of_8_over_chosen"], TOP1_GOAL),
    )
    return [{"what": what, "measured": value, "goal": goal, "met": value >= goal} for what, value, goal in listed]


def report(rows: Sequence[ManyRow]) -> dict[str, Any]:
    """The summary: all rows, each split, kind of model and product, the goals, the worst and what they share."""
    ordered = sorted(rows, key=lambda r: r.cublas)
    worst = ordered[: max(1, round(WORST_PART * len(rows)))]
    groups: dict[str, dict[str, Any]] = {}
    for name in ("split", "kind", "product"):
        for value in dict.fromkeys(getattr(r.shape, name) for r in rows):
            groups.setdefault(name, {})[value] = ratios([r for r in rows if getattr(r.shape, name) == value])
    summary = ratios(rows)
    return {
        "all": summary, **groups, "goals": goals(summary),
        "worst": [
            {"shape": [*r.shape.sizes], "product": r.shape.product, "model": r.shape.model,
             "cublas": round(r.cublas, 4), "best_of_8": round(r.best_of_8, 4), "features": features_of(r)}
            for r in worst
        ],
        "shared": shared_features(rows, ordered[: max(1, round(SHARED_PART * len(rows)))]),
    }  # fmt: skip


def since(rows: Sequence[ManyRow], earlier: Sequence[ManyRow]) -> dict[str, Any]:
    """Geometric means of the shapes that former plans were timed on, too, then and now; apart those that have a wide
    tile now, and those of 96 or 160 columns. ``wide_first_choices`` counts wide ones among all ``rows``."""
    former = {r.shape: r for r in earlier}

    def compared(chosen: Sequence[ManyRow]) -> dict[str, Any]:
        then = [former[r.shape] for r in chosen]
        return {"shapes": len(chosen)} | {
            when: {
                "cublas_over_chosen": round(geomean([r.cublas for r in found]), 4),
                "best_of_8_over_chosen": round(geomean([r.best_of_8 for r in found]), 4),
            }
            for when, found in (("before", then), ("now", chosen))
            if found
        }

    both = [r for r in rows if r.shape in former]
    return {
        "wide_first_choices": sum(r.wide for r in rows), "all": compared(both),
        "wide": compared([r for r in both if r.wide]), "narrow": compared([r for r in both if r.narrow]),
    }  # fmt: skip


def read_again(rows: Path) -> list[dict[str, Any]]:
    """The rows beside the result file ``rows`` of a later run: of shapes that were timed again because their first
    choice had changed, or of all that it reached."""
    path = rows.with_name(f"{rows.stem}_again.json")
    if not path.exists():
        return []
    data = json.loads(path.read_text())
    return [row for row in (spread(row, data["configs"]) for row in data["rows"]) if "wrong" not in row]


def today(values: Sequence[Mapping[str, Any]], profile: Profile) -> dict[str, Any]:
    """Geometric means of cuBLAS's time over that of ``profile``'s first choice and of the row's own, of the shapes
    where the first choice is one of the candidates that the row timed. ``narrow_first_choices`` counts tiles of 96 and
    160 columns among the first choices of all rows."""
    found: dict[str, list[tuple[float, float]]] = {"all": [], "heldout": []}
    narrow = 0
    for row in values:
        shape = shape_of(row)
        first = planned(shape.row, profile).ranked[0][0]
        narrow += config_of(first).has_narrow_chunks
        timed = dict(zip(map(tuning_of, row["configs"]), row["ranked_us"], strict=True))
        if us := timed.get(first):
            cublas = row["peers"]["cublas"]
            for split in ("all", *(["heldout"] if shape.split == "heldout" else [])):
                found[split].append((cublas / us, cublas / row["chosen_us"]))
    return {"narrow_first_choices": narrow} | {
        split: {
            "shapes": len(of_split),
            "cublas_over_first": round(geomean([first for first, _ in of_split]), 4),
            "cublas_over_chosen": round(geomean([chosen for _, chosen in of_split]), 4),
            "part_of_0.95": round(sum(first >= LEAST_GOAL for first, _ in of_split) / len(of_split), 4),
        }
        for split, of_split in found.items()
        if of_split
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=OUT)
    parser.add_argument("--summary", type=Path, default=SUMMARY)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    data = json.loads(arguments.rows.read_text())
    values = [spread(row, data["configs"]) for row in data["rows"]]
    again = {shape_of(row): row for row in read_again(arguments.rows)}
    former = [measured(row) for row in values if "wrong" not in row and shape_of(row) in again]
    right = list({**{shape_of(row): row for row in values if "wrong" not in row}, **again}.values())
    rows = [measured(row) for row in right]
    found = report(rows)
    if again:
        found["again"] = {
            split: since([r for r in map(measured, again.values()) if r.shape.split in splits], former)[group]
            for split, splits, group in (
                ("all", SPLITS, "all"),
                ("heldout", ("heldout",), "all"),
                ("narrow", SPLITS, "narrow"),
            )
        }
    before = arguments.rows.with_name(f"{arguments.rows.stem}_before.json")
    if before.exists():
        found["since"] = since(rows, [measured(row) for row in read_rows(before) if "wrong" not in row])
    found["today"] = today(right, embedded(TARGET.name))
    found["wrong"] = [row["sizes_text"] for row in values if "wrong" in row]
    print(json.dumps(found, indent=1))
    write(arguments.summary, {**head("gemm_many_summary", data["device"]), **found})
    arguments.picture.write_text(picture([(r.shape, r.cublas) for r in rows]))


if __name__ == "__main__":
    main()
