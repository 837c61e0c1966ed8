"""``warpplan export`` and ``verify`` for Triton's cache: what stdout holds, and what is refused."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs triton (no GPU) to compute its cache keys")

from warpplan.planner.values import codec
from warpplan.planner.values.device import H200
from warpplan.planner.values.tuning import TuningConfig
from warpplan.profiler.embedded import embedded
from warpplan.service.cli.app import main
from warpplan.service.feeds.consumer_kernel import load
from warpplan.service.store.answer_store import Store
from warpplan.service.store.tuned.kernel_answer_store import KernelAnswer, KernelAnswers
from warpplan.service.store.tuned.tuning_store import TunedTime, Tunings
from warpplan.service.workflow.profiles import planner_version

KERNEL = (Path(__file__).parents[1] / "feeds" / "add_consumer.py").read_text()
PRUNED = KERNEL.replace(
    "    cache_results=True,\n", '    cache_results=True,\n    prune_configs_by={"early_config_prune": pruned},\n'
).replace(
    "@triton.autotune(",
    'print("imported")\n\n\ndef pruned(configs, named, **rest):\n    print("pruned")\n    return configs\n\n\n'
    "@triton.autotune(",
)


SIGNATURE = "output_ptr=*bf16, x_ptr=*bf16, y_ptr=*bf16"


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """An answer of today is kept of the kernel; what exports it."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PRUNED)
    function = load("mine.py:add_kernel").function
    config = TuningConfig.of({"BLOCK_SIZE": 1024}, num_warps=4, num_stages=3)
    answer = KernelAnswer(
        "add_kernel", function.cache_key, (("n_elements", 98432),), SIGNATURE, H200.name,
        codec.key(embedded(H200.name)), planner_version(), ((config, 2.0),), triton=metadata.version("triton"),
    )  # fmt: skip
    with closing(Store.open("kept.sqlite")) as store:
        KernelAnswers(store.database).keep([answer])
    return ("--tuned", "--store", "kept.sqlite", "--consumer", "mine.py:add_kernel", "--out", "cache")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(list(words))
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.mark.parametrize("command", ["export", "verify"])
def test_what_the_consumers_file_prints_is_no_part_of_the_answer(
    command: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "export", *words)[0] == 0
    status, out, err = run(capsys, command, *words, "--json")
    assert status == 0
    assert json.loads(out)["target"] == "triton"
    assert "imported" in err
    assert "pruned" in err


@pytest.mark.parametrize("command", ["export", "verify"])
def test_a_folder_without_a_name_is_not_this_one(
    command: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    at = words.index("--out") + 1
    before = sorted(Path().iterdir())
    status, out, err = run(capsys, command, *words[:at], "", *words[at + 1 :])
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "--out is empty: name the folder that the consumer reads" in err
    assert sorted(Path().iterdir()) == before


def test_strict_fails_where_provenance_is_lost(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "export", *words)[0] == 0
    assert run(capsys, "verify", *words, "--strict")[0] == 0
    (beside,) = Path("cache").rglob("*.autotune.json.warpplan.json")
    beside.unlink()
    status, out, _ = run(capsys, "verify", *words)
    assert status == 0
    assert "hit " in out
    assert f"its provenance is missing: no {beside.name}; export again" in out
    status, _, err = run(capsys, "verify", *words, "--strict")
    assert status == 1
    assert "its provenance is missing" in err.splitlines()[-1]


@pytest.mark.parametrize("command", ["export", "verify"])
@pytest.mark.parametrize("given", [("shapes.csv",), ("--store", "kept.sqlite"), ()], ids=["shapes", "store", "neither"])
def test_shapes_alone_are_refused_with_the_way_out(
    command: str, given: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("shapes.csv").write_text("N,dtype\n98432,bfloat16\n")
    status, out, err = run(
        capsys, command, *given, "--target", "triton", "--consumer", "mine.py:add_kernel", "--out", "cache"
    )
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "`warpplan tune mine.py:add_kernel --shapes ... --signature ... --grid ... --store FILE`" in err
    assert "then give --tuned --consumer mine.py:add_kernel --store FILE" in err
    assert not Path("cache").exists()


def test_an_answer_is_for_the_profile_that_it_was_ranked_with(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    own = embedded(H200.name)
    own = replace(own, identity=replace(own.identity, driver="1.2"))
    Path("mine.json").write_text(json.dumps(codec.to_json(own)))
    status, out, err = run(capsys, "export", *words, "--profile", "mine.json")
    assert (status, out) == (2, "")
    assert "has no answer for mine.py:add_kernel on NVIDIA H200 that holds: stale: ranked from another profile" in err
    assert run(capsys, "export", *words)[0] == 0
    status, out, err = run(capsys, "verify", *words, "--profile", "mine.json")
    assert (status, "MISS" in out, "ranked from another profile" in out) == (1, True, True)


def test_the_driver_of_the_job_is_told(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "export", *words, "--job-driver", "580.10")
    assert (status, "valid for driver 580.10" in out) == (0, True)
    assert run(capsys, "verify", *words, "--job-driver", "580.10", "--strict")[0] == 0
    status, out, _ = run(capsys, "verify", *words, "--job-driver", "570.86")
    assert (status, "the driver (was 580.10, is 570.86)" in out) == (1, True)


def test_a_report_tells_measured_times_from_predicted_ones(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    slow = TuningConfig.of({"BLOCK_SIZE": 256}, num_warps=4, num_stages=3)
    with closing(Store.open("kept.sqlite")) as store:
        (answer,) = KernelAnswers(store.database).of("add_kernel")
        other = replace(answer, shape=(("n_elements", 777),))
        KernelAnswers(store.database).keep([other])
        environment = (("triton", metadata.version("triton")),)
        Tunings(store.database).record(
            [TunedTime(other.kernel, other.source, other.tuning_key, slow, other.device, environment, 9.0)]
        )
    status, out, _ = run(capsys, "export", *words)
    assert (status, out.count(" us ")) == (0, 2)
    assert "n_elements=98432 " in next(line for line in out.splitlines() if "2.0 us predicted" in line)
    assert "n_elements=777 " in next(line for line in out.splitlines() if "9.0 us measured" in line)
    entries = json.loads(run(capsys, "export", *words, "--json")[1])["entries"]
    assert sorted((e["shape"], e["predicted_us"], e["measured_us"]) for e in entries) == [
        (["n_elements=777"], None, 9.0), (["n_elements=98432"], 2.0, None),
    ]  # fmt: skip
