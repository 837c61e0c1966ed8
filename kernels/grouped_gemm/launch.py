"""Run the grouped GEMM: check the operands, describe them to TMA, launch one kernel for all groups.

    c = grouped_gemm(a, b, ends, config)      # a [M, K], b [G, N, K] -> c [M, N]
    da = grouped_dgrad(dc, b, ends, config)   # dc [M, N]             -> da [M, K]
    db = grouped_wgrad(dc, a, ends, config)   #                       -> db [G, N, K]
    run = prepare("forward", a, b, ends, config, out); run()   # may be captured in a CUDA graph

Rows are sorted by group; ``ends`` [G], int32 on the same GPU, says where each group ends, and the host never reads it.
Groups may be empty. Rows from ``ends[G-1]`` on belong to nobody: they are not read into any result and those of the
output are left as they are. Ends that are not ascending, or outside of 0 to M, are taken as their running maximum,
held within that range: the result is then that of other groups, and nothing outside the operands is touched.

``config`` is a :class:`GemmConfig` or the :class:`TuningConfig` that training jobs receive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
import triton

from warpplan.kernels.gemm.space import GemmConfig
from warpplan.kernels.grouped_gemm.operands import Problem, require_problem
from warpplan.kernels.grouped_gemm.space import config_of, require_valid
from warpplan.kernels.torch_types import Tensor
from warpplan.kernels.triton_types import TmaDescriptor
from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import DEVICES, H200, Device
from warpplan.planner.values.tuning import TuningConfig


def grouped_gemm(
    a: Tensor, b: Tensor, ends: Tensor, config: GemmConfig | TuningConfig, *, out: Tensor | None = None,
    scale_a: Tensor | None = None, scale_b: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A [M, K] · B [G, N, K]ᵀ of each group with fp32 accumulation, [M, N] in the operands' dtype (of fp8: bfloat16).

    fp8 operands need float32 scales, which multiply: ``scale_a`` [M] and ``scale_b`` [G, N] of rows, or [M, K/128] and
    [G, N/128, K/128] of blocks (sizes rounded up). Raises :class:`InvalidShape` for operands that TMA cannot address
    and :class:`InvalidConfig` for a plan that does not fit. Rows of no group are not written: without ``out`` they hold
    whatever the memory held.
    """
    return _run("forward", a, b, ends, config, out, scale_a, scale_b)


def grouped_dgrad(
    dc: Tensor, b: Tensor, ends: Tensor, config: GemmConfig | TuningConfig, *, out: Tensor | None = None
) -> Tensor:
    """dC [M, N] · B [G, N, K] of each group, [M, K]: the gradient of A. Otherwise as :func:`grouped_gemm`."""
    return _run("dgrad", dc, b, ends, config, out)


def grouped_wgrad(
    dc: Tensor, a: Tensor, ends: Tensor, config: GemmConfig | TuningConfig, *, out: Tensor | None = None
) -> Tensor:
    """dCᵀ · A over each group's rows, [G, N, K]: the gradient of B, zero for an empty group. ``dc`` is [M, N], ``a``
    [M, K]; every element is written. Otherwise as :func:`grouped_gemm`."""
    return _run("wgrad", dc, a, ends, config, out)


def prepare(
    product: str, left: Tensor, right: Tensor, ends: Tensor, config: GemmConfig | TuningConfig, out: Tensor,
    scale_a: Tensor | None = None, scale_b: Tensor | None = None,
) -> Callable[[], None]:  # fmt: skip
    """A call that computes ``out`` from the operands where they lie now, without waiting for the device; the first call
    may compile the kernel. ``product`` is "forward", "dgrad" or "wgrad"."""
    return _prepare(require_problem(product, left, right, ends, scale_a, scale_b), config, out)


def _run(
    product: str, left: Tensor, right: Tensor, ends: Tensor, config: GemmConfig | TuningConfig, out: Tensor | None,
    scale_a: Tensor | None = None, scale_b: Tensor | None = None,
) -> Tensor:  # fmt: skip
    problem = require_problem(product, left, right, ends, scale_a, scale_b)
    if out is None:
        out = torch.empty(problem.out_shape, dtype=problem.out_dtype, device=left.device)
    _prepare(problem, config, out)()
    return out


def grid_size(config: GemmConfig, problem: Problem, sm_count: int) -> int:
    """CTAs of a launch: what is resident at once, or a unit each where there cannot be as many units."""
    return min(sm_count * config.ctas_per_sm, problem.most_tiles(config.block_m, config.block_n))
