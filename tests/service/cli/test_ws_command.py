"""``warpplan ws`` as a user runs it: graph, plan, lines, barriers; and what it says where it cannot."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from warpplan.service.cli.app import main  # noqa: E402

KERNELS = """
import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr = 64):
    row = tl.program_id(0) * BM
    column = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        x = a.load([row, k * BK])
        y = b.load([column, k * BK])
        acc = tl.dot(x, y.T, acc)
    rows = row + tl.arange(0, BM)
    columns = column + tl.arange(0, BN)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc.to(tl.bfloat16))


@triton.autotune([triton.Config({"BLOCK": 1024})], key=["n"])
@triton.jit
def double(x_ptr, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(x_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def stock(a, b, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, tl.cdiv(K, 64), warp_specialize=True):
        acc = tl.dot(a.load([0, k * 64]), b.load([0, k * 64]).T, acc)
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * N + tl.arange(0, BN)[None, :], acc.to(tl.bfloat16))


@triton.jit
def rows_apart(a, b, r, c_ptr, BIAS, N, K, BM: tl.constexpr, BN: tl.constexpr, DTYPE: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, 64):
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc * 0.5)
    acc += tl.reshape(r.load([0, 0, 0]), (BM, BN)).to(tl.float32)
    if BIAS is not None:
        acc += tl.load(BIAS + tl.arange(0, BN))[None, :]
    tl.store(c_ptr + tl.arange(0, BM)[:, None] * N + tl.arange(0, BN)[None, :], acc.to(DTYPE))


no_kernel = 1
"""
OPERANDS = "a=bf16[128,64], b=bf16[256,64], c_ptr=*bf16, N=i32:16, K=i32"
TILE = f"{OPERANDS}, BM=128, BN=256"


@pytest.fixture(autouse=True)
def _kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(KERNELS)


def line(text: str) -> str:
    return f"mine.py:{next(i for i, row in enumerate(KERNELS.splitlines(), 1) if text in row)}"


def ask(capsys: pytest.CaptureFixture[str], command: str, signature: str) -> tuple[int, str, str]:
    status = main(["ws", *shlex.split(command), "--signature", signature])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def answer(capsys: pytest.CaptureFixture[str], command: str, signature: str) -> tuple[int, Any]:
    status, out, err = ask(capsys, f"{command} --json", signature)
    assert not err
    return status, json.loads(out)


def test_everything_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = ask(capsys, "mine.py:matmul --warps 8", TILE)
    assert (status, err) == (0, "")
    titles = [
        "Loop loop@", "Schemes, best first", "Where each line goes", "Any other partition or order", "Barriers",
        "Causes of hangs",
    ]  # fmt: skip
    assert [out.index(title) for title in titles] == sorted(out.index(title) for title in titles)
    for text in ("x = a.load", "acc = tl.dot"):
        assert line(text) in out
    assert "none of the known causes" in out
    assert re.search(r"loop@\S+: no other partition or order has a shorter interval than \d+ cycles: proven", out)


def test_what_the_file_prints_is_no_part_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    said = KERNELS.replace(
        "    row = tl.program_id(0) * BM\n", '    tl.static_print("compiled")\n    row = tl.program_id(0) * BM\n', 1
    )
    Path("mine.py").write_text(f'print("imported")\n{said}')
    status, out, err = ask(capsys, "mine.py:matmul --warps 8 --scheme 2x4:3 --json", TILE)
    assert (status, json.loads(out)["kernel"]) == (0, "matmul")
    assert "imported" in err
    assert "compiled" in err


def test_names_beyond_ascii_are_shown_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    Path("größe.py").write_text(KERNELS.replace("acc", "größe"), encoding="utf-8")
    status, found = answer(capsys, "größe.py:matmul --warps 8 --scheme 2x4:3", TILE)
    assert status == 0
    ids = {work["id"] for loop in found["loops"] for work in loop["work"]}
    assert line("acc = tl.dot").replace("mine.py", "größe@größe.py") in ids


def test_a_file_that_triton_cannot_name_is_one_line() -> None:
    Path("größe.py").write_text(KERNELS, encoding="utf-8")
    run = [sys.executable, "-m", "warpplan.service.cli", "ws", "größe.py:matmul", "--signature", TILE]
    environment = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = subprocess.run(run, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "set PYTHONUTF8=1, or move the file" in done.stderr


def test_lines_partitions_stages_and_buffers(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = answer(capsys, "mine.py:matmul --warps 8 --scheme 2x4:3", TILE)
    assert status == 0
    assert found["schema"] == "warpplan/ws-1"
    assert {"consumers": 2, "depths": [3], "warps": 4, "in_flight": 1}.items() <= found["chosen"]["scheme"].items()
    placed = {p["lines"][-1]: p for p in found["placed"]}
    load, product = placed[line("x = a.load")], placed[line("acc = tl.dot")]
    assert load["partitions"] == ["producer"]
    assert load["buffer"] == "3 x 16384 bytes of shared memory"
    assert product["partitions"] == ["consumer0", "consumer1"]
    assert product["stage"] > load["stage"]
    full, empty = found["barriers"]["barriers"]
    uses = [(use["kind"], use["amount"]) for use in full["uses"]]
    assert uses.count(("init", 1)) == 3
    assert ("expect", 128 * 64 * 2 + 256 * 64 * 2) in uses
    assert {use["amount"] for use in empty["uses"] if use["kind"] == "init"} == {2}
    assert full["phases"] > 0
    assert found["barriers"]["findings"] == []
    assert len(found["plans"]) == 1


APART = f"{TILE}, r=bf16[2,64,128], BIAS=None, DTYPE=bf16".replace("256", "128")


def test_a_scheme_that_cannot_be_lowered_is_passed_over_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = answer(capsys, "mine.py:rows_apart --warps 8", APART)
    assert status == 0
    assert found["ranked"][0]["scheme"]["consumers"] == 2
    assert found["chosen"]["scheme"]["consumers"] == 1
    assert found["barriers"]["findings"] == []
    first, reason = found["refused"][0]
    assert first == found["ranked"][0]["scheme"]
    assert f"tt.reshape ({line('tl.reshape(r.load')})" in reason
    status, out, _ = ask(capsys, "mine.py:rows_apart --warps 8", APART)
    assert "Could not be lowered" in out
    assert out.count("tt.reshape (") == 1, "several schemes for one reason"
    assert "Where each line goes: 1 x " in out


@pytest.mark.parametrize("bias", ["None", "*fp32"])
@pytest.mark.parametrize("dtype", ["bf16", "tl.bfloat16", "fp32"])
def test_constexprs_that_are_types_and_pointers_that_are_none(
    bias: str, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = APART.replace("BIAS=None", f"BIAS={bias}").replace("DTYPE=bf16", f"DTYPE={dtype}")
    status, found = answer(capsys, "mine.py:rows_apart --scheme 1x4:2", signature.replace("c_ptr=*bf16", "c_ptr=*fp32"))
    assert (status, found["failure"]) == (0, "")
    outside = [p["kind"] for p in found["placed"] if not p["loop"]]
    assert ("load" in outside) == (bias != "None")


@pytest.mark.parametrize("target", [90, 100])
def test_every_scheme_that_is_shown_can_be_asked_for(target: int, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"mine.py:matmul --warps 8 --target {target}"
    _, out, _ = ask(capsys, command, TILE)
    rows = out.partition("Schemes, best first")[2].partition("Where each line goes")[0].strip().splitlines()[1:]
    shown = [re.split(r"\s{2,}", row.strip())[0] for row in rows if "more: --json has all" not in row]
    _, found = answer(capsys, command, TILE)
    expected = [each for rank, each in enumerate(found["ranked"]) if rank < 8 or each["scheme"] is None]
    assert len(shown) == len(expected)
    assert shown.count("left alone") == 1
    last = max(rank for rank, text in enumerate(shown) if text != "left alone")
    for text, ranked in ((shown[0], expected[0]), (shown[last], expected[last])):
        for given in (text, json.dumps(ranked["scheme"])):
            status, again = answer(capsys, f"{command} --scheme {shlex.quote(given)}", TILE)
            assert status == 0
            assert again["chosen"]["scheme"] == ranked["scheme"]


def test_a_kernel_that_cannot_be_specialised_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = ask(capsys, "mine.py:double", "x_ptr=*fp32, n=i32, BLOCK=1024")
    assert status == 0
    assert f"tt.load ({line('tl.store(x_ptr')}): loads through pointers" in out
    assert re.search(r"left alone +1\.00", out), "no cycles of a tile are known"


def test_a_store_that_tma_cannot_do_is_told_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
import triton
import triton.language as tl


@triton.jit
def scattered(a, b, rows_ptr, c_ptr, K, BM: tl.constexpr, BN: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, 64):
        acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
    rows = tl.load(rows_ptr + tl.arange(0, BM))
    tl.store(c_ptr + rows[:, None] * BN + tl.arange(0, BN)[None, :], acc.to(tl.bfloat16))
"""
    (file := tmp_path / "scattered.py").write_text(text)
    signature = "a=bf16[64,64], b=bf16[64,64], rows_ptr=*i32, c_ptr=*bf16, K=i32, BM=64, BN=64"
    assert main(["ws", f"{file}:scattered", "--signature", signature]) == 0
    told = capsys.readouterr().out.partition("Stores and additions that stay\n")[2].splitlines()[0]
    assert "tt.store (scattered.py:12): TMA cannot store it" in told
    assert "gathered" in told


def test_left_alone_is_shown_wherever_it_ranks_and_barriers_by_the_plans_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = ask(capsys, "mine.py:matmul --warps 8 --scheme 2x4:3", TILE.replace("256", "128"))
    schemes = out.partition("Schemes, best first")[2].partition("Where each line goes")[0]
    assert "left alone" in schemes.strip().splitlines()[-2]
    assert re.search(r"and \d+ more: --json has all", schemes)
    for name in ("consumer0, default (4 warps)", "consumer1, partition0 (4 warps)", "producer, partition1 (1 warps)"):
        assert name in out


@pytest.mark.skipif(not triton.__version__.startswith("3.6"), reason="what 3.6's own pass makes of it")
def test_a_cause_of_hangs_in_tritons_own_kernel_is_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = ask(capsys, "mine.py:stock --scheme stock", TILE)
    assert status == 1
    assert "a TMA box of 128x64 and a tile of 64x64" in out


def test_blackwell_shows_partitions_stages_and_buffers(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = answer(capsys, "mine.py:matmul --target 100 --scheme apart:3", TILE)
    assert status == 0
    assert [work["kind"] for work in found["loops"][0]["work"]] == ["tma_load", "tma_load", "dot"]
    assert found["chosen"]["scheme"] == {"workers": "apart", "depth": 3, "stages": [], "double": 1}
    placed = {p["lines"][-1]: p for p in found["placed"] if p["loop"]}
    load, product = placed[line("x = a.load")], placed[line("acc = tl.dot")]
    assert (load["partitions"], product["partitions"]) == (["loads"], ["products"])
    assert load["buffer"] == "3 x 16384 bytes of shared memory"
    assert product["buffer"] == "256 columns of 128 lanes of tensor memory"
    assert product["stage"] >= load["stage"] == 0
    assert [r["scheme"] and r["scheme"]["workers"] for r in found["ranked"]].count("together") == 1
    assert found["barriers"]["findings"] == []
    assert found["barriers"]["played"] > 0
    assert dict(found["barriers"]["partitions"]) == {"default": 4, "partition0": 1, "partition1": 2}


def test_blackwell_shows_the_best_plan_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = ask(capsys, "mine.py:matmul --target 100", TILE)
    assert (status, err) == (0, "")
    assert "columns of 128 lanes of tensor memory" in out
    assert "none of the known causes" in out
    status, found = answer(capsys, "mine.py:matmul --target 100 --scheme stock", TILE)
    assert status == 0
    assert found["chosen"]["scheme"] is None


@pytest.mark.parametrize(
    ("command", "signature", "message"),
    [
        ("mine.py", TILE, "expected FILE.py:function"),
        ("none.py:matmul", TILE, "no file none.py"),
        ("mine.py:missing", TILE, "has no 'missing'"),
        ("mine.py:no_kernel", TILE, "is no Triton kernel"),
        ("mine.py:matmul", OPERANDS, "BM: missing"),
        ("mine.py:matmul", f"{TILE}, BX=1", "BX = 1: the kernel has no such parameter, but a, b, c_ptr"),
        ("mine.py:matmul", f"{TILE}, BM=64", "BM = 64: given twice"),
        ("mine.py:matmul", TILE.replace("c_ptr=*bf16", "c_ptr=pointer"), "c_ptr = pointer: no type"),
        ("mine.py:matmul", TILE.replace("N=i32:16", "N=i32:24"), "expected :16"),
        ("mine.py:matmul", TILE.replace("BM=128", "BM=rows"), "BM = rows: a constexpr"),
        ("mine.py:matmul", "a", "expected NAME=TYPE"),
        ("mine.py:matmul", TILE.replace("128,64", "96,64"), "does not compile for sm_90"),
        ("mine.py:matmul --target 80", TILE, "expected 90 or 100"),
        ("mine.py:matmul --scheme 2x4", TILE, "expected stock, best, or CONSUMERSxWARPS:SLOTS"),
        ("mine.py:matmul --scheme '{\"depths\": [3]}'", TILE, "consumers"),
        ("mine.py:matmul --scheme '{'", TILE, "expected stock, best, or CONSUMERSxWARPS:SLOTS"),
        ("mine.py:matmul --scheme apart:3", TILE, "scheme 'apart:3' is not for sm_90"),
        ("mine.py:matmul --scheme 2x4:3 --target 100", TILE, "scheme '2x4:3' is not for sm_100"),
        ("mine.py:matmul --scheme apart:9 --target 100", TILE, "depth 9"),
        ("mine.py:matmul --scheme 9x4:2", TILE, "consumers 9"),
        ("mine.py:matmul --profile none.json", TILE, "none.json"),
    ],
)
def test_bad_input_is_one_line(command: str, signature: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = ask(capsys, command, signature)
    assert status == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_scheme_that_cannot_be_lowered_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = answer(capsys, "mine.py:double --scheme 1x4:2", "x_ptr=*fp32, n=i32, BLOCK=1024")
    assert status == 0
    assert found["barriers"] is None
    assert found["failure"]


AUTOTUNED = """
import triton
import triton.language as tl

TILES = [(64, 64, 4), (128, 128, 4), (16, 16, 4), (100, 64, 4)]


@triton.autotune([triton.Config({"BM": m, "BN": n, "BK": 64}, num_warps=w) for m, n, w in TILES], key=["M"])
@triton.heuristics({"EVEN": lambda args: args["K"] % args["BK"] == 0})
@triton.jit
def tuned(a, b, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([tl.program_id(0) * BM, k]), b.load([tl.program_id(1) * BN, k]).T, acc)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc.to(tl.bfloat16))
"""
OPEN = "a=bf16[BM,BK], b=bf16[BN,BK], c_ptr=*bf16, M=4096, N=4096"


def test_the_list_of_an_autotuned_kernel_is_ranked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tuned.py").write_text(AUTOTUNED)
    kernel = f"{tmp_path}/tuned.py:tuned"
    assert main(["ws", kernel, "--signature", f"{OPEN}, K=4096", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    best, *others = found["list"]
    assert best["config"].startswith("BM: 128, BN: 128")
    assert best["strategy"] == found["ranked"][0]["scheme"]
    assert "a=bf16[128,64]" in best["signature"]
    assert "EVEN=True" in best["signature"]
    assert min(best["planned_us"], best["alone_us"]) <= min(other["alone_us"] or 1e9 for other in others)
    assert "does not compile" in others[-1]["reason"]


def test_a_configuration_of_too_many_warps_is_last_and_the_others_are_ranked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wide.py").write_text(AUTOTUNED.replace("(64, 64, 4)", "(128, 128, 16)"))
    assert main(["ws", f"{tmp_path}/wide.py:tuned", "--signature", f"{OPEN}, K=4096", "--json"]) == 0
    first, *others = json.loads(capsys.readouterr().out)["list"]
    assert first["strategy"] is not None
    (wide,) = [each for each in others if "num_warps: 16" in each["config"]]
    assert wide["reason"].startswith("cannot be ranked: num_warps is 16; set it to 4 or 8")
    assert (wide["strategy"], wide["alone_us"]) == (None, None)


def test_a_list_of_too_many_warps_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiles = "TILES = [(128, 128, 16), (128, 64, 32)]"
    (tmp_path / "wide.py").write_text(re.sub(r"TILES = .*", tiles, AUTOTUNED))
    assert main(["ws", f"{tmp_path}/wide.py:tuned", "--signature", f"{OPEN}, K=4096"]) == 2
    said = capsys.readouterr().err
    assert "no configuration of the list can be ranked: num_warps is 16; set it to 4 or 8" in said
    assert said.count("\n") == 1


FAULTY = """
import triton
import triton.language as tl


@triton.jit
def helper(x):
    y = x + 1
    return tl.dot(y, y)


@triton.autotune([triton.Config({"N": 24})], key=[])
@triton.jit
def calls(x_ptr, N: tl.constexpr):
    at = tl.arange(0, 16)
    tl.store(x_ptr + at, helper(at))


@triton.jit
def misspelt(x_ptr, N: tl.constexpr):
    at = tl.arange(0, 16)
    tl.store(x_ptr + at, att)


@triton.jit
def uneven(x_ptr, N: tl.constexpr):
    if N > 1:
        at = tl.arange(0, N)
        tl.store(x_ptr + at, at)
"""


@pytest.mark.parametrize(
    ("kernel", "line", "column", "message"),
    [
        ("calls", "return tl.dot(y, y)", 12, "ranks"),
        ("misspelt", "tl.store(x_ptr + at, att)", 26, "att is not defined"),
        ("uneven", "at = tl.arange(0, N)", 14, "power of 2"),
    ],
)
def test_what_does_not_compile_names_file_line_and_column(
    kernel: str, line: str, column: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    assert main(["ws", f"{tmp_path}/faulty.py:{kernel}", "--signature", "x_ptr=*i32, N=24"]) == 2
    said = capsys.readouterr().err
    (number,) = [i for i, text in enumerate(FAULTY.splitlines(), 1) if line in text]
    assert re.search(rf"does not compile for sm_90: faulty\.py:{number}:{column}: .*{message}", said), said
    assert said.count("\n") == 1


def test_a_signature_that_leaves_nothing_open_is_one_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tuned.py").write_text(AUTOTUNED)
    kernel = f"{tmp_path}/tuned.py:tuned"
    signature = "a=bf16[64,64], b=bf16[64,64], c_ptr=*bf16, M=i32, N=i32, K=i32, BM=64, BN=64, BK=64, EVEN=True"
    assert main(["ws", kernel, "--signature", signature, "--scheme", "stock"]) == 0
    assert "Configurations, best first" not in capsys.readouterr().out
    assert main(["ws", kernel, "--signature", f"{OPEN}, K=i32"]) == 2
    assert "EVEN is computed by a heuristic that raised" in capsys.readouterr().err
