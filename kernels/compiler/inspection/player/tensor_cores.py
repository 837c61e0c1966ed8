"""Tensor memory and tcgen05 products of Blackwell.

A product is issued and done some time later, in the order of those of its partition: it reads its slots and writes
tensor memory then, and then its barriers get their arrivals (PTX ISA, "tcgen05 memory consistency"). All products of a
partition are one agent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warpplan.kernels.compiler.inspection.finished import completed
from warpplan.kernels.compiler.inspection.player.global_operations import nothing
from warpplan.kernels.compiler.inspection.player.interleaving import GO_ON, Landing, Steps
from warpplan.kernels.compiler.inspection.player.partition import PlayedPartition
from warpplan.kernels.compiler.inspection.player.shared_operations import (
    arrive_at,
    barrier_of,
    read_tile,
    view_of,
    write_tile,
)
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyOperation
from warpplan.kernels.compiler.inspection.player.tiles.shared_tiles import SharedAllocation, SharedView
from warpplan.kernels.compiler.inspection.player.tiles.tile_operations import multiply
from warpplan.kernels.compiler.inspection.player.tiles.vector_clocks import Actor, merge


def _define(partition: PlayedPartition, operation: ReadyOperation, value: Any) -> None:
    """The first result; the others are tokens."""
    partition.values |= dict.fromkeys(operation.defined)
    partition.values[operation.defined[0]] = value


def _itself(partition: PlayedPartition, operation: ReadyOperation) -> Actor:
    """The partition; no proxy fence is between tensor memory and products."""
    actor = partition.actor(operation)
    return Actor(actor.agent, actor.clock, actor.told, asynchronous=True)


def allocate_columns(partition: PlayedPartition, operation: ReadyOperation) -> None:
    """``ttng.tmem_alloc``, with or without a first value."""
    made = SharedAllocation.made(operation.defined[0], operation.result)
    view = made.view()
    if operation.operands:
        write_tile(partition, operation, view, _itself(partition, operation))
        view.array[...] = partition.value(operation.operands[0], operation)
    _define(partition, operation, view)


def load_columns(partition: PlayedPartition, operation: ReadyOperation) -> None:
    view = view_of(partition, operation, operation.operands[0])
    read_tile(partition, operation, view, _itself(partition, operation))
    _define(partition, operation, view.array.copy())


def store_columns(partition: PlayedPartition, operation: ReadyOperation) -> None:
    tile, place, *more = operation.operands
    if more and not partition.value(more[-1], operation):
        return
    view = view_of(partition, operation, place)
    write_tile(partition, operation, view, _itself(partition, operation))
    view.array[...] = partition.value(tile, operation)
    partition.values |= dict.fromkeys(operation.defined)


def part_of_columns(partition: PlayedPartition, operation: ReadyOperation) -> None:
    """``ttng.tmem_subslice``; its attribute has another name since Triton 3.9."""
    view, shape = view_of(partition, operation, operation.operands[0]), operation.result.shape
    first = operation.number("N" if "N" in operation.attributes else "offset")
    starts = [*(0 for _ in shape[:-1]), first]
    partition.values[operation.defined[0]] = view.part(starts, shape)


def _core(partition: PlayedPartition, operation: ReadyOperation) -> Actor:
    """The tensor core as it goes on with what the partition issues now."""
    if partition.core is None:
        partition.core = partition.program.agents.new(), {}
    agent, clock = partition.core
    merge(clock, partition.clock)
    clock[agent] = clock.get(agent, 0) + 1
    partition.tick()
    return Actor(agent, dict(clock), partition.actor(operation).told, asynchronous=True)


def _issue(partition: PlayedPartition, operation: ReadyOperation, work: Callable[[], None]) -> None:
    before = partition.issued[-1:] if partition.issued else []
    landing = Landing(work, lambda: all(each.landed for each in before))
    partition.issued.append(partition.program.schedule.fly(landing))


def product(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    """``ttng.tc_gen5_mma``: ``a, b, d, adds, runs`` and barriers."""
    named = completed(operation.operation)
    (a, b, d, adds, runs), barriers = [name for name, _ in named[:5]], named[5:]
    actor = _core(partition, operation)
    runs_now, adds_now = bool(partition.value(runs, operation)), bool(partition.value(adds, operation))
    left, right, out = (view_of(partition, operation, name) for name in (a, b, d))
    if runs_now:
        for view in (left, right, *([out] if adds_now else [])):
            read_tile(partition, operation, view, actor)
        write_tile(partition, operation, out, actor)
    _commit(partition, operation, barriers, actor, lambda: _multiply(left, right, out, adds_now) if runs_now else None)
    yield GO_ON


def _multiply(left: SharedView, right: SharedView, out: SharedView, adds: bool) -> None:
    out.array[...] = multiply(left.array, right.array, out.array if adds else 0.0, out.allocation.kind.held)


def commit(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    """``ttng.tc_gen5_commit``: an arrival once the products before are done."""
    _commit(partition, operation, completed(operation.operation), _core(partition, operation), lambda: None)
    yield GO_ON


def _commit(
    partition: PlayedPartition, operation: ReadyOperation, named: list[tuple[str, str]], actor: Actor,
    work: Callable[[], None],
) -> None:  # fmt: skip
    arrived = [
        barrier_of(partition, operation, name)
        for name, when in named
        if isinstance(partition.values[name], SharedView) and (not when or partition.value(when, operation))
    ]

    def land() -> None:
        work()
        for barrier in arrived:
            arrive_at(partition, operation, barrier, 1, 0, actor.clock)

    _issue(partition, operation, land)
    partition.values |= dict.fromkeys(operation.defined)


TENSOR_MEMORY: dict[str, Callable[[PlayedPartition, ReadyOperation], None]] = {
    "ttng.tmem_alloc": allocate_columns, "ttng.tmem_load": load_columns, "ttng.tmem_store": store_columns,
    "ttng.tmem_subslice": part_of_columns, "ttng.fence": nothing,
}  # fmt: skip
TENSOR_CORES: dict[str, Callable[[PlayedPartition, ReadyOperation], Steps]] = {
    "ttng.tc_gen5_mma": product, "ttng.tc_gen5_commit": commit,
}  # fmt: skip
