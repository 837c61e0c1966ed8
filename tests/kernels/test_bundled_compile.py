"""What is planned for the bundled shapes compiles for sm_90, without a GPU: no spills, no serialised multiplies, in
the shared memory that the plan promised."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="compiling needs triton")

from warpplan.kernels.gemm.compile_gemm import compile_gemm
from warpplan.kernels.gemm.space import ELEMENT_BYTES, ROW_ALIGNMENT_BYTES, GemmConfig, config_of
from warpplan.kernels.gemm.work import structure
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded
from warpplan.service.workflow.bundled_shapes import bundled
from warpplan.service.workflow.request import check

pytestmark = pytest.mark.slow

Compiled = tuple[GemmConfig, str, bool]


def binaries() -> dict[Compiled, list[tuple[int, ...]]]:
    """What has to be compiled for the best plan of every bundled shape, with the shapes it serves.

    The tile order and the number of splits are arguments of a launch, and so is which tiles are split.
    """
    found: dict[Compiled, list[tuple[int, ...]]] = {}
    for _, item in bundled():
        problem, kernel, device = check(item)
        ranked = kernel.rank(problem.canonical, problem.dtype, device, embedded(device.name), limit=1)
        best = config_of(ranked[0].config)
        aligned = int(problem.shape["N"]) * ELEMENT_BYTES[problem.dtype] % ROW_ALIGNMENT_BYTES == 0
        config = replace(best, group_m=1, split_k=min(best.split_k, 2), split_tail=False)
        found.setdefault((config, problem.dtype, aligned), []).append(problem.canonical)
    return found


def name(compiled: Compiled) -> str:
    config, dtype, tma_store = compiled
    return f"{structure(config)}{'-split' * (config.split_k > 1)}-{dtype}{'' if tma_store else '-pointer'}"


BINARIES = binaries()


def test_every_bundled_shape_is_served():
    assert sum(map(len, BINARIES.values())) == len(list(bundled()))


@pytest.mark.usefixtures("known_compiles")
@pytest.mark.parametrize("compiled", sorted(BINARIES), ids=name)
def test_the_best_plan_compiles_clean(compiled):
    config, dtype, tma_store = compiled
    report = compile_gemm(config, dtype, tma_store=tma_store)
    assert report.spill_bytes == 0, BINARIES[compiled]
    assert not report.wgmma_serialized, BINARIES[compiled]
    assert report.shared_bytes <= config.smem_bytes(ELEMENT_BYTES[dtype]) <= H200.smem_bytes_per_block
    assert report.warps == config.total_warps
