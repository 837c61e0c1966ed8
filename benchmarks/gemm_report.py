"""What the GEMM benchmark showed, from its committed results: the summary file. No GPU needed.

    python benchmarks/gemm_report.py

Writes ``results/gemm_summary_h200.json``. Ratios are the other's time over the chosen
plan's: above 1 the chosen plan is faster.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from gemm_table import read
from regret import replay, summary
from results_file import RESULTS, head, read_rows, write
from time_statistics import geomean

from warpplan.profiler.embedded import embedded

SPLITS = ("heldout", "train")
PEERS = ("cublas", "autotune", "inductor")
TMA_COLUMNS = 8
"""16-bit columns that make rows of whole 16-byte units; other widths are a weak spot of the peers."""


def ratios(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric mean and extremes of each peer's, the search's and the first eight's time over the chosen plan's."""
    chosen = np.array([r["chosen_us"] for r in rows])
    regular = np.array([r["shape"][1] % TMA_COLUMNS == 0 for r in rows])
    found: dict[str, Any] = {"shapes": len(rows)}
    for peer in PEERS:
        ratio = np.array([r["peers"][peer] for r in rows]) / chosen
        found[f"{peer}_over_chosen"] = {
            "geomean": round(geomean(ratio), 4),
            "geomean_regular_widths": round(geomean(ratio[regular]), 4),
            "worst": round(float(ratio.min()), 4),
            "best": round(float(ratio.max()), 4),
        }
    best = np.array([r["best_us"] for r in rows])
    eight = np.array([r["best_of_8_us"] for r in rows])
    error = np.abs(np.array([r["predicted_us"] for r in rows]) / chosen - 1.0)
    regret = best / chosen
    found["search_over_chosen"] = {"geomean": round(geomean(regret), 4), "worst": round(float(regret.min()), 4)}
    found["search_over_best_of_8"] = {"geomean": round(geomean(best / eight), 4)}
    found["chosen_time_error_median"] = round(float(np.median(error)), 4)
    return found


def main() -> None:
    profile = embedded("NVIDIA H200")
    result = {**head("gemm_summary", "NVIDIA H200"), "rows": {}}
    measured = read()
    for split in SPLITS:
        rows = read_rows(RESULTS / f"gemm_h200_{split}.json")
        replayed = {m.shape: replay(m, profile) for m in measured if m.split == split}
        ranking = {k: round(v, 4) for k, v in summary(list(replayed.values())).items()}
        taus = {"x".join(map(str, shape)): round(float(r["kendall_tau"]), 4) for shape, r in replayed.items()}
        result["rows"][split] = ratios(rows) | {"ranking": ranking, "kendall_tau": taus}
    print(json.dumps(result["rows"], indent=1))
    write(RESULTS / "gemm_summary_h200.json", result)


if __name__ == "__main__":
    main()
