"""The raw exhaustive table of ``bench_gemm.py``, as configurations and times."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels.gemm.space import GemmConfig

TABLE = Path(__file__).parent / "results" / "gemm_exhaustive_h200.json"


@dataclass(frozen=True, eq=False)
class MeasuredShape:
    """One shape's measured configurations; ``time_us`` in their order."""

    shape: tuple[int, int, int]
    dtype: str
    split: str
    configs: tuple[GemmConfig, ...]
    time_us: NDArray[np.float64]


def read(path: Path = TABLE) -> list[MeasuredShape]:
    data = json.loads(path.read_text())
    return [
        MeasuredShape(
            tuple(row["shape"]),
            row["dtype"],
            row["split"],
            tuple(GemmConfig(**dict(zip(data["columns"], values, strict=True))) for values in row["configs"]),
            np.array([t[0] for t in row["times_us"]]),
        )
        for row in data["rows"]
    ]
