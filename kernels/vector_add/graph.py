"""One pass of one program as a dependence graph, and its plan.

    load_x, load_y (LSU) ──> add (ALU) ──> store (LSU)

A program makes one pass and ends, so the loop is the SM's: while one program waits for its operands, others of the SM
issue theirs. Iteration i is the i-th program that the SM runs, and the initiation interval is the number of cycles that
a program holds the SM's way to memory. Nothing links one iteration with the next, hence II = ResMII (Rau 1994).

The profile measures that way with TMA copies; a plain access of as many bytes passes through the same ports, and takes
the cost of such a copy here. Values live in registers of programs of their own, so the graph counts none of them: how
many programs are resident is bounded in :mod:`~warpplan.kernels.vector_add.work`.
"""

from __future__ import annotations

from dataclasses import replace

from warpplan.kernels.solved_loops import certified, solved
from warpplan.kernels.vector_add.space import ELEMENT_BYTES, VectorAddConfig
from warpplan.planner.errors import MissingCosts
from warpplan.planner.values.costs import CostTable, OperationCost, Quantiles
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.device import Device
from warpplan.planner.values.options import FREE_PARTITIONS, PartitionSpec, SolveOptions
from warpplan.planner.values.plan import Outcome

REGISTER_STEP = 8


def pass_graph(config: VectorAddConfig, dtype: str, device: Device, costs: CostTable) -> DependenceGraph:
    """The pass of ``config``, its operands in DRAM. Raises :class:`MissingCosts` naming what the profile lacks."""
    element = ELEMENT_BYTES[dtype]
    size = config.block_size * element
    load = costs.lookup("tma_load", size, source="dram")
    add = costs.lookup("elementwise", config.block_size)
    store = costs.lookup("tma_store", size)
    accesses = config.accesses(element)
    loads = [_access(name, load, accesses, "tma_load(source=dram)") for name in ("load_x", "load_y")]
    ops = (
        *loads,
        Operation(
            "add",
            "ALU",
            latency=_cycles(add.latency, "elementwise latency"),
            occupancy=_cycles(add.occupancy, "elementwise occupancy"),
            issue=_cycles(add.issue, "elementwise issue"),
        ),
        _access("store", store, accesses, "tma_store"),
    )
    edges = (Dependence("load_x", "add"), Dependence("load_y", "add"), Dependence("add", "store"))
    limits = Limits(1, device.smem_bytes_per_block, device.registers_per_sm)
    return DependenceGraph(f"vector_add {config.block_size} {config.num_warps} warps {dtype}", ops, edges, limits)


def plan_candidate(config: VectorAddConfig, dtype: str, device: Device, costs: CostTable) -> Outcome:
    """The pass of ``config``, solved: one partition of its warps; its certificate lets loads, additions and stores be
    in partitions of their own, at no cost of crossing. Raises :class:`MissingCosts`."""
    graph = pass_graph(config, dtype, device, costs)
    registers = -(-config.registers // REGISTER_STEP) * REGISTER_STEP
    options = SolveOptions(partitions=(PartitionSpec("program", config.num_warps, registers),))
    free = replace(graph, limits=replace(graph.limits, max_partitions=FREE_PARTITIONS))
    return certified(solved(graph, options), graph, options, free)


def interval_cycles(graph: DependenceGraph) -> int:
    """ResMII of a pass: the busiest unit's cycles, or the cycles that issuing takes, whichever are more. Without a
    recurrence some schedule reaches it, so that ranking needs no solver; a test compares it with the solved plans."""
    busy: dict[str, int] = {}
    for op in graph.ops:
        if op.unit is not None:
            busy[op.unit] = busy.get(op.unit, 0) + op.occupancy
    return max(*busy.values(), sum(op.issue for op in graph.ops))


def _access(name: str, cost: OperationCost, accesses: int, label: str) -> Operation:
    """A load or store of a whole block; a warp issues an instruction for each access of its threads."""
    return Operation(
        name,
        "LSU",
        latency=_cycles(cost.latency, f"{label} latency"),
        occupancy=_cycles(cost.occupancy, f"{label} occupancy"),
        issue=accesses,
    )


def _cycles(measured: Quantiles | None, label: str) -> int:
    if measured is None:
        raise MissingCosts([label])
    return round(measured.p50)
