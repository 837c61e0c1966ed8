"""How well any ranking could agree with the recorded tables, whose times have noise, and what separates the times.

    python benchmarks/ranking_limits.py    # no GPU -> results/ranking_limits_h200.json

For every searched shape: Kendall's τ of predicted against measured times, the spread of the candidates (standard
deviation of the logarithms), the noise of one recorded time, and the τ that the true times themselves would have. The
noise of the kernels' tables is that of their two rounds; the GEMM table was read once, and its noise is the
disagreement with the comparison that timed two of the candidates again.

``variants`` says what the terms of the time model are worth: each is fitted to five sixths of the GEMM's training
shapes and judged on the others. A variant changes what the candidates ask of the device: a reduction charged once,
zeros beyond the matrix that cost nothing, energy for shared-memory reads, or for the distinct bytes of a wave, instead
of the bytes loaded from L2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from fit_gemm import everything_measured, measured
from gemm_table import SearchedShape, read
from kernel_cases.bench_rows import TABLES
from kernel_tables import exhaustive_path, read_exhaustive
from numpy.typing import NDArray
from recorded_rankings import gemm_ranking, ranking
from results_file import RESULTS, head, read_rows, write
from scipy.stats import kendalltau
from time_statistics import geomean

from warpplan.kernels.gemm.space import ELEMENT_BYTES, MMA_ROWS, GemmConfig
from warpplan.kernels.gemm.work import calibrated_constants, solve_table
from warpplan.planner.predict.time_model import DeviceWork, Rates, terms
from warpplan.planner.values.device import device
from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded
from warpplan.profiler.fit import MeasuredShape, fit

Floats = NDArray[np.float64]
OUT = RESULTS / "ranking_limits_h200.json"
DEVICE = "NVIDIA H200"
DRAWS = 40
"""Of the noise, for the τ of the true times: its standard error is then a few thousandths."""
FOLDS = 6
MEDIAN_GAP = 1.349
"""Median of |x − y| over the standard deviation of (x + y) / 2, for two readings x and y with normal errors."""
POWER_LIMITED_FLOP_PER_BYTE = 300.0
"""As ``bench_gemm.py`` has it: above it a card is limited by power, and times scatter by per cents."""
FIT_TOLERANCE = 1e-4
"""Looser than the shipped fit's: the variants differ by more."""


@dataclass(frozen=True, eq=False)
class RankedTimes:
    """A searched shape's predicted and measured times in µs, and the relative noise of a measured one."""

    kernel: str
    shape: tuple[int | str, ...]
    split: str
    predicted_us: Floats
    time_us: Floats
    noise: float

    @property
    def tau(self) -> float:
        return float(kendalltau(self.predicted_us, self.time_us).statistic)

    @property
    def spread(self) -> float:
        return float(np.log(self.time_us).std())

    def tau_limit(self) -> float:
        """τ of times without noise against the same times with it. The true times are estimated by drawing the measured
        ones to their mean until their variance is what the noise leaves of it."""
        random = np.random.default_rng(0)
        logs = np.log(self.time_us)
        kept = np.sqrt(max(0.0, 1.0 - (self.noise / self.spread) ** 2)) if self.spread else 0.0
        true = logs.mean() + kept * (logs - logs.mean())
        draws = (true + self.noise * random.standard_normal(len(true)) for _ in range(DRAWS))
        return float(np.nanmean([kendalltau(true, draw).statistic for draw in draws])) if kept else 0.0


def power_limited(sizes: Sequence[int]) -> bool:
    m, n, k = map(float, sizes[:3])
    return m * n * k / (m * k + n * k + m * n) > POWER_LIMITED_FLOP_PER_BYTE


def gemm_noise(table: Sequence[SearchedShape], results: Path) -> dict[bool, tuple[float, int]]:
    """The noise of one recorded time of the GEMM table, and how many shapes it is from, of shapes that are limited by
    power and of others. The table and the comparison give the ratio of the same two candidates' times; the
    comparison's median of seven rounds is taken as exact."""
    searched = {m.shape: dict(zip(m.configs, m.time_us.tolist(), strict=True)) for m in table}
    found: dict[bool, list[float]] = {False: [], True: []}
    for split in ("train", "heldout"):
        for row in read_rows(results / f"gemm_h200_{split}.json"):
            times = searched.get(tuple(row["shape"]), {})
            best, chosen = GemmConfig(**row["best_config"]), GemmConfig(**row["config"])
            if best != chosen and best in times and chosen in times:
                gap = np.log(times[best] / times[chosen]) - np.log(row["best_us"] / row["chosen_us"])
                found[power_limited(row["shape"])].append(float(gap))
    return {limited: (float(np.sqrt(np.mean(np.square(gaps)) / 2)), len(gaps)) for limited, gaps in found.items()}


def gemm_ranked(table: Sequence[SearchedShape], profile: Profile, results: Path) -> Iterator[RankedTimes]:
    """The shapes of the GEMM table."""
    noise = gemm_noise(table, results)
    for m in table:
        times = dict(zip(m.configs, m.time_us.tolist(), strict=True))
        ranked = gemm_ranking(m.shape, m.dtype, profile)
        pairs = np.array([(us, times[config]) for config, us in ranked if config in times])
        yield RankedTimes("gemm", m.shape, m.split, pairs[:, 0], pairs[:, 1], noise[power_limited(m.shape)][0])


def kernels_ranked(profile: Profile, results: Path) -> Iterator[RankedTimes]:
    """The rows of the kernels' tables."""
    for table in TABLES:
        if not (path := exhaustive_path(results, table)).exists():
            continue
        for m, raw in zip(read_exhaustive(path), read_rows(path), strict=True):
            read_twice = np.array(raw["times_us"], dtype=np.float64).reshape(-1, 4)
            noise = float(np.median((read_twice[:, 2] - read_twice[:, 1]) / read_twice[:, 0])) / MEDIAN_GAP
            times = dict(zip(m.configs, m.time_us.tolist(), strict=True))
            ranked = ranking(m.row, profile)
            pairs = np.array([(us, times[config]) for config, us in ranked if config in times])
            yield RankedTimes(table, m.row.shape, m.row.split, pairs[:, 0], pairs[:, 1], noise)


def summary(rows: Sequence[RankedTimes]) -> dict[str, Any]:
    """Of some shapes: τ, its limit, and those below 0.5 although their candidates differ by more than the noise."""
    taus, limits = [r.tau for r in rows], [r.tau_limit() for r in rows]
    low = [r for r in rows if r.tau < 0.5]
    return {
        "shapes": len(rows),
        "tau_median": round(float(np.median(taus)), 4),
        "tau_limit_median": round(float(np.median(limits)), 4),
        "tau_over_limit_median": round(float(np.median(np.array(taus) / np.maximum(limits, 1e-9))), 4),
        "below_half": len(low),
        "below_half_beyond_noise": [" ".join(map(str, r.shape))[:80] for r in low if r.spread > 2 * r.noise],
        "noise_median": round(float(np.median([r.noise for r in rows])), 5),
        "spread_median": round(float(np.median([r.spread for r in rows])), 5),
    }


# What the terms are worth

Change = Callable[[DeviceWork, SearchedShape, Sequence[GemmConfig]], DeviceWork]


def shared_memory_bytes(m: SearchedShape, configs: Sequence[GemmConfig]) -> Floats:
    """The bytes that the tensor cores read: 64 rows of A and all columns of B for every wgmma."""
    element = ELEMENT_BYTES[m.dtype]

    def of(c: GemmConfig) -> float:
        k_blocks = -(-m.shape[2] // c.block_k)
        each = c.block_m // MMA_ROWS * (MMA_ROWS + c.block_n) * c.block_k * element
        return float(c.tiles(m.shape) * k_blocks * each)

    return np.array([of(c) for c in configs])


def wave_bytes(m: SearchedShape, configs: Sequence[GemmConfig]) -> Floats:
    """The bytes of distinct rows of A and of B that each wave of resident tiles touches, summed over the waves: a wave
    of W tiles begins anywhere in a strip of S tiles, so that it touches 1 + (W − 1) / S strips on average."""
    element, sm_count = ELEMENT_BYTES[m.dtype], device(DEVICE).sm_count

    def of(c: GemmConfig) -> float:
        rows, columns, k = c.computed(m.shape)
        row_tiles, column_tiles = -(-rows // c.block_m), -(-columns // c.block_n)
        splits = 1 if c.split_tail else c.split_k
        wave = min(max(sm_count * c.ctas_per_sm / splits, 1.0), row_tiles * column_tiles)
        strips = 1.0 + (wave - 1.0) / (c.group_m * column_tiles)
        touched = min(row_tiles, c.group_m * strips) * c.block_m + min(column_tiles, wave / c.group_m + 1) * c.block_n
        return row_tiles * column_tiles / wave * touched * k * element

    return np.array([of(c) for c in configs])


VARIANTS: dict[str, Change] = {
    "as_shipped": lambda work, m, configs: work,
    "reduction_charged_once": lambda work, m, configs: replace(work, split_rounds=np.minimum(work.split_rounds, 1.0)),
    "zeros_free": lambda work, m, configs: replace(work, filled_bytes=0.0 * work.filled_bytes),
    "energy_of_shared_memory_reads": lambda work, m, configs: replace(
        work, loaded_bytes=shared_memory_bytes(m, configs)
    ),
    "energy_of_distinct_bytes_of_waves": lambda work, m, configs: replace(work, loaded_bytes=wave_bytes(m, configs)),
}


def cross_validated(shapes: Sequence[MeasuredShape], profile: Profile, dtype: str) -> dict[str, float]:
    """Each shape judged by a fit that has not seen it."""
    rates = Rates.of(profile, dtype)
    taus, regrets, errors, of_8 = [], [], [], []
    for fold in range(FOLDS):
        seen = [s for i, s in enumerate(shapes) if i % FOLDS != fold]
        calibration = fit("gemm", seen, rates, "", tolerance=FIT_TOLERANCE)
        without = replace(profile, calibrations=(calibration,))
        for s in shapes[fold::FOLDS]:
            constants = calibrated_constants(without, ("gemm",), s.work.structures)
            predicted = terms(s.work, rates, constants)[1]
            first = s.time_us[np.argsort(predicted, kind="stable")]
            taus.append(float(kendalltau(predicted, s.time_us).statistic))
            regrets.append(first[0] / s.time_us.min())
            of_8.append(first[:8].min() / s.time_us.min())
            errors.append(float(np.median(np.abs(predicted / s.time_us - 1))))
    return {
        "shapes": len(taus), "tau_median": round(float(np.median(taus)), 4), "tau_least": round(min(taus), 4),
        "regret": round(geomean(regrets) - 1, 4), "best_of_8_regret": round(geomean(of_8) - 1, 4),
        "median_error": round(float(np.median(errors)), 4),
    }  # fmt: skip


def variants(table: Sequence[SearchedShape], profile: Profile) -> dict[str, dict[str, float]]:
    """:data:`VARIANTS` on the training shapes of the GEMM table."""
    train = [m for m in table if m.split == "train"]
    target = device(DEVICE)
    solved = solve_table(
        train[0].dtype, target, profile.costs, everything_measured(train, target, profile)
    )  # fmt: skip
    lined_up = [(m, measured(solved, target, m)) for m in train]
    found = {}
    for name, change in VARIANTS.items():
        changed = [replace(s, work=change(s.work, m, m.configs)) for m, s in lined_up]
        found[name] = cross_validated(changed, profile, train[0].dtype)
        print(name, found[name], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    profile = embedded(DEVICE)
    table = read()
    ranked = [*gemm_ranked(table, profile, arguments.results), *kernels_ranked(profile, arguments.results)]
    groups: dict[str, dict[str, Any]] = {}
    for kernel in dict.fromkeys(r.kernel for r in ranked):
        for split in ("train", "heldout"):
            if rows := [r for r in ranked if (r.kernel, r.split) == (kernel, split)]:
                groups.setdefault(kernel, {})[split] = summary(rows)
                print(kernel, split, groups[kernel][split], flush=True)
    rows = [
        {
            "kernel": r.kernel, "shape": list(r.shape), "split": r.split, "candidates": len(r.time_us),
            "tau": round(r.tau, 4), "tau_limit": round(r.tau_limit(), 4), "spread": round(r.spread, 4),
            "noise": round(r.noise, 5),
        }
        for r in ranked
    ]  # fmt: skip
    noise = gemm_noise(table, arguments.results)
    result = {
        **head("ranking_limits", DEVICE),
        "gemm_noise": {
            name: {"noise": round(noise[limited][0], 5), "shapes": noise[limited][1]}
            for name, limited in (("power_limited", True), ("others", False))
        },
        "summary": groups, "variants": variants(table, profile), "rows": rows,
    }  # fmt: skip
    write(arguments.out, result)


if __name__ == "__main__":
    main()
