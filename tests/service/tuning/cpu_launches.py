"""What stands in for the GPU in a real child: a time that follows from the job, a refusal, a hang, a death."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

IDENTITY = {"gpu": "NVIDIA H200", "driver": "570.86", "cuda": "12.8", "triton": "3.6.0", "torch": "2.9.0"}
HANGS, DIES, REFUSES = 2, 5, 4
"""``num_stages`` of configurations that do not end, kill their process, and do not fit."""


def identity() -> dict[str, str]:
    return IDENTITY


def other_gpu() -> dict[str, str]:
    return {**IDENTITY, "gpu": "NVIDIA H100 80GB HBM3"}


def times(jobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield {"started": True}
    for job in jobs:
        stages = job["options"]["num_stages"]
        if stages == HANGS:
            time.sleep(600)
        if stages == DIES:
            os._exit(7)
        if stages == REFUSES:
            yield {"status": "refused", "reason": "OutOfResources: shared memory"}
            continue
        programs = job["grid"][0] * job["grid"][1]
        assert job["values"]["K"] == 1024
        assert job["elements"] == {"a_ptr": 2048 * 1024, "b_ptr": 1024 * 2048, "c_ptr": 2048 * 2048}
        yield {"time_us": 1e3 / programs, "samples": 20}
