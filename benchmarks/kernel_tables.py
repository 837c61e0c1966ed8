"""The files of ``bench_kernels.py``: raw tables of the exhaustive search, rows of the comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_target import CARD
from kernel_cases.bench_rows import BenchRow, rows
from kernel_plans import PlannedRow
from kernel_timing import config_of
from many_shapes import TABLE, read_list, shape_of
from numpy.typing import NDArray
from results_file import head
from row_store import RowStore
from time_statistics import steady_us

from warpplan.planner.values.tuning import TuningConfig

KEY = ("table", "shape_text", "dtype")
STORE_SETTINGS = {"rows": 1}
"""Changed whenever rows of earlier runs no longer mean the same."""


@dataclass(frozen=True, eq=False)
class SearchedRow:
    """One row's measured configurations; ``time_us`` is in their order, without the card's drift
    (:func:`time_statistics.steady_us`)."""

    row: BenchRow
    configs: tuple[TuningConfig, ...]
    time_us: NDArray[np.float64]

    @property
    def best_first(self) -> list[TuningConfig]:
        return [self.configs[i] for i in np.argsort(self.time_us)]


def exhaustive_path(out: Path, table: str) -> Path:
    return out / f"kernels_exhaustive_{CARD}_{table}.json"


def compare_path(out: Path, table: str) -> Path:
    return out / f"kernels_{CARD}_{table}.json"


def exhaustive_store(out: Path, table: str) -> RowStore:
    return _resumed(exhaustive_path(out, table))


def compare_store(out: Path, table: str) -> RowStore:
    return _resumed(compare_path(out, table))


def _resumed(path: Path) -> RowStore:
    """The store, with the rows of a result that an earlier, complete run has left."""
    store = RowStore(path, KEY, STORE_SETTINGS)
    if path.exists() and not store.rows():
        data = json.loads(path.read_text())
        for row in data["rows"]:
            store.add(_keyed(spread(row, data.get("configs"))))
    return store


def _keyed(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "shape_text": " ".join(map(str, row["shape"]))}


def exhaustive_values(
    plan: PlannedRow, configs: Sequence[TuningConfig], chunks: Sequence[Mapping[str, Any]], size: int
) -> dict[str, Any]:
    """A row of the raw table from the results of its chunks of ``size`` configurations. Times are [median, low, high,
    index of the peer's reading]; what has none is left out and told under ``unmeasured``."""
    measured: list[dict[str, Any]] = []
    times: list[list[float]] = []
    unmeasured: list[str] = []
    peer_us: list[float] = []
    for index, chunk in enumerate(chunks):
        if "times" not in chunk:
            unmeasured += [f"{chunk['status']}: {chunk['reason']}"] * len(configs[index * size : (index + 1) * size])
            continue
        for config, found in zip(configs[index * size :], chunk["times"], strict=False):
            if isinstance(found, str):
                unmeasured.append(found)
            else:
                measured.append(config.as_dict())
                times.append([*found, len(peer_us)])
        peer_us.append(chunk["peer_us"])
    row = plan.row
    first = next((chunk for chunk in chunks if "peer" in chunk), {"peer": "", "device": ""})
    return _keyed({
        "kernel": row.kernel, "table": row.table, "shape": list(row.shape), "dtype": row.dtype, "split": row.split,
        "space": len(plan.ranked), "peer": first["peer"], "device": first["device"], "peer_us": peer_us,
        "configs": measured, "times_us": times, "unmeasured": unmeasured,
    })  # fmt: skip


def write_tables(out: Path, stores: Mapping[str, RowStore]) -> None:
    """The results files of what is there so far, rows in the order of the tables."""
    for table, store in stores.items():
        found = store.rows()
        order = [row.key for split in ("heldout", "train") for row in rows(table, split)]
        kept = [{k: v for k, v in found[key].items() if k != "shape_text"} for key in order if key in found]
        if not kept:
            continue
        begin = head(store.out.stem.split(f"_{CARD}")[0], kept[0]["device"])
        if "configs" in kept[0]:
            kept, configs = gathered(kept)
            begin |= {"configs": configs}
        store.write(begin, kept, complete=len(kept) == len(order))


def gathered(kept: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Any]]:
    """Rows whose ``configs`` are positions in the list that comes with them."""
    positions: dict[str, int] = {}

    def position(config: Any) -> int:
        return positions.setdefault(json.dumps(config, sort_keys=True), len(positions))

    short = [{**row, "configs": [position(config) for config in row["configs"]]} for row in kept]
    return short, [json.loads(text) for text in positions]


def spread(row: dict[str, Any], configs: Sequence[Any] | None) -> dict[str, Any]:
    """A row as it was before :func:`gathered`."""
    return row if configs is None else {**row, "configs": [configs[i] for i in row["configs"]]}


def row_from(values: Mapping[str, Any]) -> BenchRow:
    """The row of the tables, or of the list of many shapes, that a results file's row is of. :class:`KeyError` where
    there is none any more."""
    shape = tuple(values["shape"])
    if values["table"] == TABLE:
        listed: Iterable[BenchRow] = (drawn.row for drawn in read_list())
    else:
        listed = rows(values["table"], values["split"])
    for row in listed:
        if (row.shape, row.dtype) == (shape, values["dtype"]):
            return row
    raise KeyError(f"{values['table']} has no row {shape} of {values['split']}")


def read_exhaustive(path: Path) -> list[SearchedRow]:
    """The rows of a raw table."""
    data = json.loads(path.read_text())
    return [_searched(spread(row, data["configs"])) for row in data["rows"]]


def _searched(values: Mapping[str, Any]) -> SearchedRow:
    times = np.array(values["times_us"], dtype=np.float64).reshape(-1, 4)
    configs = tuple(config_of(config) for config in values["configs"])
    return SearchedRow(row_from(values), configs, steady_us(times, np.array(values["peer_us"], dtype=np.float64)))


def power_path(out: Path) -> Path:
    """What ``bench_power.py`` writes."""
    return out / f"power_{CARD}.json"


def read_sustained(path: Path, *tables: str) -> list[SearchedRow]:
    """The rows of some tables that ``bench_power.py`` has read; times are means over a settled clock."""
    found = []
    for values in json.loads(path.read_text())["rows"]:
        read = [(c, r["us"]) for c, r in zip(values["configs"], values["readings"], strict=True) if isinstance(r, dict)]
        if values["table"] in tables and read:
            configs = tuple(config_of(config) for config, _ in read)
            found.append(SearchedRow(row_from(values), configs, np.array([us for _, us in read], dtype=np.float64)))
    return found


def read_many(
    *paths: Path, counts: Callable[[str, TuningConfig, float], bool] = lambda date, config, us: True
) -> list[SearchedRow]:
    """The rows that ``bench_gemm_many.py`` has read: the first candidates of the ranking, medians, those that count by
    the date of their file, the configuration and the time. A shape that several files have is one row, with the mean
    of what a candidate took."""
    rows: dict[BenchRow, dict[TuningConfig, list[float]]] = {}
    for path in paths:
        data = json.loads(path.read_text())
        for values in (spread(row, data["configs"]) for row in data["rows"] if "wrong" not in row):
            for named, us in zip(values["configs"], values["ranked_us"], strict=True):
                if us is not None and counts(data["date"], config := config_of(named), us):
                    rows.setdefault(shape_of(values).row, {}).setdefault(config, []).append(us)
    return [
        SearchedRow(row, tuple(read), np.array([np.mean(us) for us in read.values()])) for row, read in rows.items()
    ]


def best_configs(out: Path, row: BenchRow) -> list[TuningConfig]:
    """The configurations of a row's search, best first, from the raw table or what an interrupted run left of it."""
    path = exhaustive_path(out, row.table)
    partial = path.with_suffix(".partial.jsonl")
    if path.exists():
        for found in read_exhaustive(path):
            if found.row == row:
                return found.best_first
    if partial.exists():
        for line in partial.read_text().splitlines()[1:]:
            values = json.loads(line)
            if (tuple(values["shape"]), values["dtype"]) == (row.shape, row.dtype):
                return _searched(values).best_first
    return []


def comparison_row(plan: PlannedRow, ours: dict[str, dict[str, Any]], result: dict[str, Any]) -> dict[str, Any]:
    """A row of the results file; times are medians in µs. Those of ``waited`` are by the clock of a host that waits for
    each launch, the chosen plan's among them, and compare with one another alone."""
    times: dict[str, dict[str, float]] = result["times"]
    row: dict[str, Any] = {
        "kernel": plan.row.kernel, "table": plan.row.table, "shape": list(plan.row.shape), "dtype": plan.row.dtype,
        "split": plan.row.split,
    }  # fmt: skip
    predicted = dict(plan.ranked)
    candidates = {n: t["us"] for n, t in times.items() if n in ours and n.split()[0] in ("chosen", "rank", "found")}
    if "chosen" in candidates:
        row |= {"chosen_us": candidates["chosen"], "config": ours["chosen"]["config"]}
    if candidates:
        best = min(candidates, key=lambda name: candidates[name])
        ranked = [us for name, us in candidates.items() if not name.startswith("found")]
        row |= {
            "best_us": candidates[best],
            "best_config": ours[best]["config"],
            "best_of_8_us": min(ranked, default=None),
        }
    if plan.ranked:
        row["predicted_us"] = round(predicted[plan.ranked[0][0]], 3)
    return _keyed(row) | {
        "peers": {name: t["us"] for name, t in times.items() if name not in ours},
        "waited": {name: t["us"] for name, t in result["waited"].items()},
        "others": {name: t["us"] for name, t in times.items() if name in ours and name not in candidates},
        "spread": {name: [t["low_us"], t["high_us"]] for name, t in times.items()},
        "roofline_us": result["roofline_us"], "rates": result["rates"], "flops": result["flops"],
        "moved_bytes": result["moved_bytes"], "relative_error": result["error"], "failed": result["failed"],
        "configurations": len(plan.ranked), "device": result["device"],
    }  # fmt: skip
