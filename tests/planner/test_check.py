"""Each rule broken on purpose: the checker must see it and name the element."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from warpplan.planner.check import check
from warpplan.planner.graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.plan import Plan
from warpplan.planner.problem import ExtraBuffer, SolveOptions
from warpplan.planner.solve import solve

GRAPH = DependenceGraph(
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


@pytest.fixture(scope="module")
def plan() -> Plan:
    found = solve(GRAPH, OPTIONS).plan
    assert found is not None
    assert check(found, GRAPH) == ()
    return found


def place(plan: Plan, op: str, **changes: int) -> Plan:
    """Move one operation, keeping cycle, stage and phase consistent."""
    ii = plan.schedule.ii_cycles
    placements = []
    for p in plan.schedule.placements:
        if p.op == op:
            p = replace(p, **changes)
            p = replace(p, stage=p.cycle // ii, phase=p.cycle % ii)
        placements.append(p)
    return replace(plan, schedule=replace(plan.schedule, placements=tuple(placements)))


def cycle(plan: Plan, op: str) -> int:
    return next(p.cycle for p in plan.schedule.placements if p.op == op)


def move(plan: Plan, op: str, partition: int) -> Plan:
    """Put an operation into another partition, in the placement and in both lists."""
    partitions = [replace(p, ops=tuple(o for o in p.ops if o != op)) for p in plan.partitions]
    partitions[partition] = replace(partitions[partition], ops=(*partitions[partition].ops, op))
    return replace(place(plan, op, partition=partition), partitions=tuple(partitions))


def entry(field: str, index: int, **changes: object) -> Callable[[Plan], Plan]:
    """Change one partition, channel or buffer."""

    def change(plan: Plan) -> Plan:
        items = list(getattr(plan, field))
        items[index] = replace(items[index], **changes)
        return replace(plan, **{field: tuple(items)})

    return change


MUTATIONS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "another graph": (lambda p: replace(p, graph="other"), "plan of graph 'other'"),
    "no interval": (lambda p: replace(p, schedule=replace(p.schedule, ii_cycles=0)), "initiation interval 0"),
    "a missing operation": (
        lambda p: replace(p, schedule=replace(p.schedule, placements=p.schedule.placements[1:])),
        "operation a: placed 0 times",
    ),
    "an operation twice": (
        lambda p: replace(
            p, schedule=replace(p.schedule, placements=p.schedule.placements[:1] + p.schedule.placements)
        ),
        "operation a: placed 2 times",
    ),
    "phase and stage that disagree": (
        lambda p: replace(
            p,
            schedule=replace(
                p.schedule,
                placements=(replace(p.schedule.placements[0], stage=9), *p.schedule.placements[1:]),
            ),
        ),
        "operation a: cycle",
    ),
    "a partition that is not there": (lambda p: place(p, "a", partition=7), "operation a: partition 7 of"),
    "lists that disagree": (lambda p: place(p, "a", partition=0), "operation a: missing from the list"),
    "a dependence too early": (lambda p: place(p, "mma", cycle=cycle(p, "mma") - 60), "edge a -> mma: starts at"),
    "a unit used twice": (
        lambda p: place(p, "b", cycle=cycle(p, "a") + 6 if cycle(p, "a") < cycle(p, "b") else cycle(p, "a") - 6),
        "unit TMA: a, b hold 2 of 1",
    ),
    "issue slots that meet": (
        lambda p: place(p, "scale", cycle=cycle(p, "mma") + 60 * 3 + 4),
        "issue of partition default: mma, scale",
    ),
    "a register value that leaves": (lambda p: move(p, "scale", 1), "edge mma -> scale: a register value leaves"),
    "too few warps": (entry("partitions", 0, warps=2), "partition default: 2 warps, operation mma needs 4"),
    "an odd number of warps": (entry("partitions", 1, warps=3), "partition worker1: 3 warps, expected"),
    "too few registers": (entry("partitions", 0, registers=72), "registers live at phase"),
    "registers nobody has": (entry("partitions", 0, registers=256), "partition default: 256 registers"),
    "too many registers": (entry("partitions", 0, warps=8, registers=248), "registers: the partitions take"),
    "a shallow ring": (entry("channels", 0, depth=1), "channel a: depth 1 x 60 cycles"),
    "a live range cut short": (entry("channels", 1, live_cycles=1), "channel b: live for"),
    "a channel of nobody": (entry("channels", 0, name="mma"), "channel mma: no operation of the graph writes"),
    "a channel left out": (lambda p: replace(p, channels=p.channels[1:]), "operation a: its value has no channel"),
    "a channel to the wrong place": (entry("channels", 0, consumers=(1,)), "channel a: joins partitions 1 -> (1,)"),
    "small slots": (entry("channels", 0, slot_bytes=1000), "channel a: slots of 1000 bytes for 1024"),
    "a ring without its bytes": (entry("buffers", 0, size=1024), "buffer a: 1024 bytes for a ring of"),
    "a ring without a buffer": (entry("buffers", 0, name="x"), "channel a: has no buffer"),
    "a misplaced ring": (entry("buffers", 0, offset=8), "offset 8 is no multiple of 1024"),
    "a lax alignment": (entry("buffers", 0, alignment=8), "buffer a: alignment 8, the operation needs 1024"),
    "a ring over another": (lambda p: entry("buffers", 1, offset=p.buffers[0].offset)(p), "buffers a and b: overlap"),
    "bytes beyond the memory": (entry("buffers", 2, offset=65_536), "buffer barriers: ends at byte 65600 of 65536"),
    "bytes beyond the plan": (lambda p: replace(p, smem_bytes=100), "the plan says 100 in all"),
    "a guest outside its host": (entry("buffers", 3, offset=32_768), "buffer spare: lies outside the ring of a"),
    "two buffers of one name": (entry("buffers", 2, name="a"), "buffers: a name appears twice"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_plan_is_caught(plan, name):
    mutate, message = MUTATIONS[name]
    found = check(mutate(plan), GRAPH)
    assert any(message in violation for violation in found), found
    assert all("\n" not in violation for violation in found)


def test_more_partitions_than_the_limit(plan):
    assert "partitions: 2 of at most 1" in check(plan, replace(GRAPH, limits=replace(GRAPH.limits, max_partitions=1)))


def test_slack_is_part_of_the_rule(plan):
    margin = min(c.depth * plan.schedule.ii_cycles - c.live_cycles for c in plan.channels)
    assert check(plan, GRAPH, slack_cycles=margin) == ()
    assert check(plan, GRAPH, slack_cycles=margin + 1)


def test_a_late_start_in_another_stage_is_still_a_conflict(plan):
    """Whole turns do not change a phase: the modulo table sees the operation where it was."""
    ii = plan.schedule.ii_cycles
    later = place(plan, "scale", cycle=cycle(plan, "scale") + 5 * ii)
    assert not any(v.startswith(("unit", "issue")) for v in check(later, GRAPH))


def test_the_checker_shares_no_code_with_the_solver():
    tree = ast.parse(inspect.getsource(sys.modules[check.__module__]))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {m for m in imported if m and m.startswith("warpplan")} <= {
        "warpplan.planner.errors", "warpplan.planner.device", "warpplan.planner.graph", "warpplan.planner.plan",
    }  # fmt: skip
