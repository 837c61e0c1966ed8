"""Operations on shared memory and what is asynchronous: mbarriers, TMA, cp.async, wgmma, proxy fences.

A copy is a landing of the schedule: issued, its slot is poison until it lands. A product reads its slots when it is
waited for, which is as late as it may.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from warpplan.kernels.compiler.inspection.finished import read_copy
from warpplan.kernels.compiler.inspection.player.global_operations import boxed, described, nothing, unboxed
from warpplan.kernels.compiler.inspection.player.interleaving import GO_ON, Landing, Pause, Steps
from warpplan.kernels.compiler.inspection.player.partition import FlyingProduct, PlayedPartition
from warpplan.kernels.compiler.inspection.player.tiles.device_memory import OutOfBounds
from warpplan.kernels.compiler.inspection.player.tiles.element_types import poison
from warpplan.kernels.compiler.inspection.player.tiles.faults import NotPlayed
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyOperation
from warpplan.kernels.compiler.inspection.player.tiles.shared_tiles import PlayedBarrier, SharedAllocation, SharedView
from warpplan.kernels.compiler.inspection.player.tiles.tile_operations import constant_index, multiply
from warpplan.kernels.compiler.inspection.player.tiles.vector_clocks import Actor, Clock

WARP = 32


def view_of(partition: PlayedPartition, operation: ReadyOperation, name: str) -> SharedView:
    """The shared memory that a value is. Raises :class:`NotPlayed`."""
    value = partition.values[name]
    if not isinstance(value, SharedView):
        raise NotPlayed(operation.name, operation.line, f"{name} is no shared memory")
    return value


def read_tile(partition: PlayedPartition, operation: ReadyOperation, view: SharedView, actor: Actor) -> None:
    """Note a read. Raises :class:`KernelFault`."""
    wrong = view.allocation.log.read(view.box, actor)
    if wrong is not None and (wrong[0] != "fence" or partition.program.fences):
        raise partition.fault(wrong[0], f"{view.told}: {wrong[1]}", operation)


def write_tile(partition: PlayedPartition, operation: ReadyOperation, view: SharedView, actor: Actor) -> None:
    """Note a write. Raises :class:`KernelFault`."""
    wrong = view.allocation.log.write(view.box, actor)
    if wrong is not None:
        raise partition.fault(wrong[0], f"{view.told}: {wrong[1]}", operation)


# Tiles


def allocate(partition: PlayedPartition, operation: ReadyOperation) -> None:
    """``ttg.local_alloc``, with or without a first value."""
    made = SharedAllocation.made(operation.defined[0], operation.result)
    partition.program.allocations.append(made)
    partition.values[operation.defined[0]] = view = made.view()
    if operation.operands:
        write_tile(partition, operation, view, partition.actor(operation))
        view.array[...] = partition.value(operation.operands[0], operation)


def index(partition: PlayedPartition, operation: ReadyOperation) -> None:
    view = view_of(partition, operation, operation.operands[0])
    try:
        result = view.at(int(partition.value(operation.operands[1], operation)))
    except IndexError as error:
        raise partition.fault("bounds", f"{view.allocation.name}: {error}", operation) from error
    partition.values[operation.defined[0]] = result


def subslice(partition: PlayedPartition, operation: ReadyOperation) -> None:
    view = view_of(partition, operation, operation.operands[0])
    made = view.part(constant_index(operation.text), operation.result.shape)
    partition.values[operation.defined[0]] = made


def transpose(partition: PlayedPartition, operation: ReadyOperation) -> None:
    view = view_of(partition, operation, operation.operands[0])
    partition.values[operation.defined[0]] = view.transposed(operation.numbers("order"))


def reshape(partition: PlayedPartition, operation: ReadyOperation) -> None:
    view, kind = view_of(partition, operation, operation.operands[0]), operation.result
    if kind.element != view.allocation.kind.element:
        raise NotPlayed(operation.name, operation.line, f"{view.allocation.kind.element} as {kind.element}")
    try:
        partition.values[operation.defined[0]] = view.reshaped(kind.shape)
    except ValueError as error:
        raise NotPlayed(operation.name, operation.line, str(error)) from error


def local_load(partition: PlayedPartition, operation: ReadyOperation) -> None:
    view = view_of(partition, operation, operation.operands[0])
    read_tile(partition, operation, view, partition.actor(operation))
    partition.define(operation, [view.array.copy()])


def local_store(partition: PlayedPartition, operation: ReadyOperation) -> None:
    value, view = (
        partition.value(operation.operands[0], operation),
        view_of(partition, operation, operation.operands[1]),
    )
    write_tile(partition, operation, view, partition.actor(operation))
    view.array[...] = value


def fence(partition: PlayedPartition, operation: ReadyOperation) -> None:
    """``ttng.fence_async_shared``."""
    for allocation in partition.program.allocations:
        allocation.log.fence(partition.clock)


# Barriers


def barrier_of(partition: PlayedPartition, operation: ReadyOperation, name: str) -> PlayedBarrier:
    """The barrier that a value is. Raises :class:`KernelFault`."""
    view = view_of(partition, operation, name)
    try:
        return view.barrier
    except KeyError:
        raise partition.fault("barrier", f"{view.told} was not initialised", operation) from None


def _amount(operation: ReadyOperation) -> int:
    """The count or the bytes: the one number in front of the types."""
    match = re.search(r", (\d+)", operation.text)
    return int(match.group(1)) if match else 1


def _predicated(partition: PlayedPartition, operation: ReadyOperation, position: int) -> bool:
    names = operation.plain_operands
    return len(names) <= position or bool(partition.value(names[position], operation))


def init_barrier(partition: PlayedPartition, operation: ReadyOperation) -> None:
    view, count = view_of(partition, operation, operation.operands[0]), _amount(operation)
    view.allocation.barriers[view.box] = PlayedBarrier(count, count)


def arrive_at(
    partition: PlayedPartition, operation: ReadyOperation, barrier: PlayedBarrier, arrivals: int, more: int, past: Clock
) -> None:
    """Arrivals and bytes at a barrier, ``past`` before them. Raises :class:`KernelFault`."""
    if not barrier.arrive(arrivals, more, past):
        raise partition.fault("barrier", "one arrival too many in a phase", operation)


def expect(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    if _predicated(partition, operation, 1):
        barrier = barrier_of(partition, operation, operation.operands[0])
        arrive_at(partition, operation, barrier, 1, _amount(operation), partition.clock)
        partition.tick()
        yield GO_ON


def arrive(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    if _predicated(partition, operation, 1):
        barrier = barrier_of(partition, operation, operation.operands[0])
        arrive_at(partition, operation, barrier, _amount(operation), 0, partition.clock)
        partition.tick()
        yield GO_ON


def wait_barrier(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    if not _predicated(partition, operation, 2):
        return
    names = operation.plain_operands
    barrier, parity = barrier_of(partition, operation, names[0]), int(partition.value(names[1], operation))
    told = f"{view_of(partition, operation, names[0]).told}, phase bit {parity & 1}"
    yield Pause(lambda: barrier.is_over(parity), f"{told} ({operation.line or operation.name})")
    partition.learn(barrier.released)
    partition.program.waits += 1


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

    partition.program.schedule.fly(Landing(land))
    yield GO_ON


def tma_store(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    descriptor, *coordinates, _ = (partition.values[name] for name in operation.operands)
    view = view_of(partition, operation, operation.operands[-1])
    described(partition, operation, descriptor)
    actor = partition.fork(operation)
    read_tile(partition, operation, view, actor)

    def land() -> None:
        tensor = described(partition, operation, descriptor)
        unboxed(partition, operation, tensor, [int(c) for c in coordinates], view.array)

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


def commit(partition: PlayedPartition, operation: ReadyOperation) -> None:
    partition.groups.append(partition.copies)
    partition.copies = []
    partition.values |= dict.fromkeys(operation.defined)


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


SHARED: dict[str, Callable[[PlayedPartition, ReadyOperation], None]] = {
    "ttg.local_alloc": allocate, "ttg.memdesc_index": index, "ttg.memdesc_subslice": subslice,
    "ttg.memdesc_trans": transpose, "ttg.memdesc_reshape": reshape, "ttg.memdesc_reinterpret": reshape,
    "ttg.local_load": local_load, "ttg.local_store": local_store, "ttng.fence_async_shared": fence,
    "ttng.init_barrier": init_barrier, "ttg.async_commit_group": commit, "ttg.local_dealloc": nothing,
    "ttng.inval_barrier": nothing, "ttng.fence_mbarrier_init_release_cluster": nothing,
}  # fmt: skip
SHARED_WAITING: dict[str, Callable[[PlayedPartition, ReadyOperation], Steps]] = {
    "ttng.barrier_expect": expect, "ttng.arrive_barrier": arrive, "ttng.wait_barrier": wait_barrier,
    "ttng.async_tma_copy_global_to_local": tma_load, "ttng.async_tma_copy_local_to_global": tma_store,
    "ttng.async_tma_store_wait": wait_stores, "ttg.async_copy_global_to_local": copy_async,
    "ttg.async_wait": wait_copies, "ttng.async_copy_mbarrier_arrive": copies_arrive, "ttng.warp_group_dot": product,
    "ttng.warp_group_dot_wait": wait_products,
}  # fmt: skip
