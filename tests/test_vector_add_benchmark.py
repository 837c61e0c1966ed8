"""The benchmark of the vector addition, as far as it goes without a GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from warpplan.kernels.timing import Timing
from warpplan.kernels.vector_add.space import ELEMENT_BYTES, VectorAddConfig, candidates

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    import bench_vector_add

    return bench_vector_add


def test_the_lengths_are_apart(bench: ModuleType) -> None:
    assert not set(bench.TRAIN) & set(bench.HELDOUT)
    assert {bench.split_of(n) for n in bench.TRAIN} == {"train"}


def test_operands_are_cold_in_l2(bench: ModuleType) -> None:
    l2 = 60 * 2**20
    for length in (*bench.TRAIN, *bench.HELDOUT):
        for dtype in bench.DTYPES:
            one = 3 * length * ELEMENT_BYTES[dtype]
            assert (bench.set_count(length, ELEMENT_BYTES[dtype], l2) - 1) * one > 1.5 * l2


def test_a_row_names_the_chosen_and_the_best(bench: ModuleType) -> None:
    names = [bench.name_of(c) for c in candidates("float32")]
    assert len(set(names)) == len(names)
    times = {name: Timing(10.0 + i, 9.0, 12.0, 12) for i, name in enumerate([*names, bench.PEER])}
    row = bench.row(123_457, "float32", times)
    assert row["best_us"] == 10.0
    assert VectorAddConfig(**row["best_config"]) == candidates("float32")[0]
    assert row["chosen_us"] == times[bench.name_of(VectorAddConfig(**row["config"]))].median_us
    assert row["split"] == "heldout"
    assert row["peers"] == {"torch.add": 10.0 + len(names)}


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="would measure where there is a GPU")
def test_without_a_gpu_it_says_so_and_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "bench_vector_add.py", "--out", tmp_path], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "torch" in done.stderr
    assert not list(tmp_path.iterdir())
