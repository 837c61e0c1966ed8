"""``warpplan export --tuned``: what was kept of a kernel, read back by the kernel's own autotuner."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

sys.path.insert(0, str(Path(__file__).parent))

from tuned_product import ALL, KERNELS, SPACE, tune  # noqa: E402

from warpplan.planner.values.device import H200  # noqa: E402
from warpplan.service.cli.app import main  # noqa: E402
from warpplan.service.feeds.consumer_kernel import Tensor, load  # noqa: E402
from warpplan.service.feeds.paper_launch import read_entry  # noqa: E402
from warpplan.service.store.answer_store import Store  # noqa: E402
from warpplan.service.store.tuned.kernel_answer_store import KernelAnswers  # noqa: E402
from warpplan.service.store.tuned.tuning_store import TunedTime, Tunings  # noqa: E402


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(KERNELS)
    return f"{path}:product"


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    said = capsys.readouterr()
    return status, said.out, said.err


def found_by_the_job(spec: str, cache: Path) -> Any:
    """What the autotuner takes at the launch that the job makes: positional, with its own tensors."""
    a, b, c = (Tensor("bfloat16") for _ in range(3))
    return read_entry(load(spec), ((a, b, c, 2048, 2048, 1024, 1024, 1.5), {}), H200, cache).config


def test_the_jobs_autotuner_takes_what_was_predicted_and_then_what_was_measured(
    spec: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    assert tune(capsys, spec, *SPACE, "--store", store.name)[0] == 0
    (answer,) = KernelAnswers(store.database).of("product")
    export = ("export", "--tuned", "--consumer", spec, "--store", store.name, "--out", cache)
    verify = ("verify", *export[1:])
    assert run(capsys, *verify)[0] == 1
    status, out, _ = run(capsys, *export)
    assert (status, "triton: 1 entries for" in out) == (0, True)
    assert "\n   " not in out, "lines of the report begin with two blanks"
    config = found_by_the_job(spec, cache)
    assert dict(config.kwargs) == dict(answer.ranked[0][0].kwargs)
    assert run(capsys, *verify, "--strict")[0] == 0

    last = answer.ranked[-1][0]
    assert last != answer.ranked[0][0]
    time = TunedTime(
        answer.kernel, answer.source, answer.tuning_key, last, answer.device, (("triton", triton.__version__),), 9.0
    )
    Tunings(store.database).record([time])
    status, out, err = run(capsys, *verify, "--strict")
    assert (status, "not what would be exported now" in out) == (1, True), err
    assert run(capsys, *export)[0] == 0
    assert dict(found_by_the_job(spec, cache).kwargs) == dict(last.kwargs)
    assert run(capsys, *verify, "--strict")[0] == 0
    (entry,) = (path for path in cache.rglob("*.autotune.json") if "warpplan" not in path.name)
    assert json.loads(entry.read_text())["configs_timings"][0][1][0] == pytest.approx(9e-3)

    entry.write_text("tuned by the job")
    status, out, _ = run(capsys, *export)
    (kept,) = cache.rglob("*.replaced-*")
    assert (status, kept.read_text(), f"kept {kept}" in out) == (0, "tuned by the job", True)


def test_a_kernel_that_was_edited_finds_nothing(
    spec: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(capsys, spec, "--store", store.name)[0] == 0
    path = Path(spec.partition(":")[0])
    path.write_text(KERNELS.replace("acc * scale", "acc * scale * 1.0"))
    cache = tmp_path / "cache"
    export = ("export", "--tuned", "--consumer", spec, "--store", store.name, "--out", cache)
    for words, told in (
        (
            export,
            "another than that of the 1 answer that is kept under its name; tune it with `warpplan tune --store`",
        ),
        ((*export, "--device", "NVIDIA H100 80GB HBM3"), ""),
        (("export", "--tuned", "--consumer", spec, "--out", cache), "--tuned writes what a store has kept"),
        ((*export, "--target", "vllm"), "--tuned writes what a store has kept"),
    ):
        status, out, err = run(capsys, *words)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert told in err
    assert not cache.exists()


def test_two_shapes_on_one_entry_with_unlike_configurations_are_refused(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(KERNELS.replace('key=["M", "N", "K"]', 'key=["K"]'))
    words = [word for word in ALL if word != "M=2048 N=2048 K=1024"]
    words.insert(1, "M=2048 N=2048 K=1024")
    more = ("--shapes", "M=64 N=2048 K=1024", "--space", "BM=64,128 BN=64,128 BK=64 num_stages=3,4")
    assert run(capsys, "tune", f"{path}:product", *words, *more, "--store", store.name)[0] == 0
    out = tmp_path / "cache"
    status, _, err = run(
        capsys, "export", "--tuned", "--consumer", f"{path}:product", "--store", store.name, "--out", out
    )
    assert (status, "fall on one entry of" in err) == (2, True), err
    assert not out.exists()
