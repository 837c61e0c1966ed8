"""A training job as far as it goes without a GPU: compiles kernels for sm_90 and tunes one for many sizes, through
whatever cache Triton is told to use. Prints what the readers returned as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.driver import driver

from warpplan.service.feeds import triton_remote
from warpplan.service.feeds.machine_here import Machine

TARGET = GPUTarget("cuda", 90, 32)
SIZES = [128 * n for n in range(1, 25)]


@triton.jit
def add_one(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@triton.autotune([triton.Config({"BLOCK": b}) for b in (128, 256, 512)], key=["n"], cache_results=True)
@triton.jit
def tuned(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


class PaperDriver:
    """Knows its target; a benchmark of a configuration takes as many milliseconds as its place in the list."""

    def __init__(self) -> None:
        self.benchmarked = 0

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_benchmarker(self) -> Any:
        def benchmark(*_: object, **__: object) -> list[float]:
            self.benchmarked += 1
            return [1.0 / self.benchmarked] * 3

        return benchmark


def compile_kernels(blocks: list[int]) -> list[bool]:
    """Whether Triton found each kernel compiled."""
    found: list[bool] = []
    knobs.compilation.listener = lambda **told: found.append(told["cache_hit"])
    for block in blocks:
        source = ASTSource(add_one, {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {(3,): block})
        assert triton.compile(source, target=TARGET).asm["cubin"]
    knobs.compilation.listener = None
    return found


def tune(sizes: list[int]) -> tuple[list[bool], list[int], int]:
    """Whether the autotuner found each size tuned, the block that it took, and how much it benchmarked."""
    paper = PaperDriver()
    driver.set_active(paper)
    returned: list[bool] = []
    look_up = tuned.check_disk_cache

    def noted(*arguments: Any) -> bool:
        returned.append(bool(look_up(*arguments)))
        return returned[-1]

    tuned.check_disk_cache = noted
    taken: list[int] = []
    tuned.fn.run = lambda *_, **told: taken.append(told["BLOCK"])
    for size in sizes:
        tuned[(1,)](None, None, size)
    return returned, taken, paper.benchmarked


if __name__ == "__main__":
    # What an unknown machine tunes stays there.
    triton_remote.machine_here = lambda: Machine(("NVIDIA H200",), "570.86")
    blocks = [int(word) for word in sys.argv[1].split(",") if word]
    compiled = compile_kernels(blocks)
    hits, taken, benchmarked = tune(SIZES)
    light = [m for m in ("numpy", "sqlalchemy", "fastapi", "ortools") if m in sys.modules]
    print(
        json.dumps(
            {"compiled": compiled, "hits": hits, "taken": taken, "benchmarked": benchmarked, "heavy_imports": light}
        )
    )
