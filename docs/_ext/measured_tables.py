"""Tables of what was measured: a layer in training, the corpus under ``planned()``, solved partitions."""

from __future__ import annotations

import statistics

from recorded_figures import Row, load


def moe_table() -> str:
    """One line an implementation of the mixture-of-experts layer: its step, and how far it is from float32."""
    lines = [
        "| | step, ms | forward and backward, ms | time over warpplan's | loss gap | error |",
        "|---" + "|---:" * 5 + "|",
    ]
    for row in load("moe_h200")["rows"]:
        step, gradients = (statistics.median(row[name]) for name in ("step_ms", "gradients_ms"))
        cells = [row["name"], f"{step:.2f}", f"{gradients:.2f}", f"{row['ratio']:.2f}"]
        lines.append(f"| {' | '.join(cells)} | {row['loss_gap']:.1e} | {row['error']:.1e} |")
    return "\n".join(lines)


def corpus_table() -> str:
    """One line a family of the corpus's kernels: Triton's autotuned winner over the planned, and cuBLAS or cuDNN."""
    found = load("corpus_h200")
    lines = ["| family | kernels | autotuned | least | cuBLAS or cuDNN |", "|---" + "|---:" * 4 + "|"]
    for family in sorted({row["family"] for row in found["rows"]}):
        rows = [row for row in found["rows"] if row["family"] == family and row["status"] == "ok"]
        tuned = [row["over"]["autotuned"] for row in rows]
        peers = [us for row in rows for peer, us in row["over"].items() if peer in ("cublas", "cudnn")]
        cells = [f"{len(rows)}", f"{_mean(tuned):.3f}", f"{min(tuned):.3f}", f"{_mean(peers):.3f}" if peers else ""]
        lines.append(f"| {family} | {' | '.join(cells)} |")
    return "\n".join(lines)


def partitions_table() -> str:
    """One line a kernel at one tile: predicted and measured gain of the served strategy and the solved one."""
    lines = [
        "| kernel | as it is, µs | served, µs | gain predicted | gain measured | solved: predicted | measured |",
        "|---" + "|---:" * 6 + "|",
    ]
    for row in load("partitions_h200")["rows"]:
        if row.get("times"):
            lines.append(f"| {row['kernel']} | {' | '.join(_gains(row))} |")
    return "\n".join(lines)


def _gains(row: Row) -> list[str]:
    times = {side: found["us"] for side, found in row["times"].items()}
    cells = [f"{times['unplanned']:.0f}", f"{times['served']:.0f}"]
    for side in ("served", "solved"):
        measured = f"{times['unplanned'] / times[side]:.2f}" if side in times else ""
        cells += [f"{row[f'{side}_predicted_gain']:.2f}" if measured else "", measured]
    return cells


def _mean(ratios: list[float]) -> float:
    return statistics.geometric_mean(ratios)
