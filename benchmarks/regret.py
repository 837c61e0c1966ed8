"""How good the planner's ranking is, replayed from the committed exhaustive table: no GPU needed.

    python benchmarks/regret.py

For each shape: the chosen plan's time over the best, the best of the first 8, Kendall's τ of predicted against
measured times over the whole space, and the median error of the prediction. Plans that split K are left out: the table
has those of a former kernel.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from gemm_shapes import HELDOUT
from gemm_table import SearchedShape, read, whole
from recorded_rankings import gemm_ranking
from scipy.stats import kendalltau
from time_statistics import geomean

from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded


def replay(m: SearchedShape, profile: Profile) -> dict[str, float | int]:
    """The ranking of one shape against its measured times."""
    times = dict(zip(m.configs, m.time_us.tolist(), strict=True))
    pairs = [(us, times[c]) for c, us in gemm_ranking(m.shape, m.dtype, profile) if c in times]
    predicted, real = np.array(pairs).T
    return {
        "configurations": len(pairs),
        "best_over_chosen": real.min() / real[0],
        "best_over_best_of_8": real.min() / real[:8].min(),
        "kendall_tau": float(kendalltau(predicted, real).statistic),
        "median_error": float(np.median(np.abs(predicted / real - 1.0))),
        "chosen_error": abs(float(predicted[0] / real[0]) - 1.0),
    }


def summary(rows: list[dict[str, float | int]]) -> dict[str, float]:
    def column(name: str) -> np.ndarray:
        return np.array([r[name] for r in rows], dtype=float)

    return {
        "shapes": float(len(rows)),
        "best_over_chosen_geomean": geomean(column("best_over_chosen")),
        "best_over_chosen_worst": float(column("best_over_chosen").min()),
        "best_of_8_geomean": geomean(column("best_over_best_of_8")),
        "kendall_tau_median": float(np.median(column("kendall_tau"))),
        "median_error": float(np.median(column("median_error"))),
        "chosen_error_median": float(np.median(column("chosen_error"))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path, nargs="*", help="raw tables; the committed ones by default")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    profile = embedded("NVIDIA H200")
    table = [whole(m) for m in read(*arguments.tables)]
    rows = {m.shape: replay(m, profile) for m in table}
    for split in ("heldout", "train"):
        group = [m for m in table if (m.shape in HELDOUT) == (split == "heldout")]
        if not group:
            continue
        if not arguments.json:
            for m in group:
                r = rows[m.shape]
                print(
                    f"{split:8}{m.shape!s:24} chosen {r['best_over_chosen']:.3f}  "
                    f"best of 8 {r['best_over_best_of_8']:.3f}  tau {r['kendall_tau']:.2f}  "
                    f"error {r['median_error']:.1%}"
                )
        print(json.dumps({split: summary([rows[m.shape] for m in group])}))


if __name__ == "__main__":
    main()
