from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from warpplan.planner.bounds.min_ii import min_ii
from warpplan.planner.check.plan_check import check
from warpplan.planner.errors import Infeasible, InvalidGraph, InvalidInput
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.least_needs import least_memory, least_registers, sure_home
from warpplan.planner.solve import effective_ii, fewest_slots, solve
from warpplan.planner.values.codec import canonical
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import ExtraBuffer, PartitionSpec, SolveOptions, Spill

from . import strategies as given_
from .brute import smallest_ii


@given(given_.graphs(), st.sampled_from([None, None, 1, 2, 3]), st.sampled_from([0, 0, 5]))
@settings(max_examples=150, deadline=None)
def test_whatever_leaves_the_solver_passes_the_checker(graph, depth, slack):
    outcome = solve(graph, SolveOptions(depth=depth, slack_cycles=slack))
    if outcome.plan is None:
        assert outcome.status == "infeasible"
        assert outcome.reason
        return
    assert outcome.status == "optimal"
    assert check(outcome.plan, graph, slack_cycles=slack) == ()
    assert outcome.bound == outcome.plan.schedule.ii_cycles
    assert outcome.bound >= min_ii(Problem(graph, SolveOptions(depth=depth, slack_cycles=slack))).ii_cycles
    assert effective_ii(outcome.plan) == outcome.bound
    assert effective_ii(outcome.plan, 1) >= outcome.bound


@given(given_.graphs())
@settings(max_examples=40, deadline=None)
def test_the_fewest_slots_keep_the_interval_and_one_less_does_not(graph):
    outcome = solve(graph)
    if outcome.plan is None:
        with pytest.raises(Infeasible):
            fewest_slots(graph, SolveOptions())
        return
    depth = fewest_slots(graph, SolveOptions())
    assert depth <= max((channel.depth for channel in outcome.plan.channels), default=0)

    def interval(slots: int) -> float:
        plan = solve(graph, SolveOptions(depth=slots)).plan
        return plan.schedule.ii_cycles if plan is not None else float("inf")

    if depth:
        assert interval(depth) == outcome.plan.schedule.ii_cycles
    if depth > 1:
        assert interval(depth - 1) > outcome.plan.schedule.ii_cycles


@given(given_.graphs(most_ops=3, most_partitions=2), st.sampled_from([256, 384, 512]))
@settings(max_examples=40, deadline=None)
def test_brute_force_finds_the_same_interval(graph, smem_bytes):
    small = replace(
        graph,
        ops=tuple(
            replace(
                op,
                latency=op.latency % 5,
                occupancy=op.occupancy % 4,
                issue=op.issue % 3,
                registers=0,
                memory="smem",
                lanes=128,
            )
            for op in graph.ops
        ),
        limits=replace(graph.limits, smem_bytes=smem_bytes),
    )
    outcome = solve(small)
    most = 40 if outcome.plan is None else outcome.plan.schedule.ii_cycles
    # Slots are at least 96 bytes apart, so no more than 512 // 96 of them fit.
    assert smallest_ii(small, min(most, 10), 5) == (most if outcome.plan is not None and most <= 10 else None)


@given(given_.graphs(most_ops=8))
@settings(max_examples=30, deadline=None)
def test_the_same_input_gives_the_same_bytes(graph):
    first, second = solve(graph), solve(graph)
    assert (first.status, first.bound, first.reason) == (second.status, second.bound, second.reason)
    if first.plan is not None and second.plan is not None:
        assert canonical(first.plan) == canonical(second.plan)


@given(given_.graphs(most_ops=5))
@settings(max_examples=50, deadline=None)
def test_more_memory_never_hurts(graph):
    outcome = solve(graph)
    assume(outcome.plan is not None)
    roomier = solve(replace(graph, limits=replace(graph.limits, smem_bytes=10**6, registers=10**6)))
    assert roomier.bound <= outcome.bound


# Worked examples


def load(name: str, **changes: object) -> Operation:
    return replace(Operation(name, "TMA", 100, 20, 5, buffer_bytes=1024, alignment=1024), **changes)


def loop(**limits: int) -> DependenceGraph:
    """A load, the multiply that reads it, and its accumulator: TENSOR for 60 cycles, TMA for 20."""
    ops = (load("load"), Operation("mma", "TENSOR", 80, 60, 10, min_warps=4))
    edges = (Dependence("load", "mma"), Dependence("mma", "mma", 1, latency=60))
    return DependenceGraph("loop", ops, edges, Limits(**({"max_partitions": 2, "handoff_cycles": 10} | limits)))


def test_the_unit_binds_and_the_ring_is_as_deep_as_the_live_range_needs():
    outcome = solve(loop())
    assert outcome.plan is not None
    assert (outcome.status, outcome.bound, outcome.plan.schedule.ii_cycles) == ("optimal", 60, 60)
    assert outcome.reason == "unit TENSOR: busy 60 cycles per iteration, capacity 1"
    (channel,) = outcome.plan.channels
    # One partition is enough, so nothing is handed off: the load's 100 cycles and the multiply's 80.
    assert (channel.live_cycles, channel.depth, channel.consumers) == (180, 3, (0,))
    assert outcome.plan.partitions[0].warps == 4


def test_pinned_partitions_pay_the_hand_off():
    outcome = solve(loop(), SolveOptions(pinned={"load": 1, "mma": 0}))
    assert outcome.plan is not None
    assert [p.ops for p in outcome.plan.partitions] == [("mma",), ("load",)]
    (channel,) = outcome.plan.channels
    assert (channel.producer, channel.consumers, channel.live_cycles, channel.depth) == (1, (0,), 200, 4)


def test_a_short_ring_makes_the_interval_longer():
    outcome = solve(loop(), SolveOptions(depth=2, pinned={"load": 1, "mma": 0}))
    assert outcome.plan is not None
    assert outcome.plan.schedule.ii_cycles == 100
    assert outcome.reason == "recurrence load -> mma -> load"
    assert effective_ii(outcome.plan, 2) == 100
    assert effective_ii(outcome.plan, 1) == 200


def test_one_partition_interleaves_what_two_would_overlap():
    busy = DependenceGraph(
        "busy", (Operation("a", "ALU", 1, 0, 30), Operation("b", "SFU", 1, 0, 30)), (), Limits(max_partitions=1)
    )
    assert solve(busy).bound == 60
    assert solve(replace(busy, limits=Limits(max_partitions=2))).bound == 30


def test_slack_deepens_the_ring():
    plain, wary = solve(loop()), solve(loop(), SolveOptions(slack_cycles=1))
    assert plain.plan is not None
    assert wary.plan is not None
    assert (plain.plan.channels[0].depth, wary.plan.channels[0].depth) == (3, 4)


def test_little_memory_makes_the_interval_longer_and_too_little_is_infeasible():
    assert solve(loop(smem_bytes=2 * 1024)).bound == 90
    assert solve(loop(smem_bytes=1024)).bound == 180
    none = solve(loop(smem_bytes=1023))
    assert (none.status, none.plan) == ("infeasible", None)
    assert none.reason == "operation 'load' writes 1024 bytes, more than the 1023 bytes of shared memory"
    deep = solve(loop(smem_bytes=3 * 1024), SolveOptions(depth=4))
    assert deep.reason == "4 slots of each ring and the extra buffers take 4096 of 3072 bytes of shared memory"


def test_memory_that_only_the_search_finds_short_is_named():
    """Two iterations must be held at once, whatever the interval."""
    graph = loop(smem_bytes=1024)
    outcome = solve(replace(graph, edges=(*graph.edges, Dependence("load", "mma", 1))))
    assert outcome.status == "infeasible"
    assert outcome.reason == (
        "shared memory binds: load (2 slots of 1024 bytes) is held at once and takes at least 2048 of 1024 bytes: make "
        "it smaller, or raise limits.smem_bytes to 2048"
    )


def test_an_infeasible_loops_reason_names_the_buffers_the_limit_and_how_much_is_enough():
    loads = tuple(Operation(name, "TMA", 700, 288, 30, buffer_bytes=120_000) for name in ("a", "b"))
    graph = DependenceGraph(
        "too large",
        (*loads, Operation("mma", "TENSOR", 560, 512, 120, 4)),
        (Dependence("a", "mma"), Dependence("b", "mma")),
    )
    outcome = solve(graph)
    assert outcome.reason == (
        "shared memory binds: a (120000 bytes) and b (120000 bytes) are held at once and take at least 240000 of "
        "232448 bytes: make them smaller, or raise limits.smem_bytes to 240000"
    )
    assert solve(replace(graph, limits=Limits(smem_bytes=240_000))).plan is not None
    assert solve(replace(graph, limits=Limits(smem_bytes=239_999))).plan is None
    # In tensor memory, columns of 128 lanes.
    tall = tuple(replace(op, buffer_bytes=512 * 300, memory="tmem") if op.buffer_bytes else op for op in graph.ops)
    assert solve(replace(graph, ops=tall)).reason == (
        "tensor memory binds: a (300 columns) and b (300 columns) are held at once and take at least 600 of 512 "
        "columns: make them smaller, or raise limits.tmem_columns to 600"
    )


def test_of_many_values_the_largest_are_named():
    values = tuple(Operation(f"v{i}", "ALU", 10, 2, 2, registers=30 + i) for i in range(8))
    edges = tuple(Dependence(op.id, "sum") for op in values)
    graph = DependenceGraph("wide", (*values, Operation("sum", "ALU", 10, 2, 2)), edges, Limits(max_partitions=1))
    assert solve(graph).reason == (
        "any one of these limits, relaxed, is enough: registers bind: v7 (37), v6 (36), v5 (35), 5 more and "
        "limits.base_registers (24) are live at once and take at least 292 registers a thread, a thread has 240: make "
        "the values smaller or put one into a buffer; limits.max_partitions 1 binds: raise it to 3"
    )


@given(given_.graphs(most_ops=4))
@settings(max_examples=60, deadline=None)
def test_no_plan_takes_less_than_the_least_that_is_stated(graph):
    """Reasons are proofs: the least memory and registers are those that every plan takes."""
    outcome = solve(graph)
    assume(outcome.plan is not None)
    problem = Problem(graph, SolveOptions())
    smem = [b.offset + b.size for b in outcome.plan.buffers if b.memory == "smem"]
    assert least_memory(problem, "smem").amount <= max(smem, default=0)
    home = {p.op: p.partition for p in outcome.plan.schedule.placements}
    needs = least_registers(problem)
    for i, op in enumerate(graph.ops):
        assert needs[sure_home(problem, i)].amount <= outcome.plan.partitions[home[op.id]].registers


def test_registers_bind():
    graph = loop()
    wide = replace(graph, ops=(graph.ops[0], replace(graph.ops[1], registers=128)))
    outcome = solve(wide)
    assert outcome.plan is not None
    assert outcome.plan.partitions[0].registers == 152
    assert solve(replace(wide, limits=replace(wide.limits, registers=32 * 4 * 152))).status == "optimal"
    tight = solve(replace(wide, limits=replace(wide.limits, registers=32 * 4 * 152 - 1)))
    assert tight.status == "infeasible"
    assert tight.reason == (
        "registers bind: mma (128) and limits.base_registers (24) are live at once and take at least 19456 of the "
        "block's 19455 registers: make the values smaller, or raise limits.registers to 19456 or more"
    )
    too_wide = solve(replace(graph, ops=(graph.ops[0], replace(graph.ops[1], registers=240))))
    assert too_wide.status == "infeasible"
    assert "'mma' takes 240 registers a thread beside limits.base_registers 24: a thread has 240" in too_wide.reason


def test_a_slot_that_its_alignment_makes_too_large_is_named():
    outcome = solve(replace(loop(), ops=(load("load", alignment=2**18), loop().ops[1])))
    assert outcome.status == "infeasible"
    assert "the slot of the largest ring, 'load', and the extra buffers take 262144 of" in outcome.reason


def test_extra_buffers_without_a_ring_may_be_too_large():
    graph = DependenceGraph("no ring", (Operation("a", "ALU", 1, 1, 1),), ())
    outcome = solve(graph, SolveOptions(extra_buffers=(ExtraBuffer("own", 10**6),)))
    assert outcome.reason == "the extra buffers take 1000000 of 232448 bytes of shared memory"


def test_a_ring_that_never_turns_is_infeasible_and_named():
    """The next multiply still reads what the load wrote, so one slot would have to be refilled before it is read."""
    edges = (Dependence("load", "mma"), Dependence("load", "mma", 1))
    graph = replace(loop(), edges=edges)
    assert solve(graph, SolveOptions(depth=2)).status == "optimal"
    outcome = solve(graph, SolveOptions(depth=1))
    assert outcome.status == "infeasible"
    assert outcome.reason.startswith("the ring of depth 1 is too short for the cycle load -> mma -> load")


def test_a_register_value_that_is_carried_keeps_its_operations_together():
    graph = loop()
    ops = (replace(graph.ops[0], buffer_bytes=0, registers=8), graph.ops[1])
    carried = replace(graph, ops=ops, edges=(Dependence("load", "mma", 1), graph.edges[1]))
    outcome = solve(carried)
    assert outcome.plan is not None
    assert [p.ops for p in outcome.plan.partitions] == [("load", "mma")]
    assert solve(carried, SolveOptions(pinned={"load": 0, "mma": 1})).status == "infeasible"


def test_a_register_value_crosses_through_a_ring_in_shared_memory():
    graph = loop()
    crossing = replace(graph, ops=(replace(graph.ops[0], buffer_bytes=0, registers=8), graph.ops[1]))
    outcome = solve(crossing, SolveOptions(pinned={"load": 0, "mma": 1}))
    assert outcome.plan is not None
    (channel,) = outcome.plan.channels
    assert (channel.name, channel.producer, channel.consumers, channel.slot_bytes) == ("load", 0, (1,), 128 * 8)


def test_given_partitions_and_extra_buffers_enter_the_plan():
    options = SolveOptions(
        depth=4,
        pinned={"load": 1, "mma": 0},
        partitions=(PartitionSpec("consumer", 4, 240), PartitionSpec("producer", 1, 24)),
        extra_buffers=(
            ExtraBuffer("barriers", 64),
            ExtraBuffer("staging", 2048, 1024),
            ExtraBuffer("spare", 1024, 1024, shares_with="load", slot=3),
        ),
    )
    outcome = solve(loop(), options)
    assert outcome.plan is not None
    assert [(p.name, p.warps, p.registers) for p in outcome.plan.partitions] == [
        ("consumer", 4, 240), ("producer", 1, 24),
    ]  # fmt: skip
    assert [(b.name, b.offset, b.size, b.shares_with) for b in outcome.plan.buffers] == [
        ("load", 0, 4096, None), ("barriers", 6144, 64, None), ("staging", 4096, 2048, None),
        ("spare", 3072, 1024, "load"),
    ]  # fmt: skip
    assert outcome.plan.smem_bytes == 6208
    assert check(outcome.plan, loop()) == ()


def test_an_extra_buffer_takes_its_bytes_and_not_its_alignment():
    """Eight bytes, aligned to 1,024, right behind the ring's one slot: the memory ends there."""
    outcome = solve(loop(smem_bytes=1024 + 8), SolveOptions(extra_buffers=(ExtraBuffer("flag", 8, 1024),)))
    assert outcome.plan is not None
    assert sorted((b.name, b.offset, b.size) for b in outcome.plan.buffers) == [("flag", 1024, 8), ("load", 0, 1024)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SolveOptions(depth=0), "depth is 0"),
        (SolveOptions(work_limit_s=0), "work limit is 0"),
        (SolveOptions(work_limit_s=float("nan")), "work limit is nan"),
        (SolveOptions(depth=1.5), "depth is 1.5: expected a whole number"),
        (SolveOptions(slack_cycles=1.5), "slack is 1.5 cycles: expected 0 to"),
        (SolveOptions(slack_cycles=10**12), "slack is 1000000000000 cycles: expected 0 to 1000000000"),
        (SolveOptions(pinned={"load": "0"}), "pinned to partition '0': expected 0 to 1"),
        (SolveOptions(spills=(Spill(("load",), 10**30),)), "expected at least one operation and 0 to"),
        (SolveOptions(extra_buffers=(ExtraBuffer("x", -1),)), "'x' has size -1: expected a whole number of 0 or more"),
        (SolveOptions(extra_buffers=(ExtraBuffer("x", 8, 0),)), "'x' has alignment 0"),
        (SolveOptions(extra_buffers=(ExtraBuffer("x", 8, 8, "load", -1),)), "'x' has slot -1"),
        (SolveOptions(extra_buffers=(ExtraBuffer("x", 8), ExtraBuffer("x", 8))), "'x' has the name of"),
        (SolveOptions(extra_buffers=(ExtraBuffer("load", 8),)), "'load' has the name of"),
        (SolveOptions(pinned={"store": 0}), "pinned operation 'store' is not in the graph"),
        (SolveOptions(pinned={"mma": 2}), "pinned to partition 2: expected 0 to 1"),
        (SolveOptions(extra_buffers=(ExtraBuffer("x", 8, shares_with="mma"),)), "'mma', which has no ring"),
        (SolveOptions(partitions=(PartitionSpec("all", 4, 240),)), "operation 'load' is in none"),
        (
            SolveOptions(partitions=(PartitionSpec("all", 5, 240),), pinned={"load": 0, "mma": 0}),
            "partition 'all' has 5 warps: expected one of 1, 2, 4, 8",
        ),
        (
            SolveOptions(partitions=(PartitionSpec("all", 4, 64.5),), pinned={"load": 0, "mma": 0}),
            "partition 'all' has 64.5 registers a thread: expected 24 to 255",
        ),
        (
            SolveOptions(partitions=(PartitionSpec("all", 4, 64),) * 2, pinned={"load": 0, "mma": 1}),
            "2 partitions have the name 'all'",
        ),
    ],
)
def test_options_that_contradict_the_graph_are_named(options, message):
    with pytest.raises(InvalidInput) as caught:
        solve(loop(), options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (DependenceGraph("none", (), ()), "has no operations"),
        (DependenceGraph("many", tuple(Operation(f"o{i}", None, 1, 0, 1) for i in range(10_001)), ()), "at most 10000"),
        (loop(max_partitions=0), "limits.max_partitions is 0"),
        (loop(handoff_cycles=-1), "limits.handoff_cycles is -1"),
        (loop(smem_bytes=1e5), "limits.smem_bytes is 100000.0: expected a whole number of 0 or more"),
        (replace(loop(), ops=(load("load", alignment=8.0), loop().ops[1])), "alignment 8.0: expected a power of two"),
        (replace(loop(), edges=(Dependence("load", "mma", latency=1.5),)), "latency 1.5: expected 0 to"),
        (replace(loop(), ops=(load("load", alignment=96), loop().ops[1])), "alignment 96: expected a power of two"),
        (replace(loop(), ops=(load("load", min_warps=9), loop().ops[1])), "min_warps 9: expected 1 to 8"),
        (DependenceGraph("g", (load(""),), ()), "operation '': expected an id of 1 to 1000 printable characters"),
        (DependenceGraph("g", (load("a\nb"),), ()), "expected an id of 1 to 1000 printable characters"),
        (DependenceGraph("g", (load(3),), ()), "operation 3: expected an id of 1 to 1000 printable characters"),
        (replace(loop(), units=(*loop().units, ("", 1))), "unit '': expected a name of 1 to 1000 printable characters"),
        (loop(capacities=(("a\nb", 1),)), r"resource 'a\nb': expected a name of 1 to 1000 printable characters"),
        (replace(loop(), edges=(Dependence("load", "mma", latency=-1),)), "latency -1"),
        (replace(loop(), edges=(Dependence("load", "mma", 10**7),)), "distance 10000000: expected at most 10000"),
        (replace(loop(), ops=(load("load", latency=10**12), loop().ops[1])), "expected at most 1000000000 cycles"),
    ],
)
def test_graphs_that_cannot_be_planned_are_named(graph, message):
    with pytest.raises(InvalidGraph) as caught:
        solve(graph)
    assert message in str(caught.value)


def test_a_depth_whose_sums_leave_64_bits_is_named():
    with pytest.raises(InvalidGraph, match="with a depth of 1000000000000000000 slots the solver's sums"):
        solve(loop(), SolveOptions(depth=10**18))


def test_partitions_that_are_too_narrow_or_too_many_registers_are_infeasible():
    pinned = {"load": 1, "mma": 0}
    narrow = SolveOptions(pinned=pinned, partitions=(PartitionSpec("c", 2, 240), PartitionSpec("p", 1, 24)))
    assert solve(loop(), narrow).reason == "operation 'mma' needs 4 warps, partition 'c' has 2"
    wide = SolveOptions(pinned=pinned, partitions=(PartitionSpec("c", 8, 240), PartitionSpec("p", 4, 240)))
    assert solve(loop(), wide).reason == "the partitions take 92160 of 65536 registers"


@pytest.mark.parametrize("cycles", [5 * 10**8, 10**9])
def test_latencies_of_half_a_second_are_planned(cycles):
    """Without a buffer the interval stays 1 cycle, and the schedule has as many stages as the latency has cycles."""
    for size in (0, 1024):
        graph = DependenceGraph(
            "long",
            (Operation("a", "TMA", cycles, 1, 1, buffer_bytes=size), Operation("b", "ALU", 5, 1, 1)),
            (Dependence("a", "b"),),
            Limits(max_partitions=2),
        )
        outcome = solve(graph)
        assert outcome.status == "optimal"
        assert outcome.plan is not None
        assert outcome.plan.schedule.ii_cycles == (1 if not size else -(-(cycles + 5) // (232_448 // size)))


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(smem_bytes=2**40), "with 137438953472 slots of one ring in memory"),
        (Limits(base_registers=2**36), "with 68719476736 registers"),
    ],
)
def test_costs_whose_sums_leave_64_bits_are_refused_with_the_way_out(limits, said):
    graph = DependenceGraph(
        "long",
        (Operation("a", "TMA", 5 * 10**8, 1, 1, buffer_bytes=8), Operation("b", "ALU", 5, 1, 1)),
        (Dependence("a", "b"), Dependence("b", "a", 1, "token")),
        limits,
    )
    with pytest.raises(InvalidGraph, match="scale all cycles down") as caught:
        solve(graph)
    assert "latency of operation 'a' is 500000000 cycles" in str(caught.value)
    assert said in str(caught.value)
    assert caught.value.field == "ops.latency"
    assert isinstance(caught.value.limit, int)
    scaled = replace(graph, ops=(replace(graph.ops[0], latency=caught.value.limit), graph.ops[1]))
    assert solve(scaled, SolveOptions(work_limit_s=1.0)).status in ("optimal", "infeasible")


def test_the_largest_costs_still_solve():
    ops = tuple(Operation(f"o{i}", "ALU", 10**9, 10**9, 10**9) for i in range(5))
    graph = DependenceGraph("slow", ops, (Dependence("o0", "o4"), Dependence("o4", "o0", 1)), Limits(3))
    outcome = solve(graph)
    assert (outcome.status, outcome.bound) == ("optimal", 5 * 10**9)


def test_importing_the_planner_does_not_load_the_solver():
    code = "import sys, warpplan.planner.solve; print('ortools' in sys.modules, 'networkx' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["False", "False"]
