"""The planner's candidates for the rows of a kernels' table, made without a GPU and kept in a file.

The machine with the GPU reads the file: it needs neither the solver nor the seconds that ranking takes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from bench_target import TARGET
from kernel_cases.bench_case import case_of
from kernel_cases.bench_rows import BenchRow
from kernel_timing import as_json, config_of, row_of
from results_file import head

from warpplan.kernels import registry
from warpplan.planner.errors import WarpplanError
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig

ALL = 1_000_000
"""A limit above every space."""
PLANS = Path(__file__).parents[1] / "build" / "kernel_plans"
PLANNED_FOR = ("balanced", "skewed", "few")
"""Distributions by name that a plan for listed group sizes is compared with."""


@dataclass(frozen=True)
class PlannedRow:
    """A row's candidates with their predicted µs, best first; ``others`` are plans for other group sizes of this row.

    Both are empty where the kernel finds its configurations itself.
    """

    row: BenchRow
    ranked: tuple[tuple[TuningConfig, float], ...]
    others: tuple[tuple[str, TuningConfig], ...] = ()


def planned(row: BenchRow, profile: Profile) -> PlannedRow:
    """Rank the row's candidates. Raises :class:`WarpplanError` where the kernel or the profile has none."""
    if row.kernel in ("linear", "sdpa"):
        return PlannedRow(row, ())
    ranked = _ranked(row, profile)
    others = []
    if row.kernel == "grouped_gemm" and "," in dict(row.options).get("sizes", ""):
        for name in PLANNED_FOR:
            others.append((f"plan for {name}", _ranked(row.replaced(sizes=name), profile)[0][0]))
    return PlannedRow(row, ranked, tuple(others))


def _ranked(row: BenchRow, profile: Profile) -> tuple[tuple[TuningConfig, float], ...]:
    kernel = registry.kernel(row.kernel)
    names = kernel.declaration.dimensions
    shape = kernel.parse_shape({**dict(zip(names, row.sizes, strict=True)), **dict(row.options)}, row.dtype)
    plans = kernel.rank(shape, row.dtype, TARGET, profile, limit=ALL)
    return tuple((plan.config, plan.prediction.time_us) for plan in plans)


def plan_all(rows: Iterable[BenchRow], profile: Profile) -> list[PlannedRow]:
    """The rows that can be planned; of the others, why not goes to stderr."""
    found = []
    for row in rows:
        try:
            found.append(planned(row, profile))
        except WarpplanError as error:
            print(f"no plan for {' '.join(row.key)[:120]}: {error}", file=sys.stderr)
    return found


def shortlist(plan: PlannedRow, most: int) -> tuple[TuningConfig, ...]:
    """At most ``most`` candidates: the best half of it by prediction, and the rest spread evenly over what remains."""
    configs = [config for config, _ in plan.ranked]
    if len(configs) <= most:
        return tuple(configs)
    first = most // 2
    rest, count = configs[first:], most - first
    return tuple(configs[:first] + [rest[i * len(rest) // count] for i in range(count)])


def save_plans(path: Path, plans: Iterable[PlannedRow]) -> None:
    """Each configuration once; rows name them by position."""
    positions: dict[TuningConfig, int] = {}

    def position(config: TuningConfig) -> int:
        return positions.setdefault(config, len(positions))

    rows = [
        {
            "row": as_json(plan.row),
            "ranked": [[position(config), round(us, 4)] for config, us in plan.ranked],
            "others": {name: position(config) for name, config in plan.others},
        }
        for plan in plans
    ]
    data = {**head("kernel_plans", TARGET.name), "configs": [config.as_dict() for config in positions], "rows": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data) + "\n")


def load_plans(path: Path) -> dict[BenchRow, PlannedRow]:
    """What :func:`save_plans` wrote."""
    data = json.loads(path.read_text())
    configs = [config_of(values) for values in data["configs"]]
    return {
        (row := row_of(entry["row"])): PlannedRow(
            row,
            tuple((configs[index], us) for index, us in entry["ranked"]),
            tuple((name, configs[index]) for name, index in entry["others"].items()),
        )
        for entry in data["rows"]
    }


def compiled(row: BenchRow, config: TuningConfig | None) -> tuple[str, BenchRow, TuningConfig | None]:
    """What has to be compiled and checked for a candidate: a key, and the row and the configuration to check it with.

    Tile order, head order and the number of splits are run-time values of every kernel here.
    """
    small = replace(case_of(row.table).check_row(row), split="")
    if config is not None:
        kwargs = dict(config.kwargs)
        fixed = {"GROUP_M": 8, "SPLIT_K": min(int(kwargs.get("SPLIT_K", 1)), 2), "SPLIT_TAIL": False, "HEAD_GROUP": 1}
        kwargs |= {name: value for name, value in fixed.items() if name in kwargs}
        config = replace(config, kwargs=tuple(sorted(kwargs.items())))
    key = json.dumps([small.kernel, small.shape, small.dtype, None if config is None else config.as_dict()])
    return key, small, config
