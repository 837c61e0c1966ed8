"""A kernel for Triton's own autotuner; in a file, because Triton reads its source."""

from __future__ import annotations

import triton
import triton.language as tl

CONFIGS = (triton.Config({"BLOCK": 64}, num_warps=4), triton.Config({"BLOCK": 128}, num_warps=8))


@triton.jit
def scaled(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2.0 * tl.load(x + at, mask=at < n), mask=at < n)
