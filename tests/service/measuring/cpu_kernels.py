"""What stands in for the GPU in a real child: each configuration's time is drawn from its digest."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

BASE_US = {512: 8.0, 1024: 20.0}
"""By M, within what the device allows."""
PAUSE_S = float(os.environ.get("CPU_KERNELS_PAUSE_S", "0"))


def time_us(job: dict[str, Any]) -> float:
    text = json.dumps(job["config"], sort_keys=True)
    return BASE_US.get(job["shape"][0], 12.0) * (1 + int(hashlib.sha256(text.encode()).hexdigest()[:4], 16) / 65536)


def times(jobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield {"started": True}
    for job in jobs:
        time.sleep(PAUSE_S)
        yield {"time_us": time_us(job), "samples": 20}


def impossible(jobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for _ in jobs:
        yield {"time_us": 1e-3, "samples": 20}


def dying(jobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield {"started": True}
    yield {"time_us": time_us(jobs[0]), "samples": 20}
    os._exit(3)
