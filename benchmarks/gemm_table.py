"""The raw exhaustive table of ``bench_gemm.py``, as configurations and times."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from results_file import RESULTS
from time_statistics import steady_us

from warpplan.kernels.gemm.space import GemmConfig

TABLES = tuple(RESULTS / f"gemm_exhaustive_h200_{split}.json" for split in ("train", "heldout"))


@dataclass(frozen=True, eq=False)
class SearchedShape:
    """One shape's measured configurations.

    ``time_us`` is in their order, without the card's drift (:func:`time_statistics.steady_us`).
    """

    shape: tuple[int, int, int]
    dtype: str
    split: str
    configs: tuple[GemmConfig, ...]
    time_us: NDArray[np.float64]


def read(*paths: Path) -> list[SearchedShape]:
    """The shapes of all tables (those of ``TABLES`` that exist, where none is named)."""
    return [shape for path in paths or [t for t in TABLES if t.exists()] for shape in _read(path)]


def whole(m: SearchedShape) -> SearchedShape:
    """The configurations that leave K whole: the committed tables have splits of a former kernel."""
    kept = [i for i, config in enumerate(m.configs) if config.split == "none"]
    return replace(m, configs=tuple(m.configs[i] for i in kept), time_us=m.time_us[kept])


def _read(path: Path) -> list[SearchedShape]:
    data = json.loads(path.read_text())
    return [
        SearchedShape(
            tuple(row["shape"]),
            row["dtype"],
            row["split"],
            tuple(GemmConfig(**dict(zip(data["columns"], values, strict=True))) for values in row["configs"]),
            steady_us(np.array(row["times_us"]), np.array(row["cublas_us"])),
        )
        for row in data["rows"]
    ]
