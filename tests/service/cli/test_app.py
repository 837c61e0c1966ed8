from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from warpplan.planner.values import codec
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.cli.app import main
from warpplan.service.store.answer_store import Store
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.profiles import Profiles
from warpplan.service.workflow.request import Item

GEMM = ["plan", "gemm", "M=512", "N=1024", "K=2048"]
ADDING = ["--consumer", "x.py:f", "--out", "o", "--kernel", "vector_add"]
COMMAND = [sys.executable, "-m", "warpplan.service.cli.app"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WARPPLAN_STORE", raising=False)


def good(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = main(arguments)
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


def bad(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Assert exit 2 with exactly one clear line on stderr, and return it."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert re.fullmatch(r"warpplan: error: [^\n]+\n", err), err
    assert "Traceback" not in out + err
    return err


def test_kernels_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gemm" in good(capsys, "kernels")
    assert json.loads(good(capsys, "kernels", "--json"))[0]["dimensions"] == ["M", "N", "K"]
    assert "NVIDIA H200" in good(capsys, "devices")
    devices = {d["name"]: d["profile"] for d in json.loads(good(capsys, "devices", "--json"))}
    assert devices["NVIDIA H200"] == Profiles().of("NVIDIA H200").key


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    out = good(capsys, *GEMM, "--dtype", "float16")
    assert "gemm M=512 N=1024 K=2048 float16 on NVIDIA H200" in out
    assert re.search(r"predicted +[\d.]+ us, [\d.]+ TFLOP/s, bound by \w+", out)
    answer = json.loads(good(capsys, *GEMM, "--json"))
    assert answer["match"] == {"kind": "planned", "kept": False}
    assert not list(Path().iterdir())


def test_plan_into_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    first = json.loads(good(capsys, *GEMM, "--store", "s.sqlite", "--json"))
    second = json.loads(good(capsys, *GEMM, "--store", "s.sqlite", "--json"))
    assert (first["match"]["kind"], second["match"]["kind"]) == ("planned", "exact")
    assert first["config"] == second["config"]


def test_the_best_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    candidates = json.loads(good(capsys, *GEMM, "--top", "5", "--json"))
    times = [c["predicted"]["time_us"] for c in candidates]
    assert len(times) == 5
    assert times == sorted(times)
    assert candidates[0]["config"] == json.loads(good(capsys, *GEMM, "--json"))["config"]
    assert len(good(capsys, *GEMM, "--top", "5").splitlines()) == 6


def test_plan_with_a_profile_from_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    embedded = Profiles().of("NVIDIA H200")
    Path("p.json").write_bytes(codec.canonical(embedded.profile))
    answer = json.loads(good(capsys, *GEMM, "--profile", "p.json", "--json"))
    assert answer["provenance"]["profile"] == embedded.key
    Path("half.json").write_bytes(codec.canonical(embedded.profile)[:1000])
    assert "half.json" in bad(capsys, *GEMM, "--profile", "half.json")
    assert "cannot be read" in bad(capsys, *GEMM, "--profile", "no.json")
    bare = codec.to_json(embedded.profile) | {"ceilings": {}}
    Path("bare.json").write_text(json.dumps(bare))
    assert "the profile has no measured cost for" in bad(capsys, *GEMM, "--profile", "bare.json")
    other = bare | {"identity": bare["identity"] | {"gpu": "NVIDIA GeForce"}}
    Path("other.json").write_text(json.dumps(other))
    assert "other.json: identity.gpu: unknown device 'NVIDIA GeForce'" in bad(capsys, *GEMM, "--profile", "other.json")
    for command in (GEMM, ["explain", *GEMM[1:]], ["batch", "bundled"], ["calibrate"]):
        err = bad(capsys, *command, "--profile", "p.json", "--device", "NVIDIA H100 80GB HBM3")
        assert "p.json is of NVIDIA H200 and plans nothing for --device 'NVIDIA H100 80GB HBM3'" in err


def test_what_only_reads_makes_no_store(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        ["calibrate"], ["measure", "--dry-run"],
        ["export", "--tuned", "--consumer", "x.py:f", "--out", "o"],
        ["verify", "--tuned", "--consumer", "x.py:f", "--out", "o"],
    ):  # fmt: skip
        assert "store mistyped.sqlite does not exist" in bad(capsys, *command, "--store", "mistyped.sqlite")
        assert not Path("mistyped.sqlite").exists()


def test_a_bad_line_is_named_by_every_command_that_reads_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    Path("shapes.csv").write_text("M,N,K\n512,1024,2048\n0,1,8\n")
    for command in (["batch", "shapes.csv", "--store", "s.sqlite"], ["measure", "shapes.csv", "--dry-run"]):
        assert main(command) == 2
        assert "error: shapes.csv:3: M=0 is too small" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "gem", "M=1"], "unknown kernel 'gem': expected one of gemm"),
        (["plan", "gemm", "M=64", "N=64"], "needs K"),
        (["plan", "gemm", "M=64", "N=64", "K=0"], "K=0 is too small"),
        (["plan", "gemm", "M=64", "N=64", "K=-8"], "-8"),
        (["plan", "gemm", "M=64", "N=64", "K=12.5"], "'12.5' is not a whole number"),
        (["plan", "gemm", "M=64", "N=64", "K=9"], "multiple of 16 bytes"),
        (["plan", "gemm", "M=64", "N=64", "K=9999999999999"], "too large"),
        (["plan", "gemm", "M=2000000", "N=2000000", "K=64"], "4000000000000 elements"),
        (["plan", "gemm", "M=64", "N=64", "K=64", "L=1"], "no dimension or option 'L'"),
        (["plan", "gemm", "M=64", "M=64", "N=64", "K=64"], "M is given twice"),
        (["plan", "gemm", "64", "64", "64"], "'64' is no size or option: write NAME=VALUE"),
        ([*GEMM, "--dtype", "bf16"], "unknown dtype 'bf16': expected one of bfloat16, float16"),
        ([*GEMM, "--device", ""], "unknown device '': expected one of NVIDIA H200"),
        (
            [*GEMM, "--device", "NVIDIA B200"],
            "there is no profile of device 'NVIDIA B200': expected one of",
        ),
        ([*GEMM, "--top", "3", "--store", "s.sqlite"], "--top lists candidates, which no store keeps"),
        (["batch", "bundled", "--device", ""], "unknown device ''"),
        ([*GEMM, "--device", "H200"], "unknown device 'H200': expected one of NVIDIA H200"),
        ([*GEMM, "--store", "no/folder.sqlite"], "does not exist"),
        ([*GEMM, "--top", "0"], "'--top'"),
        ([*GEMM, "--top", "0"], "0"),
        ([*GEMM, "--top", "many"], "many"),
        ([*GEMM, "--tpo", "3"], "--tpo"),
        (["plan"], "Missing argument"),
        (["plam"], "plam"),
        (["batch", "no.csv"], "no.csv: cannot be read: No such file"),
        (["batch", "no.txt"], "unknown suffix"),
        (["export", "--consumer", "x.py:f", "--out", "o"], "shapes alone do not say how it is launched"),
        (["export", "bundled", "--consumer", "x.py:f", "--out", "o", "--target", "abacus"], "unknown target 'abacus'"),
        (
            ["export", "bundled", "--consumer", "x.py:f", "--out", "o", "--set", "M"],
            "--set 'M': write it as NAME=VALUE",
        ),
        (["export", "bundled", *ADDING], "--kernel vector_add: --target triton does not read it"),
        (["serve", "--port", "99999"], "--port"),
        (["serve", "--host", "999.1.1.1", "--port", "0"], "cannot listen"),
        (["serve", "--readonly", "--store", "absent.sqlite"], "absent.sqlite does not exist"),
        (["serve", "--host", "a" * 64, "--port", "0"], "label too long"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert says in bad(capsys, *arguments)


def rows(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_batch_keeps_good_lines_and_names_bad_ones(capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.csv").write_text("M,N,K,name\n64,64,64,first\n64,x,64,\n64,64\n128,64,64,last\n256,64,6")
    assert main(["batch", "s.csv", "--store", "s.sqlite", "--json"]) == 2
    out, err = capsys.readouterr()
    assert [(r["line"], r["name"], r["shape"]["M"]) for r in rows(out)] == [(2, "first", 64), (5, "last", 128)]
    assert [line.split(": ", 2)[2] for line in err.splitlines() if "s.csv:" in line] == [
        "s.csv:3: N='x' is not a whole number",
        "s.csv:4: 2 columns, the header has 4 (M,N,K,name)",
        "s.csv:6: 3 columns, the header has 4 (M,N,K,name)",
    ]
    assert "Traceback" not in err
    assert [p.shape["M"] for p in Store.open("s.sqlite").problems()] == [128, 64]


def test_a_second_run_takes_up_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.jsonl").write_text('{"M": 64, "N": 64, "K": 64}\n{"M": 64, "N": 64, "K": 64, "dtype": "float16"}\n')
    kinds = [
        [r["match"]["kind"] for r in rows(good(capsys, "batch", "s.jsonl", "--store", "s.sqlite", "--json"))]
        for _ in range(2)
    ]
    assert kinds == [["planned", "planned"], ["exact", "exact"]]


def test_the_asterisk_of_a_measured_time_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    Path("shapes.csv").write_text("M,N,K\n512,1024,2048\n")
    config = json.loads(good(capsys, "plan", "gemm", "M=512", "N=1024", "K=2048", "--store", "s.sqlite", "--json"))
    store = Store.open("s.sqlite")
    tuning = TuningConfig.of(**config["config"])
    Workflow(store).record(Item("gemm", (("M", 512), ("N", 1024), ("K", 2048))), tuning, 9.0)
    store.close()
    assert main(["batch", "shapes.csv", "--store", "s.sqlite"]) == 0
    out, err = capsys.readouterr()
    assert "9.00*" in out
    assert "1 kept before, 1 measured (*)" in err


def test_a_header_alone_is_no_batch(capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.csv").write_text("M,N,K\n")
    assert "s.csv: holds a header only" in bad(capsys, "batch", "s.csv", "--store", "s.sqlite")


def test_thousands_of_bad_lines_do_not_flood(capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.csv").write_text("M,N,K\n" + "0,64,64\n" * 3000)
    assert main(["batch", "s.csv", "--store", "s.sqlite"]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) < 30
    assert "3000 of 3000 lines could not be planned" in err


def test_bundled_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = good(capsys, "batch", "bundled", "--store", "s.sqlite").splitlines()
    assert len(lines) == 103
    assert lines[0].split()[:3] == ["name", "kernel", "shape"]
    assert sum(line.startswith("Llama-3-70B") for line in lines) == 30
    assert len(Store.open("s.sqlite").problems()) == len({line.split("  ", 1)[1].strip() for line in lines[1:]})


def test_a_store_that_cannot_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    Path("junk.sqlite").write_bytes(os.urandom(4096))
    assert "is not a database" in bad(capsys, *GEMM, "--store", "junk.sqlite")
    assert "is not a database" in bad(capsys, "batch", "bundled", "--store", "junk.sqlite")
    assert "is not a database" in bad(capsys, "serve", "--store", "junk.sqlite", "--port", "0")
    Store.open("newer.sqlite").close()
    with sqlite3.connect("newer.sqlite") as connection:
        connection.execute("INSERT INTO warpplan_schema VALUES (99, '', '')")
    assert "schema 99, newer than" in bad(capsys, *GEMM, "--store", "newer.sqlite")


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "Address already in use" in bad(capsys, "serve", "--store", "s.sqlite", "--port", port)


def test_serve_and_interrupt(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [*COMMAND, "serve", "--store", "s.sqlite", "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    said = server.stderr.readline()
    url = re.search(r"http://[\d.:]+", said)
    assert url, said
    assert httpx.get(f"{url[0]}/healthz").json() == {"status": "ok"}
    params = {"M": 512, "N": 1024, "K": 2048}
    assert httpx.get(f"{url[0]}/v1/configs/gemm", params=params, timeout=60).status_code == 200
    server.send_signal(signal.SIGINT)
    assert server.wait(20) == 130
    assert "Traceback" not in server.stderr.read()
    server.stderr.close()
    assert len(Store.open("s.sqlite").problems()) == 1


def test_interrupted_batch_is_clean_and_keeps(tmp_path: Path) -> None:
    """The shapes come through a pipe that stays open, so that the interruption finds the batch at work."""
    os.mkfifo("s.csv")
    batch = subprocess.Popen(
        [*COMMAND, "batch", "s.csv", "--store", "s.sqlite", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert batch.stdout is not None
    assert batch.stderr is not None
    with open("s.csv", "w") as shapes:
        shapes.write("M,N,K\n" + "".join(f"{16 * m},64,64\n" for m in range(1, 100)))
        shapes.flush()
        assert json.loads(batch.stdout.readline())["line"] == 2
        batch.send_signal(signal.SIGINT)
        out, err = batch.communicate(timeout=20)
    assert batch.returncode == 130
    assert err.splitlines()[-1] == "warpplan: interrupted"
    assert "Traceback" not in err
    assert len(Store.open("s.sqlite").problems()) >= 1 + len(out.splitlines())


def test_a_reader_that_leaves(tmp_path: Path) -> None:
    batch = subprocess.Popen(
        [*COMMAND, "batch", "bundled", "--store", "s.sqlite", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert batch.stdout is not None
    assert batch.stderr is not None
    batch.stdout.readline()
    batch.stdout.close()
    assert batch.stderr.read() == b""
    assert batch.wait(20) == 1
    batch.stderr.close()


def test_a_small_command_starts_small() -> None:
    script = (
        "import sys, warpplan.service.cli.app;"
        "print([m for m in ('fastapi', 'uvicorn', 'sqlalchemy', 'ortools', 'torch', 'triton') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_profile_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "cannot be profiled" in bad(capsys, "profile", "--out", "p.json")
    assert not Path("p.json").exists()
    assert "unknown probe 'x': expected one of tma" in bad(capsys, "profile", "--out", "p.json", "--only", "x")
    assert "old.json cannot be read" in bad(capsys, "profile", "--out", "p.json", "--add-to", "old.json")


def test_a_kept_answer_that_was_tampered_with(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    good(capsys, *GEMM, "--store", "s.sqlite")
    with sqlite3.connect("s.sqlite") as connection:
        connection.execute("UPDATE configs SET config = '{bad'")
    connection.close()
    assert "planned, kept" in good(capsys, *GEMM, "--store", "s.sqlite")
    assert "s.sqlite is damaged: gemm M=512 N=1024 K=2048 bfloat16 is planned anew" in caplog.text
    assert "exact, kept" in good(capsys, *GEMM, "--store", "s.sqlite")


@pytest.mark.parametrize(
    ("path", "number"),
    [("costs.entries", -5), ("costs.entries", 1e300), ("ceilings", 0), ("ceilings", 1e-300), ("ceilings", 1e300)],
)
def test_a_profile_with_an_impossible_number(capsys: pytest.CaptureFixture[str], path: str, number: float) -> None:
    profile: dict[str, Any] = codec.to_json(Profiles().of("NVIDIA H200").profile)
    if path == "ceilings":
        profile["ceilings"]["clock_hz_idle"]["p50"] = number
    else:
        profile["costs"]["entries"][0]["cost"]["issue"]["p50"] = number
    Path("p.json").write_text(json.dumps(profile))
    err = bad(capsys, *GEMM, "--profile", "p.json")
    assert f"p.json: {path}" in err
    assert "expected" in err


@pytest.mark.parametrize(
    ("constant", "number"),
    [("memory_norm", 0), ("power_norm", 1e9), ("dram_scale", -1), ("l2_scale", 1e300), ("structure.other", 100)],
)
def test_a_profile_with_a_constant_that_no_fit_gives(
    capsys: pytest.CaptureFixture[str], constant: str, number: float
) -> None:
    profile: dict[str, Any] = codec.to_json(Profiles().of("NVIDIA H200").profile)
    calibration = next(c for c in profile["calibrations"] if c["kernel"] == "gemm")
    calibration["constants"][constant] = number
    Path("p.json").write_text(json.dumps(profile))
    err = bad(capsys, *GEMM, "--profile", "p.json")
    assert f"p.json: calibrations: {constant} of gemm is {number:g}: expected" in err


def test_a_kernel_of_another_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    profile: dict[str, Any] = codec.to_json(Profiles().of("NVIDIA H200").profile)
    profile["identity"]["gpu"] = "NVIDIA B200"
    Path("p.json").write_text(json.dumps(profile))
    for asked in (GEMM, ("plan", "attention_fwd", "B=1", "H=8", "L=512", "D=64")):
        assert "runs on Hopper alone (wgmma, capability 9.0), not on NVIDIA B200" in bad(
            capsys, *asked, "--profile", "p.json"
        )


def test_swiglu_of_few_columns(capsys: pytest.CaptureFixture[str]) -> None:
    fused = ("plan", "gemm_bias_act", "M=16", "K=64", "activation=swiglu")
    assert "N=16: a tile of swiglu stores 16 columns or more" in bad(capsys, *fused, "N=16")
    assert "gemm_bias_act" in good(capsys, *fused, "N=18")


@pytest.mark.parametrize("size", ["9" * 30, "9" * 6000])
def test_a_size_beyond_every_integer(capsys: pytest.CaptureFixture[str], size: str) -> None:
    err = bad(capsys, "plan", "gemm", f"M={size}", "N=8", "K=8")
    assert "M=99999999999999999999… is too large" in err


def test_a_line_that_gives_a_size_twice(capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.jsonl").write_text('{"M": 8, "M": 9, "N": 8, "K": 8}\n{"M": ' + "9" * 6000 + ', "N": 8, "K": 8}\n')
    assert main(["batch", "s.jsonl"]) == 2
    err = capsys.readouterr().err
    assert "s.jsonl:1: 'M' is given twice" in err
    assert "s.jsonl:2: not JSON that holds sizes: a number is too long" in err
    assert "2 of 2 lines could not be planned, named above\n" in err


def test_output_that_cannot_be_written() -> None:
    closed = subprocess.run(
        f"{sys.executable} -m warpplan.service.cli.app kernels >&-", shell=True, capture_output=True
    )
    assert (closed.returncode, closed.stderr) == (0, b"")
    if Path("/dev/full").exists():
        with open("/dev/full", "wb") as full:
            done = subprocess.run([*COMMAND, "kernels"], stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 2
        assert done.stderr == b"warpplan: error: cannot write the output: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["batch", "größe.csv", "--store", "größe.sqlite"], "1 of 2 lines could not be planned, named above"),
        (["plan", "größe", "M=8"], "unknown kernel"),
        (["serve", "--host", "größe", "--port", "0"], "cannot listen on"),
        (["serve", "--store", "postgresql://größe@localhost/plans"], "write it with %XX, or set PYTHONUTF8=1"),
    ],
)
def test_names_that_the_locale_lacks(arguments: list[str], told: str) -> None:
    Path("größe.csv").write_text("M,N,K,name\n64,64,64,größe\n64,x,64,\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = subprocess.run([*COMMAND, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert told in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert (r"gr\xf6\xdfe" in done.stdout) == (arguments[0] == "batch")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_a_character_gets_its_escape(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    told = subprocess.run([*COMMAND, "kernels"], env=environment, capture_output=True, check=True).stdout
    assert rb"\u1d40" in told
    told = subprocess.run([*COMMAND, "kernels", "--json"], env=environment, capture_output=True, check=True).stdout
    assert "ᵀ" in json.dumps(json.loads(told), ensure_ascii=False)
