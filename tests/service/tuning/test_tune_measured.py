"""``warpplan tune --store`` and ``--measure``: kept, measured in real children, served, and held to on every rank."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

triton = pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))  # children import the stand-ins by name

import cpu_launches  # noqa: E402
from tuned_product import ALL, KERNELS, SPACE, tune  # noqa: E402

from warpplan.service.cli.app import main  # noqa: E402
from warpplan.service.client import Client, ClientError, ServiceRefused  # noqa: E402
from warpplan.service.feeds.consumer_kernel import find  # noqa: E402
from warpplan.service.feeds.machine_here import machine_here  # noqa: E402
from warpplan.service.http.app import create_app  # noqa: E402
from warpplan.service.store.answer_store import Store  # noqa: E402
from warpplan.service.store.tuned.kernel_answer_store import KERNEL_ANSWERS, KernelAnswers  # noqa: E402
from warpplan.service.store.tuned.tuning_store import Tunings  # noqa: E402
from warpplan.service.tuning import launch_jobs  # noqa: E402
from warpplan.service.workflow.configure import Workflow  # noqa: E402

SIGNATURE = "a_ptr=*bf16, b_ptr=*bf16, c_ptr=*bf16, scale=1.5, stride_am=K"
SIZES = {"M": 2048, "N": 2048, "K": 1024}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("kernels") / "mine.py"
    path.write_text(KERNELS)
    return f"{path}:product"


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    child = launch_jobs.LaunchChild("cpu_launches:identity", "cpu_launches:times")
    monkeypatch.setattr(launch_jobs, "CHILD", child)


def kernel_of(spec: str) -> Any:
    """The kernel as a job has it, which is imported under another name."""
    return find(spec)


def test_without_a_gpu_measuring_is_one_line_and_nothing_is_touched(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real child: there is no torch, or no GPU, on the machines that run this."""
    if machine_here().gpus:
        pytest.skip("there is a GPU")
    store = tmp_path / "store.sqlite"
    status, out, err = tune(capsys, spec, "--measure", 2, "--store", store)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "measuring needs a GPU, and this machine offers none: " in err
    assert not store.exists()
    child = launch_jobs.LaunchChild("cpu_launches:other_gpu", "cpu_launches:times")
    monkeypatch.setattr(launch_jobs, "CHILD", child)
    status, _, err = tune(capsys, spec, "--measure", 2, "--store", store)
    assert (status, err.count("\n"), store.exists()) == (2, 1, False)
    assert "this machine's GPU is NVIDIA H100 80GB HBM3, and the answers are for NVIDIA H200" in err


def test_what_is_predicted_is_kept_and_served(
    spec: str, store: Store, workflow: Workflow, serve: Callable[[FastAPI], str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = tune(capsys, spec, "--store", store.name, "--json")
    assert status == 0
    told = json.loads(out)["shapes"][0]
    client = Client(serve(create_app(workflow)), timeout=60)
    kernel = kernel_of(spec)
    answer = client.tuned(kernel, **SIZES)
    assert answer is not None
    assert answer == told["answer"]
    assert answer["config"] == told["ranked"][0]["config"]
    assert (answer["measured_us"], answer["provenance"]["source"]) == (None, "predicted")
    assert answer["signature"] == SIGNATURE
    quiet = Client(client._url, timeout=60, on_error="none")
    assert quiet.tuned(kernel, **{**SIZES, "M": 1}) is None
    told_way_out = (
        r"no configuration of product, .* for M=1 N=2048 K=1024 on NVIDIA H200: "
        r'keep one with `warpplan tune FILE.py:product --shapes "M=1 N=2048 K=1024" --store'
    )
    with pytest.raises(ClientError, match=told_way_out):
        client.tuned(kernel, **{**SIZES, "M": 1})
    assert quiet.tuned(kernel, device="NVIDIA H100", **SIZES) is None
    changed = find(spec.replace(":product", ":product"))
    changed.fn.hash = "another source"
    assert quiet.tuned(changed, **SIZES) is None
    with pytest.raises(ClientError, match="not a Triton kernel"):
        client.tuned(3, M=1)
    with pytest.raises(ServiceRefused, match="M='x' is no size"):
        client.tuned(kernel, M="x")  # type: ignore[arg-type]


@pytest.mark.slow
def test_measured_times_outrank_predictions_and_a_dead_child_costs_its_own_configuration(
    spec: str, cpu: None, store: Store, workflow: Workflow, serve: Callable[[FastAPI], str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Real children: of sixteen configurations four each hang, die and are refused."""
    space = ("--space", "BM=64,128 BN=64,128 BK=64 num_stages=2,3,4,5")
    status, out, err = tune(capsys, spec, *space, "--store", store.name, "--measure", 16, "--time-limit", 1, "--json")
    assert status == 0
    assert err.count("measured BK=64") == 16
    told = json.loads(out)["shapes"][0]
    how = [(r["config"]["num_stages"], r["measured"]["status"]) for r in told["ranked"]]
    assert sorted(how) == [(2, "timeout")] * 4 + [(3, "ok")] * 4 + [(4, "refused")] * 4 + [(5, "crash")] * 4
    # The stand-in says that the fewest programs take longest.
    assert told["answer"]["config"]["kwargs"] == {"BM": 64, "BN": 64, "BK": 64}
    assert told["answer"]["measured_us"] == pytest.approx(1e3 / 1024)
    kept = Tunings(store.database).of("product")
    assert sorted((t.config.num_stages, t.time_us is None) for t in kept) == [(3, False)] * 4 + [(4, True)] * 4
    assert {dict(t.environment)["driver"] for t in kept} == {cpu_launches.IDENTITY["driver"]}
    client = Client(serve(create_app(workflow)), timeout=60)
    assert client.tuned(kernel_of(spec), **SIZES) == told["answer"]
    status, out, _ = tune(capsys, spec, *SPACE, "--store", store.name)
    assert (status, "answer: BK=64 BM=64 BN=64, 4 warps, 3 stages: measured 1.0 us" in out) == (0, True)


def test_a_signature_that_says_too_little_to_measure_is_refused_before_anything_runs(
    spec: str, cpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for old, new, told in (
        ("*bf16[K*N]", "*bf16", "b_ptr = *bf16: measuring needs to know how many elements lie behind it"),
        ("*bf16[K*N]", "*bf16[Q]", "no value for Q"),
        ("scale=1.5", "scale=fp32", "measuring takes pointers and numbers with their values"),
    ):
        words = [word.replace(old, new) for word in ALL]
        status = main(["tune", spec, *words, "--measure", "1", "--store", str(tmp_path / "store.sqlite")])
        said = capsys.readouterr()
        assert (status, said.out, said.err.count("\n")) == (2, "", 1)
        assert told in said.err
    assert not list(tmp_path.iterdir())


def test_two_signatures_are_told_apart(
    spec: str, store: Store, workflow: Workflow, serve: Callable[[FastAPI], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(capsys, spec, "--store", store.name)[0] == 0
    assert main(["tune", spec, *(w.replace("bf16", "fp16") for w in ALL), "--store", store.name]) == 0
    client = Client(serve(create_app(workflow)), timeout=60)
    with pytest.raises(ClientError, match="known with unlike arguments"):
        client.tuned(kernel_of(spec), **SIZES)
    found = client.tuned(kernel_of(spec), signature=SIGNATURE.replace("bf16", "fp16"), **SIZES)
    assert found is not None
    assert "fp16" in found["signature"]


def test_a_damaged_answer_is_left_out_and_predicted_anew(
    spec: str, store: Store, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert tune(capsys, spec, "--store", store.name)[0] == 0
    answers = KernelAnswers(store.database)
    (whole,) = answers.of("product")
    with store.database.writing() as connection:
        connection.execute(KERNEL_ANSWERS.update().values(ranked="[]"))
    assert answers.of("product") == ()
    assert "is damaged: an answer of product is left out" in caplog.text
    assert tune(capsys, spec, "--store", store.name)[0] == 0
    (again,) = answers.of("product")
    assert again.ranked == whole.ranked
