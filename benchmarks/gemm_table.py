"""The raw exhaustive table of ``bench_gemm.py``, as configurations and times."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

from warpplan.kernels.gemm.space import GemmConfig

RESULTS = Path(__file__).parent / "results"
TABLES = tuple(RESULTS / f"gemm_exhaustive_h200_{split}.json" for split in ("train", "heldout"))


@dataclass(frozen=True, eq=False)
class SearchedShape:
    """One shape's measured configurations.

    ``time_us`` is in their order, each scaled by how far the cuBLAS reading next to it was from cuBLAS's median, so
    that the card's drift during the search does not rank configurations.
    """

    shape: tuple[int, int, int]
    dtype: str
    split: str
    configs: tuple[GemmConfig, ...]
    time_us: NDArray[np.float64]


def read(*paths: Path) -> list[SearchedShape]:
    """The shapes of all tables (those of ``TABLES`` that exist, where none is named)."""
    return [shape for path in paths or [t for t in TABLES if t.exists()] for shape in _read(path)]


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


def steady_us(times: NDArray[np.float64], cublas_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """``times`` has columns median, low, high and the index of the cuBLAS reading next to it.

    cuBLAS's own readings scatter by some per cent, so the drift is their running median over five.
    """
    drift = median_filter(cublas_us, size=5, mode="nearest")[times[:, 3].astype(int)]
    return np.asarray(times[:, 0] * np.median(cublas_us) / drift)
