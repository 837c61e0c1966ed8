"""The checker sees what is broken, and names it; and it accepts what is just within each limit."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.planner.check import memory_rules, schedule_rules
from warpplan.planner.check import plan_check as entry_module
from warpplan.planner.check.plan_check import check
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import ExtraBuffer, SolveOptions, Spill
from warpplan.planner.values.plan import Buffer, Channel, Partition, Placement, Plan, Reuse, Schedule

from .. import strategies as given_
from ..brute import smallest_plan
from .mutations import WAYS, entry, limits, operation, place


def made(
    graph: DependenceGraph,
    ii: int,
    at: dict[str, tuple[int, int]],
    *sizes: tuple[int, int],
    channels: Sequence[Channel] = (),
    buffers: Sequence[Buffer] = (),
    reuses: Sequence[Reuse] = (),
) -> Plan:
    """A plan by hand: (cycle, partition) of each operation, (warps, registers) of each partition."""
    placed = tuple(Placement(op.id, c := at[op.id][0], c // ii, c % ii, at[op.id][1]) for op in graph.ops)
    partitions = tuple(
        Partition(f"p{g}", *size, tuple(p.op for p in placed if p.partition == g)) for g, size in enumerate(sizes)
    )
    end = max((b.offset + b.size for b in buffers if b.memory == "smem"), default=0)
    return Plan(graph.name, Schedule(ii, placed), partitions, tuple(channels), tuple(buffers), end, tuple(reuses))


def loop(*ops: Operation, edges: Sequence[Dependence] = (), **changes: object) -> DependenceGraph:
    return DependenceGraph("loop", ops, tuple(edges), replace(Limits(4), **changes))


# Every way of breaking a plan, on plans that have something to break

SOLVED = DependenceGraph(
    "loop",
    (
        Operation("a", "TMA", 100, 20, 5, buffer_bytes=1024, alignment=1024),
        Operation("b", "TMA", 100, 20, 5, buffer_bytes=2048, alignment=1024),
        Operation("mma", "TENSOR", 80, 60, 10, min_warps=4, registers=64),
        Operation("scale", "ALU", 10, 20, 8, registers=32),
    ),
    (
        Dependence("a", "mma"),
        Dependence("b", "mma"),
        Dependence("mma", "mma", 1, latency=60),
        Dependence("mma", "scale"),
    ),
    Limits(3, 65_536, 65_536, 10),
)
OPTIONS = SolveOptions(
    pinned={"a": 1, "b": 1, "mma": 0},
    extra_buffers=(ExtraBuffer("barriers", 64), ExtraBuffer("spare", 512, 512, shares_with="a")),
)
IN_TURNS = loop(
    Operation("a", "TMA", 2, 1, 1, buffer_bytes=96),
    Operation("b", "TMA", 2, 1, 1, buffer_bytes=128, alignment=64),
    Operation("use", "ALU", 1, 1, 1),
    edges=(Dependence("a", "use"),),
    max_partitions=1, smem_bytes=128,
)  # fmt: skip
IN_TURNS_APART = replace(
    IN_TURNS,
    ops=(*IN_TURNS.ops, Operation("use_b", "SFU", 1, 1, 12)),
    edges=(*IN_TURNS.edges, Dependence("b", "use_b", handoff=1)),
    limits=replace(IN_TURNS.limits, max_partitions=2, handoff_cycles=2, barrier_cycles=1),
)
THROUGH_REGISTERS = loop(
    Operation("load", "TMA", 3, 1, 1, buffer_bytes=128),
    Operation("scale", "ALU", 2, 2, 8, registers=9),
    Operation("add", "SFU", 1, 1, 8),
    edges=(Dependence("load", "scale"), Dependence("scale", "add"), Dependence("load", "add", 1, "token")),
    max_partitions=3, handoff_cycles=1, handoff_cycles_per_kb=2, barrier_cycles=1, smem_bytes=4096,
)  # fmt: skip
TENSOR_MEMORY = loop(
    Operation("load", "TMA", 4, 2, 1, buffer_bytes=128),
    Operation("mma", "TENSOR", 3, 2, 1, buffer_bytes=512, memory="tmem", lanes=64),
    Operation("other", "TENSOR", 2, 2, 1, buffer_bytes=512, memory="tmem"),
    Operation("drain", "ALU", 1, 1, 1),
    edges=(Dependence("load", "mma"), Dependence("mma", "drain"), Dependence("other", "drain")),
    architecture="blackwell", max_partitions=2, tmem_columns=8,
)  # fmt: skip
ATTENTION = loop(
    Operation("s", "TENSOR", 6, 3, 1, min_warps=4, registers=8),
    Operation("p", "ALU", 4, 3, 2, registers=4),
    Operation("o", "TENSOR", 5, 3, 1, min_warps=4, registers=16),
    edges=(Dependence("s", "p"), Dependence("p", "o"), Dependence("o", "o", 1, latency=3)),
    architecture="hopper", base_registers=100,
)  # fmt: skip


def _plans() -> dict[str, tuple[Plan, DependenceGraph]]:
    plans = {"solved": (solve(SOLVED, OPTIONS).plan, SOLVED), "solved attention": (solve(ATTENTION).plan, ATTENTION)}
    for name in ("IN_TURNS", "IN_TURNS_APART", "THROUGH_REGISTERS", "TENSOR_MEMORY"):
        plans[name.lower()] = (smallest_plan(globals()[name], 20), globals()[name])
    return {name: (plan, graph) for name, (plan, graph) in plans.items() if plan is not None}


@pytest.fixture(scope="module")
def plans() -> dict[str, tuple[Plan, DependenceGraph]]:
    found = _plans()
    assert len(found) == 6
    for name, (plan, graph) in found.items():
        assert check(plan, graph) == (), name
    return found


def breaks(way: str, plan: Plan, graph: DependenceGraph) -> int:
    """Assert that the checker names what ``way`` breaks, and only that; how many times it applied."""
    count = 0
    for odd, changed, said, broken in WAYS[way](plan, graph):
        found = check(odd, changed)
        assert any(fnmatchcase(message, said + "*") for message in found) == broken, (said, broken, found)
        assert all("\n" not in message for message in found)
        count += broken
    return count


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_breaking_a_plan_is_named(plans, way):
    assert sum(breaks(way, plan, graph) for plan, graph in plans.values()) > 0


@given(given_.tiny_graphs(), st.data())
@settings(max_examples=60, deadline=None)
def test_plans_found_by_trying_everything_pass_until_they_are_broken(graph, data):
    plan = smallest_plan(graph, 6)
    if plan is not None:
        assert check(plan, graph, most_registers=240) == ()
        breaks(data.draw(st.sampled_from(sorted(WAYS))), plan, graph)


def test_of_parallel_edges_the_loop_carried_one_keeps_a_value_in_its_partition():
    """Found by hypothesis: the words expected of the edge of distance 0 are those of the other one."""
    graph = loop(
        *(Operation(name, "TMA", 0, 0, 0) for name in ("op0", "op1")),
        edges=(Dependence("op0", "op1", 1), Dependence("op0", "op1")),
        max_partitions=1, smem_bytes=128, registers=3072,
    )  # fmt: skip
    plan = smallest_plan(graph, 6)
    assert plan is not None
    assert breaks("a_value_that_leaves_its_partition", plan, graph) == 2
    assert breaks("a_value_that_leaves_its_partition", plan, replace(graph, edges=graph.edges[1:])) == 0


@given(given_.graphs(), st.data())
@settings(max_examples=60, deadline=None)
def test_solved_plans_pass_until_they_are_broken(graph, data):
    plan = solve(graph).plan
    if plan is not None:
        assert check(plan, graph, most_registers=240) == ()
        breaks(data.draw(st.sampled_from(sorted(WAYS))), plan, graph)


def test_the_checker_shares_no_code_with_the_solver():
    own = {module.__name__ for module in (entry_module, schedule_rules, memory_rules)}
    data = {
        f"warpplan.planner.{name}"
        for name in ("errors", "values.device", "values.dependence_graph", "values.plan", "check")
    }
    for module in own:
        tree = ast.parse(inspect.getsource(__import__(module, fromlist=["_"])))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
        imported |= {
            f"warpplan.planner.{a.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "warpplan.planner"
            for a in node.names
        } - {"warpplan.planner"}
        assert {m for m in imported | names if m and m.startswith("warpplan")} - {"warpplan.planner"} <= own | data


# Rule 0: few warps


@pytest.mark.parametrize(("warps", "slow"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_few_warps_reach_few_sub_partitions(warps, slow):
    """Occupancy 6, issue 2, latency 10, and an edge of its own latency 5: longer by 6 for each further turn."""
    graph = loop(
        Operation("x", "ALU", 10, 6, 2), Operation("y", None, 0, 0, 0), Operation("z", None, 0, 0, 0),
        Operation("w", "TMA", 1, 6, 2),
        edges=(Dependence("x", "y"), Dependence("x", "z", latency=5)),
    )  # fmt: skip
    late = 6 * (slow - 1)
    at = {"x": (0, 0), "y": (10 + late, 0), "z": (5 + late, 0), "w": (2 * slow, 0)}
    plan = made(graph, 6 * slow, at, (warps, 24))
    assert check(plan, graph) == ()
    assert check(place(plan, "y", cycle=9 + late), graph) == (
        f"edge x -> y: starts at cycle {9 + late}, before {10 + late}",
    )
    assert check(place(plan, "z", cycle=4 + late), graph) == (
        f"edge x -> z: starts at cycle {4 + late}, before {5 + late}",
    )
    (issue,) = check(place(plan, "w", cycle=2 * slow - 1), graph)
    assert issue.startswith("issue of partition p0: x, w hold 2 of 1")
    assert "unit ALU: x hold 2 of 1 at phase 0" in check(made(graph, 6 * slow - 1, at, (warps, 24)), graph)


def test_a_ring_is_held_longer_by_few_warps():
    graph = loop(
        Operation("load", "TMA", 4, 1, 1, buffer_bytes=64), Operation("use", "SFU", 3, 2, 1),
        edges=(Dependence("load", "use"),),
    )  # fmt: skip
    for warps, live in ((4, 7), (2, 9), (1, 13)):
        rings = {"channels": [Channel("load", 0, (0,), 64, 2, live)], "buffers": [Buffer("load", 0, 128, 8)]}
        plan = made(graph, 8, {"load": (0, 0), "use": (4, 0)}, (warps, 24), **rings)
        assert check(plan, graph) == ()
        assert check(entry(plan, "channels", 0, live_cycles=live - 1), graph)


# Rule 1


@pytest.mark.parametrize(("registers", "warps", "kilobytes"), [(0, 1, 0), (8, 1, 1), (9, 1, 2), (9, 4, 5)])
def test_registers_that_cross_cost_by_the_kilobyte_begun(registers, warps, kilobytes):
    graph = loop(
        Operation("x", "ALU", 10, 1, 0, warps, registers=registers), Operation("y", None, 0, 0, 0),
        edges=(Dependence("x", "y", handoff=3), Dependence("x", "y", kind="token")),
        handoff_cycles=5, handoff_cycles_per_kb=100,
    )  # fmt: skip
    cycle = max(10 + 3 + 100 * kilobytes, 10 + 5)
    plan = made(graph, 1000, {"x": (0, 0), "y": (cycle, 1)}, (4, 48), (4, 24))
    early = place(plan, "y", cycle=cycle - 1)
    edges = [m for m in check(plan, graph) if m.startswith("edge")]
    assert (edges, check(early, graph)[0]) == ([], f"edge x -> y: starts at cycle {cycle - 1}, before {cycle}")
    free = replace(graph, ops=(replace(graph.ops[0], buffer_bytes=2048), graph.ops[1]))
    assert not any(m.startswith("edge") for m in check(place(plan, "y", cycle=15), free))


# Rule 2


@pytest.mark.parametrize(("capacity", "occupancies"), [(1, (5, 3)), (2, (8, 8)), (2, (9, 7)), (3, (17, 7))])
def test_intervals_longer_than_a_turn_overlap_themselves(capacity, occupancies):
    """On a circle of 8 cycles they fill what they must; one cycle more is too much."""
    ops = [Operation(f"o{i}", "ALU", 0, o, 0) for i, o in enumerate(occupancies)]
    graph = replace(loop(*ops), units=(("ALU", capacity),))
    plan = made(graph, 8, {"o0": (16, 0), "o1": (16 + occupancies[0], 0)}, (4, 24))
    assert check(plan, graph) == ()
    for name, occupancy in zip(("o0", "o1"), occupancies, strict=True):
        if capacity == 1 or sum(occupancies) == 8 * capacity:
            found = check(plan, operation(graph, name, occupancy=occupancy + 1))
            assert found
            assert all(m.startswith("unit ALU: ") and f"of {capacity}" in m for m in found)


def test_the_whole_turns_do_not_change_a_phase(plans):
    plan, graph = plans["solved"]
    later = place(plan, "scale", cycle=plan.schedule.placements[-1].cycle + 5 * plan.schedule.ii_cycles)
    assert not any(v.startswith(("unit", "issue")) for v in check(later, graph))


# Rule 3


def test_barriers_are_issue_slots():
    """What ``use`` waits for: load, hint (once, for two edges), and its own free slot; it arrives for its reader and
    frees the slot of load, not of hint (a token). Its interval is [20 − 3·2, 20 + 1 + 2·2)."""
    graph = loop(
        Operation("load", "TMA", 4, 1, 1, buffer_bytes=64), Operation("hint", None, 0, 0, 1),
        Operation("use", "ALU", 1, 1, 1, buffer_bytes=64), Operation("own", "ALU", 0, 1, 1),
        Operation("last", "ALU", 1, 1, 1),
        edges=(
            Dependence("load", "use"), Dependence("hint", "use", 0, "token"), Dependence("hint", "use", 1, "anti"),
            Dependence("use", "last"),
        ),
        barrier_cycles=2,
    )  # fmt: skip
    at = {"load": (0, 1), "hint": (10, 1), "use": (20, 0), "own": (25, 0), "last": (50, 2)}
    rings = [Channel("load", 1, (0,), 64, 1, 21), Channel("use", 0, (2,), 64, 1, 31)]
    buffers = [Buffer("load", 0, 64, 8), Buffer("use", 64, 64, 8)]
    plan = made(graph, 100, at, (4, 24), (4, 24), (4, 24), channels=rings, buffers=buffers)
    assert check(plan, graph) == ()
    assert check(place(plan, "own", cycle=13), graph) == ()
    together = "issue of partition p0: use, own hold 2 of 1 at phase "
    assert check(place(plan, "own", cycle=14), graph) == (together + "14",)
    assert check(place(plan, "own", cycle=24), graph) == (together + "24",)
    # Registers that cross have a slot too, unless there are none.
    crossing = operation(operation(graph, "load", buffer_bytes=0, registers=1), "use", buffer_bytes=0, registers=2)
    rings = [replace(rings[0], slot_bytes=128), replace(rings[1], slot_bytes=256)]
    buffers = [Buffer("load", 0, 128, 8), Buffer("use", 128, 256, 8)]
    plan = made(crossing, 100, at, (4, 32), (4, 32), (4, 24), channels=rings, buffers=buffers)
    assert check(plan, crossing) == ()
    assert check(place(plan, "own", cycle=24), crossing) == (together + "24",)
    bare = operation(operation(crossing, "load", registers=0), "use", registers=0)
    plan = made(bare, 100, at | {"own": (23, 0)}, (4, 24), (4, 24), (4, 24))
    assert check(plan, bare) == ()
    assert check(place(plan, "own", cycle=15), bare) == ()
    assert check(place(plan, "own", cycle=22), bare) == (together + "22",)
    assert check(place(plan, "own", cycle=16), bare) == (together + "16",)


@pytest.mark.parametrize("turns", [-2, 0, 3])
def test_wgmma_groups_retire_in_order(turns):
    """``long`` starts 4 cycles before ``short`` and takes 30: whoever waits for ``short`` waits until 30 with it."""
    graph = loop(
        Operation("long", "TENSOR", 30, 4, 1), Operation("short", "TENSOR", 5, 4, 1),
        Operation("reader", "ALU", 1, 1, 1), Operation("token", "ALU", 1, 1, 1),
        Operation("issued", "ALU", 1, 1, 1), Operation("anti", "ALU", 1, 1, 1),
        edges=(
            Dependence("short", "reader"), Dependence("short", "token", 1, "token", handoff=2),
            Dependence("short", "issued", latency=5), Dependence("short", "anti", kind="anti"),
        ),
        architecture="hopper", handoff_cycles=7,
    )  # fmt: skip
    first = 100 + 20 * turns
    at = {"long": (first, 0), "short": (104, 0), "reader": (130, 0), "token": (113, 1), "issued": (112, 0),
          "anti": (119, 1)}  # fmt: skip
    plan = made(graph, 20, at, (4, 24), (4, 24))
    assert check(plan, graph) == ()
    assert check(place(plan, "reader", cycle=129), graph) == (
        "edge short -> reader: starts at cycle 129, before long retires at 130",
    )
    assert check(place(plan, "token", cycle=111), graph) == (
        "edge short -> token: starts at cycle 131, before long retires at 132",
    )
    assert check(place(plan, "reader", cycle=129), limits(graph, architecture="blackwell")) == ()


# Rule 5


def test_live_registers_by_hand():
    """On a circle of 10: x (10 a copy) for 25 cycles, three copies at once in its first 5; y, unread, for 4; z goes to
    a buffer, for its latency of 6; w is read elsewhere, until it is there."""
    graph = loop(
        Operation("x", "ALU", 3, 1, 0, registers=10), Operation("y", None, 4, 0, 0, registers=1),
        Operation("z", None, 6, 0, 0, registers=5, buffer_bytes=8), Operation("w", None, 2, 0, 0, registers=7),
        Operation("end", None, 0, 0, 0), Operation("away", None, 0, 0, 0),
        edges=(Dependence("x", "end", 2), Dependence("z", "end"), Dependence("w", "away", handoff=3)),
        base_registers=20, handoff_cycles_per_kb=4,
    )  # fmt: skip
    at = {"x": (0, 0), "y": (3, 0), "z": (8, 0), "w": (95, 0), "end": (5, 0), "away": (104, 1)}
    channels = [Channel("z", 0, (0,), 8, 1, -3), Channel("w", 0, (1,), 896, 1, 12)]
    plan = made(graph, 10, at, (4, 64), (4, 24), channels=channels)
    registers = [m for m in check(plan, graph) if "registers" in m]
    # Phases 3 and 4: three copies of x, y, z (8 to 14); w from phase 5 to 14 (2 + 3 + 4 cycles): 30 + 1 + 5 + 7.
    assert registers == []
    assert "partition p0: 43 registers live at phase 3 and 22 for the rest, 64 given" in check(
        plan, limits(graph, base_registers=22)
    )
    assert not any("registers" in m for m in check(plan, limits(graph, base_registers=21)))
    # One cycle less on the way, and w is gone when y comes: 42 in phases 0 to 2.
    edges = (*graph.edges[:2], replace(graph.edges[2], handoff=2))
    shorter = limits(replace(graph, edges=edges), base_registers=22)
    assert not any("registers" in m for m in check(plan, shorter))
    assert any("42 registers live at phase" in m for m in check(plan, limits(shorter, base_registers=23)))


def test_spills_and_the_most_registers_a_thread(plans):
    plan, graph = plans["solved"]
    (ops, registers) = plan.partitions[0].ops, plan.partitions[0].registers
    assert check(plan, graph, spills=[Spill(ops, registers - 1), Spill((*ops, "a"), 250)]) == ()
    (found,) = check(plan, graph, spills=[Spill(ops[:1], registers)])
    assert found == f"partition {plan.partitions[0].name}: {registers} registers, {ops[0]} spilled {registers}"
    wide = entry(plan, "partitions", 0, registers=248)
    assert check(wide, graph) == ()
    (found,) = check(wide, graph, most_registers=240)
    assert found.endswith("248 registers, expected a multiple of 8 from 24 on and at most 240")


# Rule 6


def test_spread_counts_once_where_an_operation_reads_itself():
    graph = loop(Operation("x", "TMA", 4, 1, 1, buffer_bytes=64, spread=3), edges=(Dependence("x", "x", 1),))
    ring = {"channels": [Channel("x", 0, (0,), 64, 2, 14)], "buffers": [Buffer("x", 0, 128, 8)]}
    plan = made(graph, 10, {"x": (0, 0)}, (4, 24), **ring)
    assert check(plan, graph, slack_cycles=3) == ()
    assert check(plan, graph, slack_cycles=4) == ("channel x: depth 2 x 10 cycles, 21 are needed",)


def test_a_reader_that_takes_no_time_holds_its_slot_for_a_cycle():
    """And what nobody reads is held for as long as its producer takes, which may be none."""
    graph = loop(
        Operation("x", "TMA", 4, 1, 1, buffer_bytes=64), Operation("y", None, 0, 0, 1),
        Operation("z", None, 0, 0, 1, buffer_bytes=64),
        edges=(Dependence("x", "y"),),
    )  # fmt: skip
    channels = [Channel("x", 0, (0,), 64, 1, 5), Channel("z", 0, (0,), 64, 1, 0)]
    buffers = [Buffer("x", 0, 64, 8), Buffer("z", 64, 64, 8)]
    at = {"x": (0, 0), "y": (4, 0), "z": (2, 0)}
    plan = made(graph, 5, at, (4, 24), channels=channels, buffers=buffers)
    assert check(plan, graph) == ()
    assert check(plan, graph, slack_cycles=1) == ("channel x: depth 1 x 5 cycles, 6 are needed",)
    assert check(entry(plan, "channels", 0, live_cycles=4), graph) == ("channel x: live for 5 cycles, the plan says 4",)
    assert check(plan, operation(graph, "y", latency=1)) == ()


def test_a_ring_of_registers_has_only_the_readers_elsewhere():
    """Slots of 128 bytes a register and warp; the reader at home, however late, does not hold one; nothing per KB."""
    graph = loop(
        Operation("x", "ALU", 4, 1, 1, 2, registers=3, spread=1), Operation("away", "ALU", 2, 1, 1, spread=2),
        Operation("home", "ALU", 2, 1, 1),
        edges=(Dependence("x", "away"), Dependence("x", "home")),
        handoff_cycles=5, handoff_cycles_per_kb=7,
    )  # fmt: skip
    ring = {"channels": [Channel("x", 0, (1,), 768, 3, 23)], "buffers": [Buffer("x", 0, 2304, 8)]}
    plan = made(graph, 10, {"x": (0, 0), "away": (16, 1), "home": (98, 0)}, (4, 56), (4, 24), **ring)
    assert check(plan, graph, slack_cycles=4) == ()
    assert check(plan, graph, slack_cycles=5) == ("channel x: depth 3 x 10 cycles, 31 are needed",)
    assert check(replace(plan, channels=(), buffers=(), smem_bytes=0), graph) == (
        "operation x: its value has no channel",
    )


@pytest.mark.parametrize("name", ["solved", "in_turns", "through_registers", "tensor_memory"])
def test_slack_is_part_of_the_rule(plans, name):
    plan, graph = plans[name]
    margin = min(c.depth * plan.schedule.ii_cycles - c.live_cycles for c in plan.channels)
    said = [m for m in check(plan, graph, slack_cycles=margin) if m.startswith("channel")]
    assert said == []
    assert any("cycles, " in m for m in check(plan, graph, slack_cycles=margin + 1) if m.startswith("channel"))


# Rule 7


def turns(distance: int, a_at: int, b_at: int) -> tuple[Plan, DependenceGraph]:
    """a in partition 0 lives [0, 6) and is read in partition 1; b, filled in partition 1, is read in 0.

    b's producer hears of a's release at once (it is in the reader's partition), a's of b's likewise: 12 cycles.
    """
    graph = loop(
        Operation("a", "TMA", 3, 1, 1, buffer_bytes=64), Operation("b", "TMA", 3, 1, 1, buffer_bytes=32),
        Operation("read_a", "ALU", 2, 1, 1), Operation("read_b", "SFU", 2, 1, 1),
        edges=(Dependence("a", "read_a"), Dependence("b", "read_b")),
        handoff_cycles=1,
    )  # fmt: skip
    at = {"a": (a_at, 0), "b": (b_at, 1), "read_a": (a_at + 4, 1), "read_b": (b_at + 4, 0)}
    channels = [Channel("a", 0, (1,), 64, 1, 7), Channel("b", 1, (0,), 32, 1, 7)]
    buffers = [Buffer("a", 0, 64, 8), Buffer("b", 32, 32, 8)]
    reuses = [Reuse("a", "b", distance), Reuse("b", "a", 1 - distance)]
    return made(graph, 12, at, (4, 24), (4, 24), channels=channels, buffers=buffers, reuses=reuses), graph


@pytest.mark.parametrize(("distance", "a_at", "b_at"), [(0, 0, 6), (-1, 0, 18), (-3, 0, 42), (1, 12, 6), (3, 36, 6)])
def test_rings_alternate_to_the_cycle(distance, a_at, b_at):
    plan, graph = turns(distance, a_at, b_at)
    assert check(plan, graph) == ()
    for late in (-1, 1):
        moved = place(place(plan, "b", cycle=b_at + late), "read_b", cycle=b_at + 4 + late)
        assert check(moved, graph) == (
            f"buffers a and b: overlap at 32 while both live: a for 6 cycles, b {6 + late} cycles later for 6, of 12",
        )
    for r in range(2):
        other = entry(plan, "reuses", r, distance=plan.reuses[r].distance + 1)
        assert any(m.startswith("reuse ") and f"expected {plan.reuses[r].distance}" in m for m in check(other, graph))
    assert check(plan, graph, slack_cycles=1)[0].startswith("buffers a and b: overlap at 32")
    apart = entry(replace(plan, reuses=(), smem_bytes=96), "buffers", 1, offset=64)
    assert check(apart, graph) == ()


def test_the_release_is_heard_later_elsewhere():
    """b's producer in a partition of neither reader: both releases are handed over, and 12 cycles are too few."""
    plan, graph = turns(0, 0, 6)
    assert check(plan, graph) == ()
    other = made(
        graph, 12, {"a": (0, 0), "b": (6, 2), "read_a": (4, 1), "read_b": (10, 0)}, (4, 24), (4, 24), (4, 24),
        channels=[plan.channels[0], replace(plan.channels[1], producer=2)], buffers=plan.buffers, reuses=plan.reuses,
    )  # fmt: skip
    assert [m for m in check(other, graph) if "both live: a for 7 cycles, b 6 cycles later for 6, of 12" in m]


def test_rings_that_nobody_reads_tell_each_other():
    graph = loop(
        Operation("a", "TMA", 4, 1, 1, buffer_bytes=64), Operation("b", "TMA", 4, 1, 1, buffer_bytes=64),
        handoff_cycles=2,
    )  # fmt: skip
    channels = [Channel("a", 0, (0,), 64, 1, 4), Channel("b", 1, (1,), 64, 1, 4)]
    ring = {
        "channels": channels, "buffers": [Buffer("a", 0, 64, 8), Buffer("b", 0, 64, 8)],
        "reuses": [Reuse("a", "b", 0), Reuse("b", "a", 1)],
    }  # fmt: skip
    assert check(made(graph, 12, {"a": (0, 0), "b": (6, 1)}, (4, 24), (4, 24), **ring), graph) == ()
    assert check(made(graph, 11, {"a": (0, 0), "b": (6, 1)}, (4, 24), (4, 24), **ring), graph)
    ring["channels"] = [channels[0], Channel("b", 0, (0,), 64, 1, 4)]
    assert check(made(graph, 8, {"a": (0, 0), "b": (4, 0)}, (4, 24), **ring), graph) == ()
    assert check(made(graph, 7, {"a": (0, 0), "b": (4, 0)}, (4, 24), **ring), graph)


def test_halves_of_tensor_memory_are_apart():
    graph = loop(
        *(Operation(name, "TENSOR", 4, 2, 1, buffer_bytes=1000, memory="tmem", lanes=64) for name in "ab"),
        tmem_columns=8,
    )  # fmt: skip
    channels = [Channel(name, 0, (0,), 1000, 2, 4) for name in "ab"]
    buffers = [Buffer("a", 0, 8, 8, None, "tmem", 0, 64), Buffer("b", 0, 8, 8, None, "tmem", 64, 64)]
    plan = made(graph, 4, {"a": (0, 0), "b": (2, 0)}, (4, 24), channels=channels, buffers=buffers)
    assert check(plan, graph) == ()
    assert check(entry(plan, "buffers", 1, lane=0), graph) == ("buffers a and b: overlap at 0 with 2 and 2 slots",)
    assert check(plan, operation(graph, "a", buffer_bytes=1025))[-1].startswith("buffer a: 8 columns for a ring of 10")
    assert "buffer b: 64 lanes from lane 65, expected 64 from 0 or 64, or 128" in check(
        entry(plan, "buffers", 1, lane=65), graph
    )


def test_extra_buffers_do_not_lie_in_tensor_memory_nor_without_their_ring(plans):
    plan, graph = plans["tensor_memory"]
    ring = next(b for b in plan.buffers if b.memory == "tmem")
    guest = Buffer("guest", ring.offset, 1, 1, ring.name)
    said = f"buffer guest: lies outside the ring of {ring.name} that it shares"
    assert said in check(replace(plan, buffers=(*plan.buffers, guest)), graph)
    solved, solved_graph = plans["solved"]
    rest = tuple(b for b in solved.buffers if b.name != "a")
    found = check(replace(solved, buffers=rest), solved_graph, extras=OPTIONS.extra_buffers)
    assert found[:2] == ("channel a: has no buffer", "buffer spare: lies outside the ring of a that it shares")


def test_extra_buffers_are_those_asked_for(plans):
    plan, graph = plans["solved"]
    barriers, spare = OPTIONS.extra_buffers
    assert check(plan, graph, extras=OPTIONS.extra_buffers) == ()
    assert check(plan, graph, extras=[spare]) == ("buffer barriers: neither a ring nor asked for",)
    assert check(plan, graph, extras=[barriers, spare, ExtraBuffer("x", 8)]) == (
        "buffer x: asked for, but not in the plan",
    )
    for odd in (replace(spare, size=256), replace(spare, alignment=1024), replace(spare, shares_with="b")):
        (found,) = check(plan, graph, extras=[barriers, odd])
        assert found.startswith("buffer spare: 512 bytes at 512 in a, asked for")
    (found,) = check(plan, graph, extras=[barriers, replace(spare, slot=1)])
    assert found.startswith("buffer spare: at byte ")
