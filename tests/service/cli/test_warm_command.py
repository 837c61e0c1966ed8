"""``warpplan warm`` as a user runs it, on a machine that Triton takes for a Hopper and that launches nothing."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from warpplan.service.cli.app import main

TESTS = Path(__file__).parents[2] / "kernels" / "compiler"
JOB = f"""
import os
import sys

sys.path.insert(0, {str(TESTS)!r})
import kernels_under_test as kernels
from planned_machine import gemm_arguments, running
from pathlib import Path

from warpplan.kernels.compiler.launching import decide

decide.gpu = lambda number: ("NVIDIA H200", 90)
assert __name__ == "__main__"
print("begins with", sys.argv[1:])
with running(Path("cache")) as machine:
    for m in (256, 384):
        kernels.gemm[(m // 128, 2)](*gemm_arguments(m))
        kernels.gemm[(m // 128, 2)](*gemm_arguments(m))
    print("ran on", machine.warps)
os.system("echo from a program of its own")
if "fail" in sys.argv:
    raise ValueError("of its own")
if "end" in sys.argv:
    sys.exit(3)
"""


def ask(folder: Path, command: str) -> tuple[int, str, str]:
    """In a process of its own, as a job is: a kernel is decided on once in a process."""
    run = [sys.executable, "-m", "warpplan.service.cli", "warm", *shlex.split(command)]
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore"}  # Triton's own, of what its next release will change
    done = subprocess.run(run, cwd=folder, env=quiet, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def test_what_is_decided_is_kept_and_told_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    status, out, err = ask(tmp_path, "--no-measure --plans kept job.py --steps 1")
    assert (status, err) == (0, "")
    begin, decision, ran, program, count = out.splitlines()
    assert begin == "begins with ['--steps', '1']"
    assert decision.startswith("kernels_under_test.gemm: ")
    assert " warps, " in decision
    assert ran.startswith("ran on [4, "), "the first launch runs it as it is"
    assert len(set(ran[8:].strip("[]").split(", "))) == 2
    assert (program, count) == ("from a program of its own", "1 decisions on 1 kernels")
    (file,) = (tmp_path / "kept").glob("*.json")
    kept = json.loads(file.read_text())

    # Known from then on; what the script does otherwise is as without the command.
    status, out, err = ask(tmp_path, "--no-measure --plans kept --json job.py end")
    assert status == 3
    (found,) = json.loads(out)["decisions"]
    begin, ran, program = err.splitlines()
    assert (begin, ran[:8], program) == ("begins with ['end']", "ran on [", "from a program of its own")
    assert (found["situation"]["kernel"], found["scheme"]) == ("kernels_under_test.gemm", kept["scheme"])
    status, out, err = ask(tmp_path, "--no-measure --plans kept job.py fail")
    assert status == 1
    assert out.endswith("1 decisions on 1 kernels\n")
    assert "ValueError: of its own" in err


def test_plans_that_are_none_are_told_before_the_script_runs(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("print('ran')")
    status, out, err = ask(tmp_path, "--plans none.json job.py")
    assert (status, out) == (2, "")
    assert err == "warpplan: error: none.json: cannot be read: No such file or directory\n"


def test_no_script_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warm", "none.py"]) == 2
    assert capsys.readouterr().err == "warpplan: error: no file none.py\n"
