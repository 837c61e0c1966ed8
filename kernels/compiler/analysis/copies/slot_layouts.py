"""The slot of a copied tile that is read in registers: the layout in which its copies and reads conflict least.

Copies follow the addresses, reads the operations after them, so that lanes may lie along rows in one and along columns
in the other. Of a plain slot one of the two then has all 32 lanes in one bank; a swizzle spreads either over several.
Triton's own pipeline takes the plain slot of the readers' order (``ttg.swizzled_shared`` of vec, perPhase and maxPhase
1, Triton 3.6.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from warpplan.kernels.compiler.analysis.copies.bank_conflicts import (
    READ_CYCLES,
    SwizzledLayout,
    passes,
    register_layout,
    slot_layouts,
)
from warpplan.kernels.compiler.analysis.copies.thread_elements import neighbours
from warpplan.kernels.compiler.analysis.operation_kinds import COPY_LOAD, vector_of
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module
from warpplan.kernels.compiler.ttgir.types import ShapedType, find_types, parse_type

PASSES = "warpplan.passes"
"""Attribute of a copied load: :class:`SlotPasses` in the order of its fields."""
_SAME_ELEMENTS = ("arith.", "math.")


@dataclass(frozen=True)
class SlotPasses:
    """Passes through the banks for every 128 bytes that are copied into a slot and read out of it; ``own`` ones where
    Triton pipelines the loop itself."""

    copied: float = 1.0
    read: float = 1.0
    own_copied: float = 1.0
    own_read: float = 1.0


def copied_slot(
    load: IrOperation, readers: Mapping[str, Sequence[IrOperation]], aliases: Iterable[str]
) -> SwizzledLayout:
    """The layout of the slot of ``load``, whose tile nobody wants in shared memory; ``readers`` are the operations that
    name a value. Of equal conflicts the plain one."""
    return _chosen(load, readers, tuple(aliases))[0]


def mark_passes(module: Module) -> None:
    """Write :data:`PASSES` into each copied load of ``module``'s kernel that is read in registers."""
    operations = list(module.function.walk())
    readers = readers_of(operations)
    for load in operations:
        if load.name == COPY_LOAD and not any(r.name == "ttg.local_alloc" for r in readers.get(load.result, ())):
            found = _chosen(load, readers, tuple(module.aliases))[1]
            numbers = (found.copied, found.read, found.own_copied, found.own_read)
            load.set_attribute(PASSES, f"array<f64: {', '.join(map(str, numbers))}>")


def passes_of(load: IrOperation) -> SlotPasses:
    """Those of a marked load; without conflicts where it is not marked."""
    if PASSES not in load.attributes:
        return SlotPasses()
    return SlotPasses(*(float(n) for n in load.attributes[PASSES].partition(":")[2].rstrip("> ").split(",")))


def readers_of(operations: Iterable[IrOperation]) -> dict[str, list[IrOperation]]:
    """The operations that name each value."""
    found: dict[str, list[IrOperation]] = {}
    for operation in operations:
        for name in operation.operands:
            found.setdefault(name, []).append(operation)
    return found


def _chosen(
    load: IrOperation, readers: Mapping[str, Sequence[IrOperation]], aliases: Sequence[str]
) -> tuple[SwizzledLayout, SlotPasses]:
    tile = parse_type(find_types(load.signature)[-1])
    assert tile is not None
    rank, size, vector = len(tile.shape), max(1, tile.element_bits // 8), vector_of(load)
    fastest, _ = neighbours(tile.encoding, aliases, rank)
    layouts = slot_layouts(fastest, tile.shape, size, vector)
    copied = register_layout(tile.encoding, aliases, rank)
    wanted = _read_encodings(load, tile, readers)
    read = [layout for encoding in wanted if (layout := register_layout(encoding, aliases, rank)) is not None]
    if copied is None or len(read) < len(wanted):
        return layouts[0], SlotPasses()  # fragments of tensor cores, whose reads are not counted

    def conflicts(layout: SwizzledLayout) -> tuple[float, float]:
        return (
            passes(copied, layout, tile.shape, size, vector),
            max(passes(each, layout, tile.shape, size) for each in read),
        )

    def cycles(layout: SwizzledLayout) -> float:
        written, brought = conflicts(layout)
        return written + READ_CYCLES * brought

    chosen = min(layouts, key=cycles)
    inner, _ = neighbours(wanted[-1], aliases, rank)
    own = SwizzledLayout((inner, *(dim for dim in reversed(range(rank)) if dim != inner)))
    # Along the readers' rows neighbouring lanes copy neighbours: Triton narrows what each lane has to what it copies at
    # once (its ``tritongpu-coalesce-async-copy``).
    own_copied = 1.0 if inner == fastest else passes(copied, own, tile.shape, size, vector)
    return chosen, SlotPasses(*conflicts(chosen), own_copied, passes(read[-1], own, tile.shape, size))


def _read_encodings(
    load: IrOperation, tile: ShapedType, readers: Mapping[str, Sequence[IrOperation]]
) -> tuple[str, ...]:
    """The layouts in which the tile of ``load`` may be read: its own, unless it is converted at once, and those that it
    is converted to after arithmetic, for Triton moves such a conversion in front of the arithmetic, into the read
    (its ``tritongpu-remove-layout-conversions``)."""
    found = [] if all(r.name == "ttg.convert_layout" for r in readers.get(load.result, ())) else [tile.encoding]
    waiting, seen = [load.result], set[str]()
    while waiting:
        value = waiting.pop()
        for reader in readers.get(value, ()):
            if not reader.results:
                continue
            made = parse_type(find_types(reader.signature)[-1]) if find_types(reader.signature) else None
            if made is None or made.shape != tile.shape:
                continue
            if reader.name == "ttg.convert_layout":
                found.append(made.encoding)
            elif reader.name.startswith(_SAME_ELEMENTS) and reader.result not in seen:
                seen.add(reader.result)
                waiting.append(reader.result)
    return tuple(dict.fromkeys(found)) or (tile.encoding,)
