"""Train a small Llama on planned kernels, and compare the seconds until its first step with those of tuning.

    python examples/train/train.py --out build/train

runs the same job in five ways, each in a process of its own with cold caches: plain torch; torch.compile with
max-autotune around a kernel under @triton.autotune; planned kernels without a service; planned kernels whose
configurations a warpplan service answers in one batch, and which report what they measured; and the same once more,
after `warpplan calibrate`. It compares their losses with float32 and writes train.json and train.png. Called again
after it was cut off, it goes on behind the jobs that had finished. Without a GPU the model is small, references stand
in for kernels, and nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from cold_start_picture import draw
from comparison import JobFailed, Jobs, compared, judged, table
from job import PLAIN, add_options, checked
from job_shapes import LlamaSizes
from made_up_text import BEST_LOSS

sys.path.insert(0, str(Path(__file__).parents[1] / "common"))

from planning_service import ServiceNotStarted
from run_record import OneLineParser, head


def main(words: Sequence[str] | None = None) -> int:
    arguments, sizes, steps = parse(words)
    print(f"{arguments.device}: {sizes}, {steps} steps", flush=True)
    unfinished = arguments.out / "unfinished"
    try:
        jobs = Jobs(sizes, steps, arguments.device, unfinished)
        runs, calibration = compared(jobs, arguments.url, arguments.repeats)
    except (JobFailed, ServiceNotStarted) as error:
        print(f"{Path(__file__).name}: error: {error}", file=sys.stderr)
        return 1
    rows, good = judged(runs)
    result = {
        **head("train", runs[PLAIN]["device"]), "sizes": asdict(sizes), "steps": steps, "best_loss": BEST_LOSS,
        "rows": rows, "calibration": calibration, "jobs": list(runs.values()),
    }  # fmt: skip
    print(table(rows))
    (arguments.out / "train.json").write_text(json.dumps(result) + "\n")
    draw(result, arguments.out / "train.png")
    shutil.rmtree(unfinished)
    print(f"{arguments.out}/train.json and train.png written")
    if not good:
        print(f"{Path(__file__).name}: error: a loss deviates from float32 more than noise explains", file=sys.stderr)
    return 0 if good else 1


def parse(words: Sequence[str] | None) -> tuple[argparse.Namespace, LlamaSizes, int]:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--repeats", type=int, default=1, help="cold starts of each way (1)")
    parser.add_argument("--url", default=os.environ.get("WARPPLAN_URL"), help="of a running warpplan serve")
    parser.add_argument("--out", type=Path, default=Path("build/train"), help="folder for train.json and train.png")
    arguments = parser.parse_args(words)
    sizes, steps = checked(parser, arguments)
    if arguments.repeats < 1:
        parser.error(f"--repeats {arguments.repeats}: expected 1 or more")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {arguments.out}: {error.strerror}")
    return arguments, sizes, steps


if __name__ == "__main__":
    sys.exit(main())
