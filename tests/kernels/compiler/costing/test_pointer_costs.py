"""What operations of kernels without TMA cost: as a profile measured them, and as others where it has not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs triton (no GPU) to capture kernels")
sys.path.insert(0, str(Path(__file__).parent))

import paper_kernels as pk
from triton.backends.compiler import GPUTarget

from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.analysis.operation_kinds import Part
from warpplan.kernels.compiler.costing.loop_graph import WIDENED, Cost
from warpplan.kernels.compiler.costing.pipelined.block_time import block_price
from warpplan.kernels.compiler.costing.pipelined.kernel_facts import KernelFacts, ProductFacts, WorkFacts, facts_of
from warpplan.kernels.compiler.costing.pipelined.pointer_costs import price
from warpplan.kernels.compiler.inspection.signature import source_of
from warpplan.kernels.compiler.pipeline.cutting import cut
from warpplan.planner.values.costs import CostTable
from warpplan.profiler.embedded import embedded

COSTS = embedded("NVIDIA H200").costs
TARGET = GPUTarget("cuda", 90, 32)
K = 128
STEPS = K * 2 // 32
"""Of a K of 16-bit elements, 32 bytes each."""


def without(*kinds: str) -> CostTable:
    return CostTable(tuple(e for e in COSTS.entries if e.kind not in kinds))


def product(m: int, n: int, warps: int = 4, costs: CostTable = COSTS) -> Cost:
    facts = ProductFacts(m, n, K, "bf16", "shared", "mma")
    return price(WorkFacts("dot", product=facts), costs, warps)


def measured(n: int) -> float:
    found = COSTS.lookup("mma", n, dtype="bfloat16").occupancy
    assert found is not None
    return found.p50


class TestProducts:
    @pytest.mark.parametrize(("m", "n", "columns"), [(64, 64, 64), (16, 256, 64), (32, 64, 32), (16, 64, 16)])
    def test_four_warps_share_the_accumulators_out(self, m: int, n: int, columns: int) -> None:
        found = product(m, n)
        assert found.latency == STEPS * measured(columns)
        assert found.occupancy == found.issue == pytest.approx(STEPS * columns * measured(256) / 256)

    def test_few_accumulators_wait_for_their_own_sums(self) -> None:
        one, two = product(16, 64), product(16, 128)
        assert one.latency > one.occupancy
        assert two.latency < 2 * one.latency
        assert two.occupancy == 2 * one.occupancy

    def test_eight_warps_take_turns_as_four_with_as_many_accumulators(self) -> None:
        assert product(16, 128, warps=8) == product(16, 128)
        assert product(16, 128, warps=2).occupancy == 2 * product(16, 128).occupancy

    def test_fewer_rows_than_an_instruction_has_take_as_long(self) -> None:
        assert product(1, 64) == product(16, 64)

    def test_a_profile_without_them_takes_half_of_wgmmas_rate(self) -> None:
        old = product(64, 128, costs=without("mma"))
        wide = COSTS.lookup("wgmma", 128, dtype="bfloat16", a="shared").occupancy
        assert wide is not None
        assert (old.occupancy, old.estimated) == (2 * STEPS * wide.p50, True)
        assert old.issue == old.occupancy
        assert product(1, 64, costs=without("mma")) == product(16, 64, costs=without("mma"))
        assert not product(64, 128).estimated


@pytest.fixture(scope="module")
def widened() -> dict[tuple[str, str], KernelFacts]:
    found = {}
    for narrow in ("fp8e4nv", "i8"):
        for wide in ("fp16", "bf16"):
            text = (
                f"a_ptr=*{wide}, b_ptr=*{narrow}, c_ptr=*fp32, K=i32, {pk.STRIDES}, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64"
            )
            found[narrow, wide] = facts_of(capture(cut(source_of(pk.widened_product, text), TARGET, {}).text))
    return found


def converted(kind: str, elements: int) -> Cost:
    return price(WorkFacts("elementwise", (Part(kind, elements),)), COSTS, 4)


class TestConversions:
    @pytest.mark.parametrize(
        ("formats", "kind"),
        [(("fp8e4nv", "fp16"), "widen_fp8_float16"), (("fp8e4nv", "bf16"), "widen_fp8_bfloat16"),
         (("i8", "fp16"), "widen_int8_float16"), (("i8", "bf16"), "widen_int8_bfloat16")],
    )  # fmt: skip
    def test_they_are_told_apart_by_their_formats(
        self, widened: dict[tuple[str, str], KernelFacts], formats: tuple[str, str], kind: str
    ) -> None:
        parts = [part for work in widened[formats].loops[0].work for part in work.parts]
        assert [(p.size, p.estimated) for p in parts if p.kind == kind] == [(64 * 64, False)]
        assert not [p for p in parts if p.kind == "convert"]

    @pytest.mark.parametrize("kind", WIDENED)
    def test_each_costs_what_it_was_measured_at(self, kind: str) -> None:
        found = COSTS.lookup(kind, 4096).occupancy
        assert found is not None
        whole = converted(kind, 4096)
        assert (whole.occupancy, whole.estimated) == (found.p50, False)
        assert converted(kind, 1024).occupancy == pytest.approx(converted(kind, 2048).occupancy / 2)

    def test_an_older_profile_says_what_it_lacks(self, widened: dict[tuple[str, str], KernelFacts]) -> None:
        old = replace(embedded("NVIDIA H200"), costs=without(*WIDENED))
        missing = {block_price(facts, old).missing for facts in widened.values()}
        assert missing == {(kind,) for kind in WIDENED}

    def test_the_slower_ones_make_a_loop_slower(self, widened: dict[tuple[str, str], KernelFacts]) -> None:
        profile = embedded("NVIDIA H200")
        serial = {formats: block_price(facts, profile).loops[0].serial_cycles for formats, facts in widened.items()}
        assert serial["fp8e4nv", "bf16"] > 1.2 * serial["fp8e4nv", "fp16"]
        assert serial["i8", "fp16"] > 1.1 * serial["i8", "bf16"]

    def test_an_older_profile_takes_the_conversion_that_it_has(
        self, widened: dict[tuple[str, str], KernelFacts]
    ) -> None:
        old = replace(embedded("NVIDIA H200"), costs=without(*WIDENED))
        assert len({round(block_price(facts, old).loops[0].serial_cycles, 6) for facts in widened.values()}) == 1
