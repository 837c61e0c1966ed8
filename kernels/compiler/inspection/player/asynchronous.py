"""What is asynchronous on Hopper: copies by TMA and cp.async, stores by TMA, wgmma.

A copy is a landing of the interleaving: issued, its slot is poison until it lands. A product reads its slots when it
is waited for, which is as late as it may.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from warpplan.kernels.compiler.inspection.finished import read_copy
from warpplan.kernels.compiler.inspection.player.global_operations import added_to, boxed, described, unboxed
from warpplan.kernels.compiler.inspection.player.interleaving import GO_ON, Landing, Steps
from warpplan.kernels.compiler.inspection.player.partition import FlyingProduct, PlayedPartition
from warpplan.kernels.compiler.inspection.player.shared_operations import (
    arrive_at,
    barrier_of,
    read_tile,
    view_of,
    write_tile,
)
from warpplan.kernels.compiler.inspection.player.tiles.device_memory import OutOfBounds
from warpplan.kernels.compiler.inspection.player.tiles.element_types import poison
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyOperation
from warpplan.kernels.compiler.inspection.player.tiles.shared_tiles import SharedView
from warpplan.kernels.compiler.inspection.player.tiles.tile_operations import multiply
from warpplan.kernels.compiler.inspection.player.tiles.vector_clocks import Actor, Clock

WARP = 32


# TMA


def tma_load(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    copy = read_copy(operation.operation)
    if copy.predicate and not partition.value(copy.predicate, operation):
        return
    view, barrier = view_of(partition, operation, copy.buffer), barrier_of(partition, operation, copy.barrier)
    names = operation.operands
    coordinates = [int(partition.value(name, operation)) for name in names[1 : names.index(copy.buffer)]]
    descriptor = partition.value(copy.descriptor, operation)
    described(partition, operation, descriptor)
    actor = partition.fork(operation)
    write_tile(partition, operation, view, actor)
    view.array[...] = poison(view.array.shape, view.allocation.kind.held)
    box = next(kind for kind in operation.types if kind.kind == "!tt.tensordesc")
    brought = int(np.prod(box.shape)) * box.held.bytes

    def land() -> None:
        tensor = described(partition, operation, descriptor)
        view.array[...] = boxed(partition, operation, tensor, coordinates).reshape(view.array.shape)
        arrive_at(partition, operation, barrier, 0, -brought, actor.clock)

    partition.program.schedule.fly(Landing(land, awaited=actor.told))
    yield GO_ON


def tma_store(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    """A copy to global memory, or a reduction: what is there is added to once the copy lands."""
    write = added_to if operation.name == "ttng.async_tma_reduce" else unboxed
    descriptor, *coordinates, _ = (partition.values[name] for name in operation.operands)
    view = view_of(partition, operation, operation.operands[-1])
    described(partition, operation, descriptor)
    actor = partition.fork(operation)
    read_tile(partition, operation, view, actor)

    def land() -> None:
        tensor = described(partition, operation, descriptor)
        write(partition, operation, tensor, [int(c) for c in coordinates], view.array)

    landing = partition.program.schedule.fly(Landing(land))
    partition.stores.append((landing, actor.clock))
    yield GO_ON


def wait_stores(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    pending = operation.number("pendings")
    while len(partition.stores) > pending:
        landing, clock = partition.stores.pop(0)
        landing.finish()
        partition.learn(clock)
    yield GO_ON


# cp.async


def copy_async(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    """``ttg.async_copy_global_to_local``: what a mask hides is ``other``, or 0. Through the generic proxy."""
    names, text = operation.operands, operation.text
    view = view_of(partition, operation, names[1])
    addresses = partition.value(names[0], operation)
    mask = re.search(r"mask (%[\w.$#-]+)", text)
    other = re.search(r"other (%[\w.$#-]+)", text)
    hidden = partition.value(mask.group(1), operation) if mask else np.ones(np.shape(addresses), bool)
    instead = partition.value(other.group(1), operation) if other else 0
    actor = partition.fork(operation, asynchronous=False)
    write_tile(partition, operation, view, actor)
    view.array[...] = poison(view.array.shape, view.allocation.kind.held)

    def land() -> None:
        try:
            loaded = partition.program.memory.load(addresses, hidden, operation.types[0].pointee)
        except OutOfBounds as error:
            raise partition.fault("bounds", f"a copy of {error}", operation) from error
        view.array[...] = np.where(hidden, loaded, instead)

    landing = partition.program.schedule.fly(Landing(land))
    partition.copies.append((landing, actor.clock))
    partition.values |= dict.fromkeys(operation.defined)
    yield GO_ON


def commit(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    """``ttg.async_commit_group``: the copies so far are a group."""
    partition.groups.append(partition.copies)
    partition.copies = []
    partition.values |= dict.fromkeys(operation.defined)
    yield GO_ON


def wait_copies(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    """``ttg.async_wait``: all groups but the last ``num``."""
    while len(partition.groups) > operation.number("num"):
        _land_copies(partition, partition.groups.pop(0))
    partition.values |= dict.fromkeys(operation.defined)
    yield GO_ON


def _land_copies(partition: PlayedPartition, copies: list[tuple[Landing, Clock]]) -> None:
    for landing, clock in copies:
        landing.finish()
        partition.learn(clock)


def copies_arrive(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    """``ttng.async_copy_mbarrier_arrive``: each thread arrives once its copies so far have landed. Without
    ``noIncrement`` the phase expects that arrival besides the others (PTX ISA, "cp.async.mbarrier.arrive")."""
    barrier = barrier_of(partition, operation, operation.operands[0])
    before = [*partition.copies, *(copy for group in partition.groups for copy in group)]
    threads = partition.warps * WARP
    if "noIncrement" not in operation.text:
        barrier.pending += threads
    actor = partition.fork(operation, asynchronous=False)
    clock = dict(actor.clock)
    for _, past in before:
        clock |= {agent: max(time, clock.get(agent, 0)) for agent, time in past.items()}

    def land() -> None:
        arrive_at(partition, operation, barrier, threads, 0, clock)

    partition.program.schedule.fly(Landing(land, lambda: all(landing.landed for landing, _ in before)))
    partition.copies, partition.groups = [], []
    yield GO_ON


# wgmma


def _operand(partition: PlayedPartition, operation: ReadyOperation, name: str, actor: Actor) -> Callable[[], Any]:
    value = partition.values[name]
    if isinstance(value, SharedView):
        read_tile(partition, operation, value, actor)
        return lambda: value.array
    tile = partition.value(name, operation)
    return lambda: tile


def product(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    """``ttng.warp_group_dot``."""
    names = operation.operands
    actor = partition.fork(operation)
    a, b = (_operand(partition, operation, name, actor) for name in names[:2])
    accumulator = partition.values[names[2]]
    used = names[3] if len(names) > 3 and operation.types[-1].element == "i1" else None
    adds = used is None or bool(partition.value(used, operation))
    kind = operation.result.held

    def compute() -> Any:
        start = accumulator.value if isinstance(accumulator, FlyingProduct) else accumulator
        return multiply(a(), b(), start if adds else np.zeros_like(start), kind)

    flying = FlyingProduct(compute, actor.clock)
    partition.products.append(flying)
    partition.values[operation.defined[0]] = flying
    if operation.attributes.get("isAsync") != "true":
        _finish_products(partition, 0)
        partition.values[operation.defined[0]] = flying.value
    yield GO_ON


def _finish_products(partition: PlayedPartition, pending: int) -> None:
    while len(partition.products) > pending:
        flying = partition.products.pop(0)
        flying.finish()
        partition.learn(flying.clock)


def wait_products(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    """``ttng.warp_group_dot_wait``: all products but the last ``pendings``."""
    _finish_products(partition, operation.number("pendings"))
    for name, source in zip(operation.defined, operation.operands, strict=True):
        value = partition.values[source]
        partition.values[name] = value.value if isinstance(value, FlyingProduct) and value.done else value
    yield GO_ON


ASYNCHRONOUS: dict[str, Callable[[PlayedPartition, ReadyOperation], Steps]] = {
    "ttng.async_tma_copy_global_to_local": tma_load, "ttng.async_tma_copy_local_to_global": tma_store,
    "ttng.async_tma_reduce": tma_store,
    "ttng.async_tma_store_wait": wait_stores, "ttg.async_copy_global_to_local": copy_async,
    "ttg.async_commit_group": commit, "ttg.async_wait": wait_copies,
    "ttng.async_copy_mbarrier_arrive": copies_arrive, "ttng.warp_group_dot": product,
    "ttng.warp_group_dot_wait": wait_products,
}  # fmt: skip
