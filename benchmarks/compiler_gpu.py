"""GPU: every step of the compiler path in one call, in order, each with a time limit: logs and results in one folder.

    python benchmarks/compiler_gpu.py --out FOLDER [--steps tests,sweep,compiler,failures,inductor,launch]

Steps are processes of their own: one that fails, hangs or runs out of time does not keep the next from running. Writes
``log.txt``, ``steps.json`` (what ran, how long, how it ended) and each step's own results; eight files at most.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
GRACE_S = 30.0
"""For a step to write what it has after its own limit."""


@dataclass(frozen=True)
class Step:
    """``command`` takes the folder and the seconds it may use; ``limit_s`` is the most of them."""

    name: str
    limit_s: float
    command: Callable[[Path, float], list[str]]


def _script(name: str, *more: str, limited: bool = True) -> Callable[[Path, float], list[str]]:
    def command(out: Path, seconds: float) -> list[str]:
        limit = ["--limit-s", str(int(seconds))] if limited else []
        return [sys.executable, str(HERE / name), "--out", str(out), *limit, *more]

    return command


def _compiler(out: Path, seconds: float) -> list[str]:
    readings = out / "compiler_schemes_h200.json"
    more = ["--sweep", str(readings)] if readings.exists() else []
    return _script("bench_compiler.py", "--planned", *more)(out, seconds)


def _tests(out: Path, seconds: float) -> list[str]:
    tests = str(HERE.parent / "tests" / "gpu" / "test_planned.py")
    return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", tests]


STEPS = (
    Step("tests", 240, _tests),
    Step("sweep", 240, _script("scheme_sweep.py")),
    Step("compiler", 260, _compiler),
    Step("failures", 90, _script("stock_failures.py")),
    Step("inductor", 150, _script("bench_inductor.py", "--fast")),
    Step("launch", 40, _script("bench_launch_overhead.py", limited=False)),
)


def run(step: Step, out: Path, seconds: float, log: Path) -> dict[str, object]:
    """Run one step, its output to the log and to this process's own."""
    started = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as file:
        file.write(f"\n== {step.name}\n".encode())
        file.flush()
        begin = file.tell()
        child = subprocess.Popen(
            step.command(out, seconds), stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            status: int | str = child.wait(seconds + GRACE_S)
        except subprocess.TimeoutExpired:
            status = "out of time"
        finally:
            # Whatever it started goes with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    with log.open("rb") as file:
        file.seek(begin)
        sys.stdout.write(f"== {step.name}: {status}\n{file.read().decode(errors='replace')[-3000:]}\n")
        sys.stdout.flush()
    return {"step": step.name, "status": status, "seconds": round(time.monotonic() - started, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [step.name for step in STEPS]
    parser.add_argument("--steps", default=",".join(names), help=f"of {', '.join(names)}, comma-separated")
    parser.add_argument("--limit-s", type=float, default=540.0, help="for all of them; later steps get what is left")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    wanted = arguments.steps.split(",")
    if unknown := set(wanted) - set(names):
        parser.error(f"step {min(unknown)!r}: expected some of {', '.join(names)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    until, done = time.monotonic() + arguments.limit_s, []
    for step in STEPS:
        if step.name not in wanted:
            continue
        left = until - time.monotonic() - GRACE_S
        if left < GRACE_S:
            done.append({"step": step.name, "status": "skipped: out of time", "seconds": 0.0})
        else:
            done.append(run(step, arguments.out, min(step.limit_s, left), arguments.out / "log.txt"))
        (arguments.out / "steps.json").write_text(json.dumps(done, indent=1) + "\n")
    print(json.dumps(done))


if __name__ == "__main__":
    main()
