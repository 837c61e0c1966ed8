"""Planned kernels all the way to the binary, and the releases that ``make compile-matrix`` goes through."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from kernels_under_test import source  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402

from warpplan.kernels.compiler import pipeline  # noqa: E402
from warpplan.kernels.compiler.exceptions import CannotPlan  # noqa: E402
from warpplan.kernels.compiler.strategy import stage_hook  # noqa: E402
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy  # noqa: E402
from warpplan.kernels.compiler.ttgir import parsing  # noqa: E402

ROOT = Path(__file__).parents[3]
HOPPER = GPUTarget("cuda", 90, 32)
SHARED_LIMIT = 232_448
"""Bytes that a block may have on sm_90 (CUDA C++ Programming Guide, table of technical specifications)."""


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("gemm", HopperStrategy(1, (3,))),
        ("gemm_bias_relu", HopperStrategy(2, (3,))),
        ("attention", HopperStrategy(2, (2,), in_flight=0)),
    ],
    ids=["gemm", "gemm_bias_relu", "attention"],
)
def test_a_planned_kernel_compiles_for_hopper(name: str, scheme: HopperStrategy, tmp_path: Path) -> None:
    compiled = stage_hook.compile_with(source(name), HOPPER, {"num_warps": 4}, scheme, tmp_path)
    (specialized,) = [op for op in parsing.parse(compiled.asm["ttgir"]).walk() if op.name == "ttg.warp_specialize"]
    *consumers, producer = specialized.regions
    assert len(consumers) == scheme.consumers
    for consumer in consumers:
        assert "ttng.warp_group_dot" in {op.name for op in consumer.walk()}
    names = {op.name for op in producer.walk()}
    assert "ttng.async_tma_copy_global_to_local" in names
    assert "ttng.warp_group_dot" not in names
    assert compiled.metadata.num_warps == scheme.consumers * scheme.warps + 4
    assert compiled.metadata.shared <= SHARED_LIMIT
    assert len(compiled.asm["cubin"]) > 0


@pytest.mark.matrix
def test_a_kernel_with_nothing_to_plan_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CannotPlan, match="no TMA load"):
        stage_hook.compile_with(source("softmax"), HOPPER, {"num_warps": 4}, HopperStrategy(1, (2,)), tmp_path)


def test_the_matrix_has_every_release_that_has_passes() -> None:
    (listed,) = re.findall(r"^TRITONS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [version.rpartition(".")[0] for version in listed.split()] == list(pipeline.RELEASES)
