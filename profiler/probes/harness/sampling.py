"""Launch a case on chosen SMs and read its cycle samples back; small statistics over them."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from warpplan.kernels.isolate import Json
from warpplan.planner.values.costs import Quantiles
from warpplan.profiler.probes.harness.cases import Live

Samples = NDArray[np.float64]
Record = dict[str, Json]

REPETITIONS = 48
WARM_REPETITIONS = 8
"""The first repetitions of a launch fetch instructions and descriptors; they are not the steady state."""
FEW_SMS = 4
MOST_BLOCKS = 160
"""Blocks that buffers are allocated for, one an SM: no GPU that runs the probes has more."""
FLUSH_ELEMENTS = 64 * 2**20


@cache
def sm_count() -> int:
    import torch

    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def sample(live: Live, columns: int = 1, /, **numbers: float) -> Samples:
    """Run one block an SM, ``FEW_SMS`` of them working, and return cycles as [repetitions of all working SMs, columns].
    A block of several CTAs has as many SMs.

    The kernel takes ``out``, ``reps`` and ``stride`` and writes row ``block · reps + repetition`` of ``out``.
    """
    import torch

    blocks = sm_count() // dict(live.case.options).get("num_ctas", 1)
    stride = max(1, blocks // FEW_SMS)
    out = live.buffers["out"]
    live.launch(blocks, reps=REPETITIONS, stride=stride, **numbers)
    torch.cuda.synchronize()
    rows: Samples = (
        out[: blocks * REPETITIONS * columns].cpu().numpy().astype(np.float64).reshape(blocks, REPETITIONS, columns)
    )
    worked: Samples = rows[::stride, WARM_REPETITIONS:].reshape(-1, columns)
    return worked


def out_elements(columns: int = 1, reps: int = REPETITIONS, blocks: int = MOST_BLOCKS) -> int:
    """The int32 elements that ``out`` needs for up to ``blocks`` SMs."""
    return blocks * reps * columns


def flush_l2() -> None:
    """Fill L2 with clean lines of something else: dirty ones would make the loads wait for write-backs."""
    import torch

    filler = torch.empty(FLUSH_ELEMENTS, dtype=torch.int32, device="cuda")
    filler.sum()
    torch.cuda.synchronize()


def quantiles(samples: Samples) -> Quantiles:
    """p50 and p90 of a flat array, never below zero: a difference of two measurements may be."""
    p50, p90 = np.percentile(samples, [50, 90])
    return Quantiles(max(0.0, float(p50)), max(0.0, float(p90)), int(samples.size))


def slope(long: Samples, short: Samples, extra: float) -> Samples:
    """Cycles of one of the ``extra`` operations by which the ``long`` runs exceed the median ``short`` one."""
    return (long - np.median(short)) / extra


def cost(kind: str, parameters: tuple[tuple[str, Json], ...], **parts: Quantiles | None) -> Record:
    """A record of one cost entry; ``parts`` are latency, occupancy and issue."""
    return {
        "kind": kind,
        "parameters": dict(parameters),
        "cost": {n: None if q is None else {"p50": q.p50, "p90": q.p90, "count": q.count} for n, q in parts.items()},
    }


def ceiling(name: str, samples: list[float]) -> Record:
    """A record of one whole-device ceiling."""
    p10, p50, p90 = (float(v) for v in np.percentile(samples, [10, 50, 90]))
    return {"ceiling": name, "rate": {"p50": p50, "p10": p10, "p90": p90, "count": len(samples)}}
