"""A captured loop on Blackwell: the dependence graph of its loads, products and the rest, in three partitions.

    loads ──> products ──> rest: tcgen05 multiplies what TMA brought into tensor memory, where the rest reads it
                 └──<────── and what the rest writes, in shared or tensor memory, is multiplied again

A thread issues the loads, in order, and the same or another the products, as they are scheduled; the rest runs in
order. A buffer of tensor memory that the loop goes on with is in one place all the time: its columns are set aside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from warpplan.kernels.compiler.analysis.capture import Body, producer_slice
from warpplan.kernels.compiler.analysis.loop_work import Flow, LoopWork
from warpplan.kernels.compiler.analysis.tensor_memory import TensorBuffer
from warpplan.kernels.compiler.costing.loop_graph import (
    BASE_REGISTERS,
    MOST_REGISTERS,
    THREADS,
    TMA_ALIGNMENT,
    Shape,
    cost_of,
    edges_of,
    handoff,
    in_order,
    operation_of,
    read_by_consumers,
    unique,
)
from warpplan.kernels.compiler.strategy.blackwell import APART, REST
from warpplan.planner.values.costs import CostTable
from warpplan.planner.values.dependence_graph import DependenceGraph, Limits, Operation
from warpplan.planner.values.device import Device
from warpplan.planner.values.options import PartitionSpec

PRODUCTS, LOADS = "products", "loads"
BOTH = "loads and products"
WORKER_REGISTERS = 24
"""Registers a thread of a worker: one thread issues loads or products. As a Hopper producer."""


@dataclass(frozen=True)
class BlackwellLoop:
    """The graph of a loop, the partition of each of its operations, and the partitions' sizes."""

    graph: DependenceGraph
    pins: dict[str, int]
    partitions: tuple[PartitionSpec, ...]


def blackwell_loop(
    loop: Body, workers: str, warps: int, costs: CostTable, device: Device, *, smem_bytes: int | None = None
) -> BlackwellLoop:
    """``loop`` with its loads and products in ``workers`` (``APART`` or ``TOGETHER``) and ``warps`` warps that do
    the rest; ``smem_bytes`` is what rings may take of shared memory."""
    names = (REST, PRODUCTS, LOADS) if workers == APART else (REST, BOTH)
    product, load = 1, len(names) - 1
    shape = Shape(1, warps)
    produced = producer_slice(loop)
    owners = _owners(loop)
    ops: list[Operation] = []
    other: list[Operation] = []
    pins: dict[str, int] = {}
    for work in loop.work:
        op = operation_of(work, cost_of(work, costs, shape, "dram"), shape)
        if work.id in produced:
            ops.append(replace(op, registers=0))
            pins[op.id] = load
            if work.kind == "tma_load" or not read_by_consumers(loop, work.id, produced):
                continue
            op = replace(op, id=f"{work.id}.again")
        if work.tensor is not None:
            op = _in_tensor_memory(op, work.tensor, owner=owners.get(work.tensor.name) == work.id)
        elif work.kind == "shared_store":
            op = replace(op, registers=0, buffer_bytes=work.parts[0].size, alignment=TMA_ALIGNMENT)
        other.append(replace(op, min_warps=1, registers=0) if work.kind == "dot" else op)
        pins[op.id] = product if work.kind == "dot" else 0
    ids = {op.id for op in other}
    flows = (*loop.flows, *_until_last_use(loop, owners))
    edges = [edge for flow in flows for edge in edges_of(flow, ids, ops, other)]
    for own in (ops, [op for op in other if pins[op.id] == 0]):
        edges += in_order(own, {op.id: op.issue for op in own}, frozenset())
    left = device.registers_per_sm - (len(names) - 1) * WORKER_REGISTERS * THREADS * 4
    rest = min(MOST_REGISTERS, left // (THREADS * warps) // 8 * 8)
    held = {work.tensor.name: work.tensor for work in loop.work if work.tensor is not None and work.tensor.held}
    limits = Limits(
        max_partitions=len(names),
        smem_bytes=device.smem_bytes_per_block if smem_bytes is None else smem_bytes,
        registers=device.registers_per_sm,
        handoff_cycles=handoff(costs),
        base_registers=BASE_REGISTERS,
        tmem_columns=max(0, device.tmem_columns - sum(buffer.columns for buffer in held.values())),
        architecture="blackwell",
    )
    graph = DependenceGraph(f"{loop.id}, {', '.join(names)}", (*ops, *other), unique(edges), limits)
    specs = (PartitionSpec(REST, warps, rest), *(PartitionSpec(name, 1, WORKER_REGISTERS) for name in names[1:]))
    return BlackwellLoop(graph, pins, specs)


def tensor_columns(loop: Body) -> int:
    """Columns of tensor memory that the buffers written in ``loop`` take, one place each."""
    return sum(b.columns for b in {w.tensor.name: w.tensor for w in loop.work if w.tensor is not None}.values())


def _in_tensor_memory(op: Operation, buffer: TensorBuffer, *, owner: bool) -> Operation:
    """What ``op`` leaves is in tensor memory, in a ring where it is the first to write there in each iteration."""
    if not owner or buffer.held:
        return replace(op, registers=0, buffer_bytes=0)
    return replace(op, registers=0, buffer_bytes=buffer.bytes, memory="tmem", lanes=buffer.lanes, alignment=8)


def _owners(loop: Body) -> dict[str, str]:
    """The first writer of each buffer of tensor memory."""
    found: dict[str, str] = {}
    for work in loop.work:
        if work.tensor is not None:
            found.setdefault(work.tensor.name, work.id)
    return found


def _until_last_use(loop: Body, owners: dict[str, str]) -> list[Flow]:
    """A buffer that others write on in is its first writer's until the last of their readers is done."""
    writers: dict[str, LoopWork] = {work.id: work for work in loop.work if work.tensor is not None}
    found = []
    for flow in loop.flows:
        writer = writers.get(flow.src)
        if writer is None or writer.tensor is None or flow.kind != "data" or writer.tensor.held:
            continue
        owner = owners[writer.tensor.name]
        if owner != flow.src and owner != flow.dst:
            found.append(Flow(owner, flow.dst, flow.distance))
    return found
