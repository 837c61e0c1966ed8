"""Operations on shared memory that are done at once: tiles and their views, proxy fences, mbarriers."""

from __future__ import annotations

import re
from collections.abc import Callable

from warpplan.kernels.compiler.inspection.player.global_operations import nothing
from warpplan.kernels.compiler.inspection.player.interleaving import GO_ON, Pause, Steps
from warpplan.kernels.compiler.inspection.player.partition import PlayedPartition
from warpplan.kernels.compiler.inspection.player.tiles.faults import NotPlayed
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyOperation
from warpplan.kernels.compiler.inspection.player.tiles.shared_tiles import PlayedBarrier, SharedAllocation, SharedView
from warpplan.kernels.compiler.inspection.player.tiles.tile_operations import constant_index
from warpplan.kernels.compiler.inspection.player.tiles.vector_clocks import Actor, Clock


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


SHARED: dict[str, Callable[[PlayedPartition, ReadyOperation], None]] = {
    "ttg.local_alloc": allocate, "ttg.memdesc_index": index, "ttg.memdesc_subslice": subslice,
    "ttg.memdesc_trans": transpose, "ttg.memdesc_reshape": reshape, "ttg.memdesc_reinterpret": reshape,
    "ttg.local_load": local_load, "ttg.local_store": local_store, "ttng.fence_async_shared": fence,
    "ttng.init_barrier": init_barrier, "ttg.local_dealloc": nothing, "ttng.inval_barrier": nothing,
    "ttng.fence_mbarrier_init_release_cluster": nothing,
}  # fmt: skip
BARRIERS: dict[str, Callable[[PlayedPartition, ReadyOperation], Steps]] = {
    "ttng.barrier_expect": expect, "ttng.arrive_barrier": arrive, "ttng.wait_barrier": wait_barrier,
}  # fmt: skip
