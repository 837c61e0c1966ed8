"""Loads and computed operands in partitions of their own: lowered, played, broken, ranked and compiled."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from mutants import mutants
from played import HOPPER, cut, own_source
from played_kernels import compared, finished, product_inputs

from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.costing import assigned_loops
from warpplan.kernels.compiler.costing.free_problem import solved_assignments
from warpplan.kernels.compiler.costing.hopper_ranking import rank
from warpplan.kernels.compiler.costing.loop_graph import Shape
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.inspection.player.played_program import play
from warpplan.kernels.compiler.inspection.player.tiles.faults import KernelFault
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.compiler.strategy.recorded import strategy_from_json
from warpplan.kernels.compiler.strategy.stage_hook import compile_with
from warpplan.kernels.compiler.strategy.written import strategy_from_text
from warpplan.planner.errors import InvalidConfig
from warpplan.planner.values.device import device
from warpplan.service.workflow.profiles import Profiles

H200 = "NVIDIA H200"
TWO_CONSUMERS = HopperStrategy(2, (3,), assignment=(0, 0, 1))
"""Of ``converted``: its loads of B and A by one producer, the conversion of B by a partition of its own."""


@pytest.mark.parametrize(
    ("name", "assignment"),
    [
        ("between", (0, 1)),
        ("between", (1, 2)),
        ("converted", (0, 0, 1)),
        ("converted", (2, 0, 1)),
        ("converted", (2, 3, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize(("consumers", "in_flight"), [(1, 1), (2, 1), (2, 0)])
def test_an_assignment_computes_what_the_kernel_computes(
    name: str, assignment: tuple[int, ...], consumers: int, in_flight: int
) -> None:
    scheme = HopperStrategy(consumers, (2,), in_flight=in_flight, assignment=assignment)
    assert compared(cut(name), finished(name, scheme), product_inputs(0, 6)).equal


def test_every_operation_of_the_converter_that_synchronises_is_needed() -> None:
    inputs, scheme = product_inputs(0, 6), HopperStrategy(2, (3,), assignment=(2, 0, 1))
    text = finished("converted", scheme)
    lines = text.split("\n")
    wanted = play(cut("converted"), inputs, (1,), fences=False).buffers["c"]
    begin = next(i for i, line in enumerate(lines) if re.match(r"\s*partition1\(", line))
    end = next(i for i, line in enumerate(lines) if re.match(r"\s*partition2\(", line))
    noticed, alive = set(), []
    for told, mutant in mutants(text):
        if not begin < int(told.split()[1].rstrip(":")) < end:
            continue
        try:
            same = all((play(mutant, inputs, (1,), seed).buffers["c"] == wanted).all() for seed in range(4))
        except KernelFault:
            same = False
        if same:
            alive.append(told)
        else:
            noticed.add(told.split(": ")[1])
    assert noticed >= {"no wait", "other phase", "no release", "released twice", "no fence", "other slot"}
    # The fence behind a load of registers keeps TMA's next write from overtaking it; the player's loads take no time.
    assert [told.split(": ")[1] for told in alive] == ["no fence"]


def test_an_assignment_that_is_not_the_kernels_is_refused_with_the_reason() -> None:
    with pytest.raises(CannotPlan, match="an assignment of 2 anchors, where the kernel has 3"):
        HopperStrategy(1, (2,), assignment=(0, 1)).lower(cut("converted"))
    with pytest.raises(CannotPlan, match="partition 1 both loads and converts"):
        HopperStrategy(1, (2,), assignment=(1, 0, 1)).lower(cut("converted"))
    with pytest.raises(InvalidConfig, match="assignment"):
        HopperStrategy(1, (2,), assignment=(9,))


def test_an_assignment_is_written_and_read() -> None:
    scheme = HopperStrategy(2, (4,), persistent=1, assignment=(0, 0, 1))
    assert str(scheme).endswith(", assigned 0/0/1")
    assert strategy_from_text(str(scheme)) == scheme == strategy_from_text("2x4:4:persistent:assigned0/0/1")
    assert strategy_from_json(scheme.to_json(), "here") == scheme
    assert "assignment" not in HopperStrategy(2, (4,)).to_json()


def test_the_solvers_partition_is_what_is_ranked() -> None:
    """The free problem converts B once, apart from the consumers; the ranked plan has that operation there."""
    captured = capture(cut("converted"))
    gpu, profile = device(H200), Profiles().of(H200).profile
    found = dict(solved_assignments(captured, [Shape(2, 4)], profile, gpu))
    assert list(found.values()) == [(0, 0, 1)]
    ranked = [r for r in rank(captured, profile, gpu) if getattr(r.scheme, "assignment", ())]
    assert ranked
    (plan,) = ranked[0].plans
    (operand,) = assigned_loops.chains(captured.loops[0])
    placement = next(p for p in plan.schedule.placements if p.op == operand)
    assert plan.partitions[placement.partition].name == "converter1"


@pytest.mark.matrix
@pytest.mark.parametrize("scheme", [HopperStrategy(1, (3,), assignment=(0, 2, 1)), TWO_CONSUMERS], ids=str)
def test_an_assignment_compiles_for_hopper(scheme: HopperStrategy, tmp_path: Path) -> None:
    kernel = compile_with(own_source("converted"), HOPPER, {}, scheme, tmp_path)
    assert kernel.metadata.num_warps == 4 * (scheme.consumers + 2)
    assert len(kernel.asm["cubin"]) > 0
    assert ".local" not in kernel.asm["ptx"]
    stores = re.findall(r"st\.shared\.v\d|stmatrix|fence\.proxy\.async|mbarrier\.arrive\.shared", kernel.asm["ptx"])
    fences = [i for i, found in enumerate(stores) if found == "fence.proxy.async"]
    assert any(stores[fence - 1].startswith("st") for fence in fences)
    assert all(stores[fence + 1] == "mbarrier.arrive.shared" for fence in fences)
