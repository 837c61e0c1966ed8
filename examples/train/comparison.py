"""The same job in every way, each in a process of its own with cold caches, and what is made of their results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from job import PLAIN, SECOND, SERVED, TUNED, WAYS
from job_shapes import LlamaSizes

sys.path.insert(0, str(Path(__file__).parents[1] / "common"))

from planning_service import PLANNED_FOR, service
from run_record import NOISE_FACTOR, loss_gap, versions

CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
"""Variables that name the folders in which a first step may find what an earlier process compiled or tuned."""
VERSIONS = ("driver", "cuda", "triton", "torch")
JOB_LIMIT_S = 3600.0
"""After which a job is ended. max-autotune of this model is a matter of minutes."""


class JobFailed(Exception):
    """A job ended without a result; its own output says why."""


@dataclass(frozen=True)
class Jobs:
    """How every job of a comparison is started. ``folder`` holds their caches while they run, and their results: a
    comparison that was cut off goes on with those that had finished."""

    sizes: LlamaSizes
    steps: int
    device: str
    folder: Path

    def run(self, way: str, url: str | None, number: int = 0) -> dict[str, Any]:
        """The result of one job in a process of its own, with empty caches, or the one that is kept of it; but for
        ``number`` 0 it ends after the first step. Raises :class:`JobFailed`."""
        place = self._place(way, number)
        if self.finished(way, number):
            return dict(json.loads((place / "job.json").read_text()))
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        command = [sys.executable, str(Path(__file__).with_name("job.py")), "--way", way, "--device", self.device]
        command += ["--out", str(place / "job.json")]
        command += ["--steps", "1", "--only-train"] if number else ["--steps", str(self.steps)]
        for name in ("batch", "length", "layers"):
            command += [f"--{name}", str(getattr(self.sizes, name))]
        if url is not None and WAYS[way].serves:
            command += ["--url", url]
        cold = {variable: str(place / variable.lower()) for variable in CACHES}
        command += ["--started", repr(time.monotonic())]
        try:
            done = subprocess.run(command, env={**os.environ, **cold}, timeout=JOB_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise JobFailed(f"the job {way!r} took more than {JOB_LIMIT_S:.0f} s") from None
        if done.returncode != 0:
            raise JobFailed(f"the job {way!r} ended with status {done.returncode}")
        for cache in cold.values():
            shutil.rmtree(cache, ignore_errors=True)
        (place / "asked.json").write_text(json.dumps(self._asked()))
        return dict(json.loads((place / "job.json").read_text()))

    def finished(self, way: str, number: int = 0) -> bool:
        """Whether that job's result is kept, of the same sizes, steps, device and versions."""
        kept = self._place(way, number) / "asked.json"
        return kept.is_file() and json.loads(kept.read_text()) == self._asked()

    def _place(self, way: str, number: int) -> Path:
        return self.folder / f"{way.replace(' ', '-')}-{number}"

    def _asked(self) -> dict[str, Any]:
        return {"sizes": asdict(self.sizes), "steps": self.steps, "device": self.device, "versions": versions()}

    def compare(self, way: str, url: str | None, repeats: int) -> dict[str, Any]:
        """The result of one job; ``first_step_s`` has the seconds to the first step of ``repeats`` of them."""
        result = self.run(way, url)
        again = [self.run(way, url, number) for number in range(1, repeats)]
        result["first_step_s"] = [run["seconds"][0] for run in (result, *again)]
        seconds, loss = result["first_step_s"][0], result["losses"][-1]
        print(f"{way}: {seconds:.1f} s to the first step, loss {loss:.3f}", flush=True)  # jobs write between these
        return result


def compared(jobs: Jobs, url: str | None, repeats: int) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Every way's result, and what came of the calibration between the last two. The store of a service at ``url`` is
    out of reach, so both of them ask that one."""
    store, profile = jobs.folder / "plans.sqlite", jobs.folder / "calibrated.json"
    jobs.folder.mkdir(parents=True, exist_ok=True)
    profile.unlink(missing_ok=True)
    if not jobs.finished(SERVED):
        store.unlink(missing_ok=True)  # a service that had planned already would answer sooner
    with service(url, store=store) as first:
        runs = {way: jobs.compare(way, first, repeats) for way in WAYS if way != SECOND}
    if url is None:
        found = calibrated(store, runs[SERVED], profile)
    else:
        found = {"profile": None, "reason": f"the store is that of {url}: run warpplan calibrate there"}
    print(f"calibration: {found['reason'] or 'profile ' + found['profile'][:12]}", flush=True)
    with service(url, store=store, profile=profile if found["profile"] else None) as second:
        runs[SECOND] = jobs.compare(SECOND, second, repeats)
    return runs, found


def calibrated(store: Path, job: Mapping[str, Any], profile: Path) -> dict[str, Any]:
    """``warpplan calibrate`` on what ``job`` reported: the new profile's key, or ``None`` and the reason."""
    device = job["device"] if job["device"] != "CPU" else PLANNED_FOR
    command = [sys.executable, "-m", "warpplan.service.cli", "calibrate", "--store", str(store), "--device", device]
    command += ["--out", str(profile), "--json"]
    for name in VERSIONS:
        command += ["--environment", f"{name}={job['environment'][name]}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return {"profile": None, "reason": done.stderr.strip().splitlines()[-1].removeprefix("warpplan: error: ")}
    said = json.loads(done.stdout)
    reasons = "; ".join(f"{c['name']}: {c['reason']}" for c in said["calibrations"] if c["reason"])
    return {"profile": said["profile"], "reason": "" if said["profile"] else reasons, "report": said}


def judged(runs: Mapping[str, Mapping[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    """A row for each way: seconds to its first step, over those of tuning, and how far its losses are from float32;
    and whether no way is further from it than :data:`NOISE_FACTOR` times as far as plain torch in bfloat16."""
    exact = runs[PLAIN]["exact"]
    tuning = least(runs[TUNED])
    rows = [
        {
            "way": way, "first_step_s": least(run), "of_max_autotune": least(run) / tuning, "loss": run["losses"][-1],
            "loss_gap": loss_gap(run["losses"], exact),
            "profiles": sorted({answer["provenance"]["profile"] for answer in run.get("configs", ())}),
        }
        for way, run in runs.items()
    ]  # fmt: skip
    limit = NOISE_FACTOR * next(row["loss_gap"] for row in rows if row["way"] == PLAIN)
    return rows, all(row["loss_gap"] <= limit for row in rows)


def least(run: Mapping[str, Any]) -> float:
    """Seconds to the first step of the fastest repeat: what disturbs a start only makes it longer."""
    return float(min(run["first_step_s"]))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"{'':14} {'first step s':>12} {'of tuning':>9} {'last loss':>9} {'loss gap':>9}  profile"]
    for row in rows:
        lines.append(
            f"{row['way']:14} {row['first_step_s']:12.2f} {row['of_max_autotune']:9.2f} {row['loss']:9.4f} "
            f"{row['loss_gap']:9.1e}  {' '.join(profile[:12] for profile in row['profiles'])}".rstrip()
        )
    return "\n".join(lines)
