"""Several processes as ranks of one job beside a real service, and ``warpplan agree`` over what they recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warpplan.service.cli.app import main
from warpplan.service.client import Client

JOB = Path(__file__).with_name("rank_job.py")
WORLD = 3


class Ranks:
    """``WORLD`` ranks that go on to their next step when they are told to."""

    def __init__(self, url: str, steps: list[list[int]], **options: Any) -> None:
        self.url, self.running = url, []
        for rank in range(WORLD):
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(WORLD), "PYTHONPATH": _path()}
            command = [sys.executable, str(JOB), url, json.dumps(steps), json.dumps(options)]
            pipe = subprocess.PIPE
            self.running.append(
                subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1)
            )

    def step(self, *ranks: int) -> list[str]:
        """What ``ranks``, or all, answer to their next step."""
        chosen = [self.running[rank] for rank in ranks or range(WORLD)]
        for rank in chosen:
            assert rank.stdin is not None
            rank.stdin.write("\n")
            rank.stdin.flush()
        return [rank.stdout.readline().strip() for rank in chosen if rank.stdout is not None]

    def end(self) -> list[int]:
        for rank in self.running:
            rank.communicate(timeout=60)
        return [rank.returncode for rank in self.running]


def _path() -> str:
    return os.pathsep.join(p for p in sys.path if p)


@pytest.fixture
def started() -> Iterator[list[Ranks]]:
    made: list[Ranks] = []
    yield made
    for ranks in made:
        for rank in ranks.running:
            rank.kill()
            rank.communicate()


def agree(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main(["agree", *map(str, words)])
    said = capsys.readouterr()
    return status, said.out, said.err


def measure_another_to_be_faster(url: str, m: int) -> dict[str, Any]:
    """Make the service answer with another configuration than planned; what it answers from now on."""
    client = Client(url, timeout=60)
    planned = client.config("gemm", M=m, N=1024, K=2048)
    assert planned is not None
    other = client.config("gemm", M=4096, N=4096, K=4096)
    assert other is not None
    assert other["config"] != planned["config"]
    assert client.measured("gemm", other["config"], 2.5, M=m, N=1024, K=2048)
    now = client.config("gemm", M=m, N=1024, K=2048)
    assert now is not None
    assert now["config"] == other["config"]
    return dict(other["config"])


def test_ranks_that_are_told_alike_agree_and_a_later_job_holds_to_it(
    url: str, tmp_path: Path, started: list[Ranks], capsys: pytest.CaptureFixture[str]
) -> None:
    records, agreed = tmp_path / "records", tmp_path / "agreed.json"
    started.append(ranks := Ranks(url, [[256, 512], [512, 256], [128]], record=str(records)))
    for _ in range(3):
        assert len(set(ranks.step())) == 1, "one digest"
    assert ranks.end() == [0] * WORLD
    files = sorted(records.iterdir())
    assert [file.name for file in files] == [f"rank-0000{rank}.jsonl" for rank in range(WORLD)]
    assert all(len(file.read_text().splitlines()) == 5 for file in files), "what is unchanged takes no line"
    status, out, _ = agree(capsys, records, "--out", agreed)
    assert (status, out.splitlines()[0][:43]) == (0, "ranks 0-2 agree on 3 choices up to step 2, ")

    started.append(strict := Ranks(url, [[256, 512], [64, 256], [512]], strict=True, agreed=str(agreed)))
    assert not any("refused" in said for said in strict.step())
    assert not any("refused" in said for said in strict.step()), "what was not agreed on is taken"
    measure_another_to_be_faster(url, 512)
    refused = strict.step()
    assert all(said.startswith("refused: gemm K=2048 M=512 N=1024 bfloat16 on NVIDIA H200") for said in refused)
    assert strict.end() == [0] * WORLD


def test_a_rank_that_asks_after_a_measurement_came_is_named(
    url: str, tmp_path: Path, started: list[Ranks], capsys: pytest.CaptureFixture[str]
) -> None:
    started.append(ranks := Ranks(url, [[512], [256, 512]], record=str(tmp_path)))
    ranks.step()
    before = ranks.step(0, 2)
    now = measure_another_to_be_faster(url, 512)
    assert ranks.step(1)[0] not in before, "another digest"
    ranks.end()
    status, out, _ = agree(capsys, tmp_path)
    assert status == 1
    first, same, other = out.splitlines()
    assert first == "step 1: gemm K=2048 M=512 N=1024 bfloat16 on NVIDIA H200"
    assert same.startswith("  ranks 0, 2, lookup 1: {")
    assert other.startswith("  rank 1, lookup 3: {")
    status, out, _ = agree(capsys, tmp_path, "--json")
    found = json.loads(out)
    assert (status, found["agree"], found["difference"]["step"]) == (1, False, 1)
    assert found["difference"]["groups"][1] == {"ranks": [1], "lookup": 3, "chosen": [now]}
    out_file = tmp_path / "agreed.json"
    assert agree(capsys, tmp_path, "--out", out_file)[0] == 1
    assert not out_file.exists()


def test_a_killed_rank_and_files_that_are_none_are_one_line(
    url: str, tmp_path: Path, started: list[Ranks], capsys: pytest.CaptureFixture[str]
) -> None:
    started.append(ranks := Ranks(url, [[512], [256]], record=str(tmp_path)))
    ranks.step()
    ranks.running[1].kill()
    ranks.running[1].wait()
    ranks.step(0, 2)
    ranks.end()
    status, _, err = agree(capsys, tmp_path)
    assert (status, err.count("\n")) == (2, 1)
    assert "the record of rank 1 has no end" in err
    status, out, _ = agree(capsys, tmp_path, "--partial")
    assert (status, "only ranks 0, 2 asked for gemm K=2048 M=256" in out) == (0, True)
    assert agree(capsys, tmp_path, "--partial", "--same-lookups")[0] == 0, "rank 1 says nothing of step 1"
    whole = (tmp_path / "rank-00001.jsonl").read_text()
    for written in (whole[:-50], whole[:-1], '{"schema": "warp', ""):
        (tmp_path / "rank-00001.jsonl").write_text(written)
        status, _, err = agree(capsys, tmp_path)
        assert (status, "was killed, or the file was cut; --partial compares" in err) == (2, True), err
        assert agree(capsys, tmp_path, "--partial")[0] == 0, "rank 1 was killed in the middle of a line"
    for words, told in (
        ((JOB,), "not JSON"),
        ((tmp_path / "rank-00000.jsonl",), "2 are missing, such as rank 1"),
        ((tmp_path / "none",), "No such file"),
        ((JOB.parent,), "is a folder without records"),
        ((tmp_path, "--out", tmp_path / "no" / "agreed.json"), "does not exist"),
    ):
        status, out, err = agree(capsys, *words)
        assert (status, out, err.count("\n")) == (2, "", 1), words
        assert told in err
