"""Fit the GEMM time model and store it in the embedded profile.

    python benchmarks/fit_gemm.py

It sees the training shapes of the exhaustive table and the measured ring depths, never a held-out shape; then those of
the first candidates of many shapes and of splits of K (:func:`fit_kernels.fit_many`), beside the whole tiles of the
exhaustive tables.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from fit_kernels import fit_many, whole
from gemm_shapes import HELDOUT
from gemm_table import TABLES, SearchedShape, read
from kernel_cases.bench_rows import make_row
from kernel_tables import SearchedRow, exhaustive_path, read_exhaustive
from results_file import RESULTS
from robust_depth import read as read_depths

from warpplan.kernels.gemm.candidates import CandidateTable, tabulate
from warpplan.kernels.gemm.candidates import table as candidate_table
from warpplan.kernels.gemm.space import tuning
from warpplan.kernels.gemm.work import SolvedTable, solve_table, work
from warpplan.planner.predict.time_model import Rates
from warpplan.planner.values.device import Device, device
from warpplan.planner.values.profile import Profile
from warpplan.profiler.fit import MeasuredShape, fit
from warpplan.profiler.profile_files import load, save

DEPTHS = RESULTS / "robust_depth_h200.json"
PROFILE = Path(__file__).parents[1] / "profiler" / "data" / "nvidia_h200.json"


def measured(solved: SolvedTable, target: Device, m: SearchedShape) -> MeasuredShape:
    """Line the table's rows up with the measured configurations whose costs the profile has."""
    all_work, grid = work(solved, m.dtype, target, m.shape)
    rows = {
        replace(solved.table.configs[i], group_m=int(grid.group_m[i])): i
        for i in np.flatnonzero(grid.valid & solved.known).tolist()
    }
    kept = [(rows[c], t) for c, t in zip(m.configs, m.time_us, strict=True) if c in rows]
    return MeasuredShape(m.shape, all_work.take(np.array([r for r, _ in kept])), np.array([t for _, t in kept]))


def everything_measured(train: list[SearchedShape], target: Device, profile: Profile) -> CandidateTable:
    """The candidates, and what was measured besides: rings of other depths."""
    known = candidate_table(train[0].dtype, target, profile.costs)
    listed = {replace(c, group_m=8) for c in known.configs}
    more = {replace(c, group_m=8): None for m in train for c in m.configs}
    extra = [c for c in more if c not in listed]
    return tabulate([*known.configs, *extra], [*known.group_below.tolist(), *[0] * len(extra)], target)


def calibrated(profile: Profile, table: list[SearchedShape], source: str) -> Profile:
    target = device(profile.identity.gpu)
    train = [m for m in table if m.shape not in HELDOUT]
    solved = solve_table(train[0].dtype, target, profile.costs, everything_measured(train, target, profile))
    calibration = fit(
        "gemm", [measured(solved, target, m) for m in train], Rates.of(profile, train[0].dtype), source
    )  # fmt: skip
    others = tuple(c for c in profile.calibrations if c.kernel != "gemm")
    return replace(profile, calibrations=(*others, calibration))


def as_row(m: SearchedShape) -> SearchedRow:
    """A shape of the exhaustive table as the other kernels' tables have it."""
    split = "heldout" if m.shape in HELDOUT else "train"
    row = make_row("gemm", "gemm", m.shape, m.dtype, split)
    return SearchedRow(row, tuple(tuning(config) for config in m.configs), m.time_us)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, default=TABLES[0])
    parser.add_argument("--depths", type=Path, default=DEPTHS, help="results of robust_depth.py, where there are any")
    parser.add_argument("--profile", type=Path, default=PROFILE)
    arguments = parser.parse_args()
    table, source = read(arguments.table), f"benchmarks/results/{arguments.table.name}"
    if arguments.depths.exists():
        table, source = table + read_depths(arguments.depths), f"{source}, {arguments.depths.name}"
    profile = calibrated(load(arguments.profile), table, source)
    layouts = exhaustive_path(RESULTS, "gemm_layouts")
    broad = [*(read_exhaustive(layouts) if layouts.exists() else []), *map(as_row, table)]
    profile = fit_many(profile, RESULTS, whole(broad))
    save(profile, arguments.profile)
    calibration = profile.calibration("gemm")
    assert calibration is not None
    for name, value in calibration.constants:
        if not name.startswith("structure."):
            print(f"{name:32} {value:.4g}")


if __name__ == "__main__":
    main()
