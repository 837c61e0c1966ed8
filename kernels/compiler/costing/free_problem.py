"""The free joint problem of a captured loop: which partition of its operations would be best, whatever can be lowered.

The graph has the operations, costs and data partitions of the strategy that is served, and none of its decisions: no
operation is pinned, nothing is computed twice, and a consumer's operations need not run in program order. A value that
crosses partitions in registers goes through shared memory, at the measured cost of storing and loading it. So its
interval is a lower bound of every lowering of the loop at this tile and with these data partitions, and what a strategy
lacks of it is what its producer, its order or its waits cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from warpplan.kernels.compiler.analysis.capture import Body, Captured
from warpplan.kernels.compiler.analysis.operation_kinds import RING_KINDS
from warpplan.kernels.compiler.costing.assigned_loops import chains, nearest, shared_work
from warpplan.kernels.compiler.costing.fusing import fuse, steady
from warpplan.kernels.compiler.costing.kernel_model import RankedStrategy
from warpplan.kernels.compiler.costing.loop_graph import (
    BASE_REGISTERS,
    Shape,
    cost_of,
    edges_of,
    handoff,
    operation_of,
    unique,
)
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.planner.errors import MissingCosts
from warpplan.planner.predict.certificate import certify
from warpplan.planner.problem.clones import data_partition
from warpplan.planner.solve import solve
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.dependence_graph import DependenceGraph, Limits
from warpplan.planner.values.device import Device
from warpplan.planner.values.options import FREE_PARTITIONS, SolveOptions
from warpplan.planner.values.plan import Optimality
from warpplan.planner.values.profile import Profile

FREE_SECONDS = 2.0
"""Work budget of one loop's free problem, in seconds of a slow core. Chosen by hand; doubled, few of the corpus' open
bounds close and its table takes twice as long."""
CROSSING_BYTES = 16_384
"""Size at which the store and the load of a crossing value are looked up: a 64 x 128 tile of 16-bit numbers."""
ESTIMATED_CROSSING = 16
"""Cycles a KB where the profile has neither: 8 to write and 8 to read at 128 bytes a cycle (see ``loop_graph``)."""


def certificates(
    captured: Captured, served: RankedStrategy, profile: Profile, device: Device
) -> tuple[Optimality, ...]:
    """The intervals of ``served``, a Hopper strategy or leaving the kernel alone, beside their free joint problems: one
    for each loop that loads into rings, in program order; none where there is no such loop or no prediction."""
    strategy = served.scheme
    assert strategy is None or isinstance(strategy, HopperStrategy)
    consumers, warps = (1, max(4, captured.warps)) if strategy is None else (strategy.consumers, strategy.warps)
    shape = Shape(consumers, warps)
    captured = captured.at(served.copies)
    if len(served.ii_cycles) != len(captured.loading):
        return ()
    options = SolveOptions(FREE_SECONDS)
    return tuple(
        certify(free_graph(loop, shape, profile.costs, device), options, ii)
        for loop, ii in zip(captured.loading, served.ii_cycles, strict=True)
    )


def free_graph(
    loop: Body, shape: Shape, costs: CostTable, device: Device, once: frozenset[str] = frozenset()
) -> DependenceGraph:
    """The free joint problem of ``loop``, its rows shared out to ``shape.consumers`` copies, but for the operations
    ``once``; loads come from DRAM."""
    fused, _ = fuse(steady(loop), once | {work.id for work in loop.of_kind(*RING_KINDS)})
    ops = [operation_of(work, cost_of(work, costs, shape, "dram"), shape) for work in fused.work]
    loads = {work.id for work in fused.of_kind(*RING_KINDS)}
    shared, copied = [op for op in ops if op.id in loads], [op for op in ops if op.id not in loads]
    edges = [edge for flow in fused.flows for edge in edges_of(flow, {op.id for op in copied}, shared, copied)]
    limits = Limits(
        max_partitions=max(FREE_PARTITIONS, 1 + shape.consumers),
        smem_bytes=device.smem_bytes_per_block,
        registers=device.registers_per_sm,
        handoff_cycles=handoff(costs),
        handoff_cycles_per_kb=crossing_cycles(costs),
        base_registers=BASE_REGISTERS,
        architecture="hopper" if device.has_wgmma else "any",
    )
    graph = DependenceGraph(f"{loop.id}, any partition", tuple(ops), unique(edges), limits)
    names = [op.id for op in copied if op.id not in once]
    return data_partition(graph, names, shape.consumers) if shape.consumers > 1 and names else graph


def solved_assignments(
    captured: Captured, shapes: Sequence[Shape], profile: Profile, device: Device
) -> list[tuple[Shape, tuple[int, ...]]]:
    """For each of ``shapes`` the lowerable assignment of ``captured`` nearest to the solved free problems of its loops,
    where that is another than a producer and consumers. Only loops with operands that another partition can convert are
    solved: no other free problem tells loads apart, for issuing one costs next to nothing."""
    loops = [loop for loop in captured.loading if chains(loop)]
    found, known = [], dict[tuple[int, int], tuple[int, ...]]()
    for shape in shapes if loops else ():
        key = shape.consumers, shape.warps
        if key not in known:
            plans = {}
            for loop in loops:
                graph = free_graph(loop, shape, profile.costs, device, shared_work(loop))
                outcome = solve(graph, SolveOptions(FREE_SECONDS))
                if outcome.plan is not None:
                    plans[loop.id] = outcome.plan
            known[key] = nearest(captured, plans)
        if known[key]:
            found.append((shape, known[key]))
    return found


def crossing_cycles(costs: CostTable) -> int:
    """Cycles a KB of a value that leaves one partition's registers for another's: its store to shared memory and its
    load from there, as measured for :data:`CROSSING_BYTES`."""
    cycles = 0.0
    for kind in ("shared_store", "shared_load"):
        try:
            found = costs.lookup(kind, CROSSING_BYTES)
        except MissingCosts:
            return ESTIMATED_CROSSING
        measured = found.latency or found.occupancy or found.issue
        if measured is None:
            return ESTIMATED_CROSSING
        cycles += measured.p50
    return ceil(cycles * 1024 / CROSSING_BYTES)
