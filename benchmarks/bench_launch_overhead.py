"""What a launch costs the host under ``planned``, over Triton's own launch of the same kernel.

    python benchmarks/bench_launch_overhead.py --out benchmarks/results      # on a GPU
    python benchmarks/bench_launch_overhead.py --stub                        # without: Triton's Python alone

Batches of launches with and without ``planned`` alternate; a batch's time is the host's, from the first call to the
last, with the GPU idle before it and the queue never full. Reported are medians of batches, in microseconds a launch,
and the median of the differences between neighbours. On the GPU ``planned`` decides by trials of its own, but for the
matmul with descriptors, which runs a given plan; with ``--stub`` nothing is decided, and launching does nothing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import results_file
import triton
import triton.language as tl
from triton.runtime.driver import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from warpplan.kernels import planned
from warpplan.kernels.compiler.launching import dispatch as launching
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy

BATCH, ROUNDS = 200, 101
GIVEN = HopperStrategy(1, (2,))


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def strided(a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A matmul by pointers with a tutorial's twelve arguments."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * sam + (k + inner)[None, :] * sak)
        y = tl.load(b + (k + inner)[:, None] * sbk + columns[None, :] * sbn)
        acc = tl.dot(x, y, acc)
    tl.store(c + rows[:, None] * scm + columns[None, :] * scn, acc.to(tl.bfloat16))


@triton.jit
def described(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A matmul by TMA descriptors."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([m, k]), b.load([n, k]).T, acc)
    c.store([m, n], acc.to(tl.bfloat16))


class Stub:
    """An active driver whose kernels load and launch at once, doing nothing."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 232448, "multiprocessor_count": 132},
            load_binary=lambda name, binary, shared, device: (1, 1, 32, 0, 1024),
            unload_module=lambda module: None,
        )

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return lambda *arguments: None


def cases(device: str) -> dict[str, Callable[[], Any]]:
    """Launches small enough for the GPU to keep up with the host."""
    import torch

    x = torch.zeros(1024, device=device)
    matrix = torch.zeros(128, 128, device=device, dtype=torch.bfloat16)
    a, b, c = (TensorDescriptor.from_tensor(matrix, block) for block in ([128, 64], [128, 64], [128, 128]))
    sizes = (128, 128, 128)
    strides = (128, 1, 1, 128, 128, 1)
    return {
        "5 arguments": lambda: add[(1,)](x, x, x, 1024, BLOCK=1024),
        "15 arguments": lambda: strided[(1, 1)](matrix, matrix, matrix, *sizes, *strides, BM=128, BN=128, BK=64),
        "3 descriptors": lambda: described[(1, 1)](a, b, c, *sizes, BM=128, BN=128, BK=64, num_warps=4),
        "callable grid": lambda: add[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, x, x, 1000, BLOCK=1024),
    }


def batch_us(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    wait()
    begin = time.perf_counter()
    for _ in range(BATCH):
        call()
    seconds = time.perf_counter() - begin
    wait()
    return seconds / BATCH * 1e6


def measure(call: Callable[[], Any], scope: planned, wait: Callable[[], None]) -> dict[str, Any]:
    as_it_is = call()
    with scope:
        call()
        known = call()
    alone, inside = [], []
    for number in range(ROUNDS):
        for ours in (True, False) if number % 2 else (False, True):
            if ours:
                with scope:
                    inside.append(batch_us(call, wait))
            else:
                alone.append(batch_us(call, wait))
    return {
        "triton_us": statistics.median(alone),
        "planned_us": statistics.median(inside),
        "overhead_us": statistics.median(b - a for a, b in zip(alone, inside, strict=True)),
        "has_plan": known is not as_it_is,
    }


def scope_us() -> float:
    """Entering and leaving ``with planned():``, made anew each time, as it is written in a loop."""

    def once() -> float:
        begin = time.perf_counter()
        for _ in range(BATCH):
            with planned():
                pass
        return (time.perf_counter() - begin) / BATCH * 1e6

    return statistics.median(once() for _ in range(ROUNDS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stub", action="store_true", help="no GPU: Triton's Python around launches that do nothing")
    parser.add_argument("--out", type=Path, help="folder to write launch_overhead_<gpu>.json to")
    options = parser.parse_args()
    wait: Callable[[], None] = lambda: None  # noqa: E731
    if options.stub:
        driver.set_active(Stub())
        device = "stub"
    else:
        import torch

        wait = torch.cuda.synchronize
        device = torch.cuda.get_device_name()
    rows = []
    entering = scope_us()
    print(f"{'enter and leave':16} {entering:.2f} us")
    with tempfile.TemporaryDirectory() as folder:
        for name, call in cases("cpu" if options.stub else "cuda").items():
            # A matmul this small gains nothing from its plan, so the plan is given, not tried.
            scope = (
                planned(GIVEN, measure=False, background=False)
                if "descriptors" in name
                else planned(folder, background=False)
            )
            if options.stub:
                # Decisions are not what is timed: the kernel as it is stands for the planned one.
                scope._found = launching.LaunchTable(lambda call, launch: (ran := launch(), ran))
            row = {"case": name, **measure(call, scope, wait)}
            rows.append(row)
            print(
                "{case:16} triton {triton_us:6.2f} us  planned {planned_us:6.2f} us  {overhead_us:+6.2f} us".format(
                    **row
                )
            )
    if options.out:
        slug = device.lower().replace("nvidia ", "").replace(" ", "_")
        results_file.write(
            options.out / f"launch_overhead_{slug}.json",
            {**results_file.head("launch_overhead", device), "scope_us": entering, "rows": rows},
        )


if __name__ == "__main__":
    main()
