"""Operations on global memory that are done at once: loads, stores, atomics, descriptors, TMA as kernels write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from warpplan.kernels.compiler.inspection.player.interleaving import Steps
from warpplan.kernels.compiler.inspection.player.partition import PlayedPartition
from warpplan.kernels.compiler.inspection.player.tiles.device_memory import TMA_ALIGNMENT, OutOfBounds, TensorMap
from warpplan.kernels.compiler.inspection.player.tiles.element_types import rounded
from warpplan.kernels.compiler.inspection.player.tiles.faults import NotPlayed
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import PrintedType, ReadyOperation
from warpplan.kernels.compiler.lowering.hopper.load_rings import ROWS
from warpplan.kernels.compiler.ttgir.ir import is_value, tokenize

_ATOMIC: dict[str, Callable[[Any, Any], Any]] = {
    "fadd": np.add, "add": np.add, "max": np.maximum, "min": np.minimum, "umax": np.maximum, "umin": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "exch": lambda old, new: new,
}  # fmt: skip


def program_id(partition: PlayedPartition, operation: ReadyOperation) -> None:
    axis = "xyz".index(operation.operation.tokens[0])
    partition.values[operation.defined[0]] = np.int32(partition.program.place[axis])


def program_count(partition: PlayedPartition, operation: ReadyOperation) -> None:
    axis = "xyz".index(operation.operation.tokens[0])
    partition.values[operation.defined[0]] = np.int32(partition.program.grid[axis])


def load(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    partition.load(operation)
    if "isVolatile = true" in operation.text:
        yield from partition.spin()


def atomic(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    """``tt.atomic_rmw``: elements one after another where some have the same address."""
    kind = operation.operation.tokens[0]
    addresses, values, *rest = (partition.value(name, operation) for name in operation.operands)
    element = operation.types[0].pointee
    flat = np.asarray(addresses).reshape(-1)
    new = np.broadcast_to(values, np.shape(addresses)).reshape(-1)
    mask = np.broadcast_to(rest[0] if rest else True, np.shape(addresses)).reshape(-1)
    memory, combine = partition.program.memory, _ATOMIC[kind]
    try:
        old = memory.load(flat, mask, element)
        used = flat[mask]
        if len(np.unique(used)) == len(used):
            memory.store(flat, rounded(combine(old, new), element), mask, element)
        else:
            for i in np.flatnonzero(mask):
                here = slice(i, i + 1)
                old[here] = memory.load(flat[here], True, element)
                memory.store(flat[here], rounded(combine(old[here], new[here]), element), True, element)
    except OutOfBounds as error:
        raise partition.fault("bounds", f"an atomic access to {error}", operation) from error
    result = old.reshape(np.shape(addresses))
    partition.values[operation.defined[0]] = result if np.ndim(addresses) else result[()]
    yield from partition.spin()


def compare_and_swap(partition: PlayedPartition, operation: ReadyOperation) -> Steps:
    address, expected, new = (partition.value(name, operation) for name in operation.operands)
    if np.ndim(address):
        raise NotPlayed(operation.name, operation.line, "of a tensor")
    element, memory = operation.types[0].pointee, partition.program.memory
    try:
        old = memory.load(address, True, element).reshape(())[()]
        memory.store(address, new, old == expected, element)
    except OutOfBounds as error:
        raise partition.fault("bounds", f"an atomic access to {error}", operation) from error
    partition.values[operation.defined[0]] = old
    yield from partition.spin()


def tensor_map(kind: PrintedType, base: Any, sizes: list[Any], strides: list[Any]) -> TensorMap:
    """Of a descriptor of type ``kind``; ``strides`` in elements."""
    return TensorMap(int(base), tuple(map(int, sizes)), tuple(map(int, strides)), kind.held)


def describe(partition: PlayedPartition, operation: ReadyOperation) -> None:
    """``tt.make_tensor_descriptor``."""
    base, *rest = (partition.value(name, operation) for name in operation.operands)
    rank = len(rest) // 2
    made = tensor_map(operation.types[-1], base, rest[:rank], rest[rank:])
    partition.values[operation.defined[0]] = _aligned(partition, operation, made)


def _aligned(partition: PlayedPartition, operation: ReadyOperation, made: TensorMap) -> TensorMap:
    if made.unaligned:
        raise partition.fault("descriptor", f"TMA takes multiples of 16 bytes, not {made.unaligned}", operation)
    return made


def scratch(partition: PlayedPartition, operation: ReadyOperation) -> None:
    """``ttg.global_scratch_alloc``: the same place each time that the operation is executed."""
    key = operation.memory.setdefault("scratch", partition.program.agents.new())
    partition.values[operation.defined[0]] = np.int64(key)


def encode_map(partition: PlayedPartition, operation: ReadyOperation) -> None:
    """``ttng.tensormap_create``: written to scratch memory; sizes and strides innermost first, strides in bytes but for
    the innermost."""
    values = operation.text.partition(" : ")[0].partition("{")[0]
    head, *brackets = values.split("[")
    place, base = (name for name in tokenize(head) if is_value(name))
    _, sizes, strides, _ = ([name for name in tokenize(part.partition("]")[0]) if is_value(name)] for part in brackets)
    element = operation.types[1].pointee
    whole = [int(partition.value(name, operation)) for name in reversed(sizes)]
    steps = [int(partition.value(name, operation)) // element.bytes for name in reversed(strides)]
    fills_nan = operation.number("fill_mode") == 1
    made = TensorMap(int(partition.value(base, operation)), tuple(whole), (*steps, 1), element, fills_nan)
    where = int(partition.value(place, operation))
    partition.program.maps[where] = _aligned(partition, operation, made)
    partition.program.unacquired.add(where)


def acquire_map(partition: PlayedPartition, operation: ReadyOperation) -> None:
    """``ttng.tensormap_fenceproxy_acquire``."""
    partition.program.unacquired.discard(int(partition.value(operation.operands[0], operation)))


def use_map(partition: PlayedPartition, operation: ReadyOperation) -> None:
    """``ttng.reinterpret_tensor_descriptor``: a reference to what is in scratch memory when it is used."""
    partition.values[operation.defined[0]] = int(partition.value(operation.operands[0], operation))


def described(partition: PlayedPartition, operation: ReadyOperation, value: Any) -> TensorMap:
    """The tensor behind a descriptor's value."""
    if isinstance(value, TensorMap):
        return value
    if value not in partition.program.maps:
        raise partition.fault("descriptor", "a descriptor that was not written", operation)
    if value in partition.program.unacquired:
        raise partition.fault("descriptor", "a descriptor used before its fence", operation)
    return partition.program.maps[value]


def _require_aligned(
    partition: PlayedPartition, operation: ReadyOperation, tensor: TensorMap, coordinates: list[int]
) -> None:
    """A box that begins at another column is an illegal instruction on the GPU."""
    begin = coordinates[-1] * tensor.kind.bytes
    if begin % TMA_ALIGNMENT:
        told = f"TMA takes columns at multiples of {TMA_ALIGNMENT} bytes, not {coordinates[-1]} at {begin}"
        raise partition.fault("descriptor", told, operation)


def boxed(partition: PlayedPartition, operation: ReadyOperation, tensor: TensorMap, coordinates: list[int]) -> Any:
    """The box of a TMA load: outside of the tensor zero, or NaN."""
    _require_aligned(partition, operation, tensor, coordinates)
    shape = next(kind for kind in operation.types if kind.kind == "!tt.tensordesc").shape
    addresses, inside = tensor.box(tuple(coordinates), shape)
    try:
        loaded = partition.program.memory.load(addresses, inside, tensor.kind)
    except OutOfBounds as error:
        raise partition.fault("bounds", f"a TMA load of {error}", operation) from error
    return np.where(inside, loaded, np.nan).astype(loaded.dtype) if tensor.fills_nan else loaded


def unboxed(
    partition: PlayedPartition, operation: ReadyOperation, tensor: TensorMap, coordinates: list[int], tile: Any
) -> None:
    """The box of a TMA store, what is inside of the tensor."""
    _require_aligned(partition, operation, tensor, coordinates)
    shape = next(kind for kind in operation.types if kind.kind == "!tt.tensordesc").shape
    addresses, inside = tensor.box(tuple(coordinates), shape)
    try:
        partition.program.memory.store(addresses, tile.reshape(shape), inside, tensor.kind)
    except OutOfBounds as error:
        raise partition.fault("bounds", f"a TMA store to {error}", operation) from error


def descriptor_load(partition: PlayedPartition, operation: ReadyOperation) -> None:
    """``tt.descriptor_load``, as kernels write it."""
    descriptor, *coordinates = (partition.value(name, operation) for name in operation.operands)
    tile = boxed(partition, operation, described(partition, operation, descriptor), [int(c) for c in coordinates])
    rows, shape = operation.attributes.get(ROWS), operation.result.shape
    if rows is not None:  # a load of a part of the rows: the whole box comes, leading dimensions of 1 may be left out
        tile = tile.reshape(tile.shape[-len(shape) :])
        dimension, first, count = (int(n) for n in rows.partition(":")[2].strip("> ").split(","))
        tile = np.take(tile, np.arange(first, first + count), dimension)
    partition.values[operation.defined[0]] = tile.reshape(shape)


def descriptor_store(partition: PlayedPartition, operation: ReadyOperation) -> None:
    """``tt.descriptor_store``."""
    descriptor, *coordinates, tile = (partition.value(name, operation) for name in operation.operands)
    tensor = described(partition, operation, descriptor)
    unboxed(partition, operation, tensor, [int(c) for c in coordinates], tile)


def descriptor_reduce(partition: PlayedPartition, operation: ReadyOperation) -> None:
    """``tt.descriptor_reduce``: what is there is added to."""
    descriptor, *coordinates, tile = (partition.value(name, operation) for name in operation.operands)
    tensor = described(partition, operation, descriptor)
    added_to(partition, operation, tensor, [int(c) for c in coordinates], tile)


def added_to(
    partition: PlayedPartition, operation: ReadyOperation, tensor: TensorMap, places: list[int], tile: np.ndarray
) -> None:
    """Add ``tile`` to the box of ``tensor`` at ``places``, each sum rounded to what the tensor holds. Raises
    :class:`NotPlayed` for what a reduction may do beside adding."""
    if operation.operation.tokens[0] != "add":
        raise NotPlayed(operation.name, operation.line, "other than add")
    before = boxed(partition, operation, tensor, places).reshape(tile.shape)
    unboxed(partition, operation, tensor, places, rounded(before + tile, tensor.kind))


def nothing(partition: PlayedPartition, operation: ReadyOperation) -> None:
    """What has no effect on values: assertions, prints, barriers of a partition's own threads, a launch's
    place among others."""


GLOBAL: dict[str, Callable[[PlayedPartition, ReadyOperation], None]] = {
    "tt.get_program_id": program_id, "tt.get_num_programs": program_count, "tt.store": PlayedPartition.store,
    "tt.make_tensor_descriptor": describe, "ttg.global_scratch_alloc": scratch, "ttng.tensormap_create": encode_map,
    "ttng.tensormap_fenceproxy_acquire": acquire_map, "ttng.reinterpret_tensor_descriptor": use_map,
    "tt.descriptor_load": descriptor_load, "tt.descriptor_store": descriptor_store,
    "tt.descriptor_reduce": descriptor_reduce, "tt.assert": nothing, "tt.print": nothing, "gpu.barrier": nothing,
    "ttg.barrier": nothing, "llvm.intr.assume": nothing, "tt.grid_dependency_wait": nothing,
    "tt.grid_dependency_launch_dependents": nothing,
}  # fmt: skip
GLOBAL_WAITING: dict[str, Callable[[PlayedPartition, ReadyOperation], Steps]] = {
    "tt.load": load, "tt.atomic_rmw": atomic, "tt.atomic_cas": compare_and_swap,
}  # fmt: skip
