"""No GPU: what ``warpplan measure`` expects to save, and what the recorded exhaustive searches say that it saves.

The candidates of each searched GEMM are measured by looking their recorded times up, in the order of value and, for
comparison, the first of every shape in turn. Plans that split K are left out: the tables have those of a former kernel.
Writes ``results/measuring_gain.json``: a row for each split, weighting and number of measurements, ``saved`` being the
part of the job's time that is saved. ``weights`` is "one launch" of each shape, or "equal shares" of the time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gemm_table import SearchedShape, read, whole
from recorded_rankings import gemm_ranking
from results_file import head, write

from warpplan.planner.predict.measurement_value import (
    Measuring,
    ShapeTimes,
    expected_gains_us,
    expected_times_us,
    order_measurements,
)
from warpplan.profiler.embedded import embedded
from warpplan.service.measuring.measurement_plan import DEFAULT_SPREAD, MEASURE_S

DEVICE = "NVIDIA H200"
TOP = 8
COUNTS = (8, 16, 32, 64, 128)


def candidates(shape: SearchedShape) -> list[tuple[float, float]]:
    """(predicted, recorded) microseconds of the recorded candidates, the best predicted first."""
    known = whole(shape)
    times = dict(zip(known.configs, known.time_us.tolist(), strict=True))
    ranked = gemm_ranking(shape.shape, shape.dtype, embedded(DEVICE))
    return [(predicted, times[config]) for config, predicted in ranked if config in times]


def job_us(shapes: list[list[tuple[float, float]]], weights: list[float], chosen: list[Measuring]) -> float:
    """The job's time after ``chosen`` are measured: each shape takes the best measured, or what is predicted to beat
    it."""
    counts = [sum(m.shape == number for m in chosen) for number in range(len(shapes))]
    total = 0.0
    for pairs, weight, count in zip(shapes, weights, counts, strict=True):
        best = min((recorded for _, recorded in pairs[:count]), default=float("inf"))
        takes_predicted = count < len(pairs) and pairs[count][0] < best
        total += weight * (pairs[count][1] if takes_predicted else best)
    return total


def in_turn(shapes: int) -> list[Measuring]:
    """The first of every shape, then the second of every shape: whoever measures without knowing their worth."""
    return [Measuring(number, k, MEASURE_S, 0.0) for k in range(TOP) for number in range(shapes)]


def rows_of(split: str, table: list[SearchedShape], weighting: str) -> list[dict[str, Any]]:
    shapes = [candidates(shape) for shape in table]
    weights = [1.0 if weighting == "one launch" else 1.0 / pairs[0][0] for pairs in shapes]
    known = [
        ShapeTimes(tuple(p for p, _ in pairs[: TOP + 1]), None, DEFAULT_SPREAD, MEASURE_S, weight)
        for pairs, weight in zip(shapes, weights, strict=True)
    ]
    by_value, turns = list(order_measurements(known, TOP)), in_turn(len(shapes))
    before = job_us(shapes, weights, [])
    expected_before = sum(w * float(expected_times_us(t)[0]) for w, t in zip(weights, known, strict=True))
    every = sum(w * min(recorded for _, recorded in pairs) for w, pairs in zip(weights, shapes, strict=True))
    rows = []
    for count in sorted({*(n for n in COUNTS if n < len(by_value)), len(by_value)}):
        gains = expected_gains_us(by_value[:count], len(shapes))
        rows.append(
            {
                "kernel": "gemm", "split": split, "weights": weighting, "shapes": len(shapes), "measurements": count,
                "expected_saved": sum(w * g for w, g in zip(weights, gains, strict=True)) / expected_before,
                "saved": 1.0 - job_us(shapes, weights, by_value[:count]) / before,
                "saved_in_turn": 1.0 - job_us(shapes, weights, turns[:count]) / before,
                "saved_by_every": 1.0 - every / before,
            }
        )  # fmt: skip
    return rows


def main() -> None:
    table = read()
    rows = []
    for split in ("train", "heldout"):
        shapes = [shape for shape in table if shape.split == split]
        for weighting in ("one launch", "equal shares"):
            rows += rows_of(split, shapes, weighting)
    for row in rows:
        print(
            f"{row['split']:<8} {row['weights']:<13} {row['measurements']:>4} of {row['shapes']} shapes: expected "
            f"{row['expected_saved']:.2%}, saved {row['saved']:.2%}, in turn {row['saved_in_turn']:.2%}, by every "
            f"candidate {row['saved_by_every']:.2%}"
        )
    result = {**head("measuring_gain", "none"), "measured_on": DEVICE, "top": TOP, "rows": rows}
    write(Path(__file__).with_name("results") / "measuring_gain.json", result)


if __name__ == "__main__":
    main()
