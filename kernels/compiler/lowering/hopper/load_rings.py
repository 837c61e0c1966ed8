"""The rings of a specialised kernel: one for each load, by TMA or ``cp.async``, and which fill and empty together.

Rings of one block that are first read and last read by the same operations form a *group*: they share their barriers,
ring index and phase bit. Loops that run one after the other and load alike go on with the same rings.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from warpplan.kernels.compiler.analysis.copies.slot_layouts import copied_slot, readers_of
from warpplan.kernels.compiler.analysis.operation_kinds import (
    CONVERTED,
    COPY_LOAD,
    LOOPS,
    RING_LOADS,
    TMA_LOAD,
    short_name,
)
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.lowering.assigned.partition_views import filler_of
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region
from warpplan.kernels.compiler.ttgir.source_locations import source_line
from warpplan.kernels.compiler.ttgir.types import ShapedType, find_types, parse_type

DESCRIBE = "tt.make_tensor_descriptor"
NUMBER = "warpplan.load"
SLOT = "warpplan.slot"
"""Attribute of a load: the layout of the slot that it fills."""
WALK = "warpplan.walk"
"""Attribute of the loop over the programs of the grid: what it loads itself has one slot."""
ROWS = "warpplan.rows"
"""Attribute of a load whose reader takes only some rows: dimension, offset, size."""
READERS = "warpplan.readers"
"""Attribute of a load under an assignment: the partitions that read its slot, 0 for the consumers."""
VIEWS = frozenset({"ttg.local_alloc", "ttg.memdesc_trans", "ttg.memdesc_reshape", "ttg.memdesc_subslice"})


class Partitioning(Protocol):
    """One producer and ``consumers`` partitions of ``warps`` warps. ``in_flight``: products are overlapped with what
    stands around them. ``persistent``: as many programs as run at once walk over those of the grid. ``copies``: up to
    which level the producer copies what is loaded through pointers. ``blocks`` run on one SM at once.

    :class:`~warpplan.kernels.compiler.strategy.hopper.HopperStrategy` is one, and says which values are valid.
    """

    @property
    def consumers(self) -> int: ...
    @property
    def warps(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def persistent(self) -> int: ...
    @property
    def copies(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def assignment(self) -> tuple[int, ...]: ...
    def depth(self, loop: int) -> int:
        """Slots of the rings of loop number ``loop``, counted in the order of the program."""


@dataclass(frozen=True)
class LoadRing:
    """``depth`` slots of type ``slot``, numbered by the first load that fills them; ``copied`` by ``cp.async``."""

    number: int
    slot: ShapedType
    depth: int
    group: int
    copied: bool = False

    @property
    def name(self) -> str:
        return f"%wp_ring{self.number}"

    @property
    def type(self) -> ShapedType:
        return self.slot.with_shape((self.depth, *self.slot.shape))


@dataclass(frozen=True)
class Group:
    """Rings that fill and empty together: ``once`` where that happens at most once, so that no slot is filled again;
    ``boxes`` where TMA fills one of them, ``copies`` where ``cp.async`` does, ``converted`` where a converter does.
    ``filler`` and ``readers`` are partitions by their numbers in an assignment; reader 0 is all consumers."""

    number: int
    depth: int
    once: bool
    boxes: bool = True
    copies: bool = False
    filler: int = 0
    converted: bool = False
    readers: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Rings:
    """All rings of a kernel, by the numbers of the loads that fill them, and their groups by number."""

    rings: dict[int, LoadRing]
    groups: dict[int, Group]

    def group_of(self, load: int) -> Group:
        return self.groups[self.rings[load].group]

    def of(self, loads: Collection[int]) -> Rings:
        """The rings that ``loads`` fill, and their groups."""
        rings = {load: ring for load, ring in self.rings.items() if load in loads}
        kept = {ring.group for ring in rings.values()}
        return Rings(rings, {number: group for number, group in self.groups.items() if number in kept})

    def filled_by(self, partition: int) -> Rings:
        """The rings that the partition of that number fills."""
        return self.of({load for load in self.rings if self.group_of(load).filler == partition})

    def of_group(self, group: int) -> list[LoadRing]:
        return [ring for ring in self.distinct if ring.group == group]

    @property
    def distinct(self) -> list[LoadRing]:
        return list({ring.number: ring for ring in self.rings.values()}.values())


@dataclass
class BlockUse:
    """One load of a block: where, by position in the block, its slot is first and last read; ``views`` the names under
    which it is read in shared memory, ``in_registers`` whether its tensor itself is read, ``by_threads`` whether that
    or a part of it is loaded into registers, and not all of it is read by the tensor cores."""

    load: int
    operation: IrOperation
    position: int
    first: int
    last: int
    views: frozenset[str]
    in_registers: bool
    by_threads: bool = False


def number_loads(module: Module) -> int:
    """Write its number and its slot's layout into every load of ``module``'s kernel that fills a slot; how many loads
    there are."""
    loads = [operation for operation in module.function.walk() if operation.name in RING_LOADS]
    for number, operation in enumerate(loads):
        operation.set_attribute(NUMBER, f"{number} : i64")
        through = _slot_encoding if operation.name == TMA_LOAD else _copied_encoding
        encoding = through(module, operation)
        if encoding:
            operation.set_attribute(SLOT, encoding)
    return len(loads)


def _slot_encoding(module: Module, load: IrOperation) -> str:
    """The descriptor's layout; where its block has leading dimensions of 1 that the result lacks, that of the shared
    memory which the result is copied to, or, where it is not copied, the descriptor's without them; "" where that is
    not known."""
    descriptor, tensor = (parse_type(text) for text in find_types(load.signature))
    assert descriptor is not None
    assert tensor is not None
    if len(descriptor.shape) == len(tensor.shape):
        return descriptor.encoding
    for operation in module.function.walk():
        if operation.name == "ttg.local_alloc" and load.result in operation.operands:
            made = parse_type(find_types(operation.signature)[-1])
            return made.encoding if made is not None else ""
    return without_leading(module, descriptor.encoding, len(tensor.shape))


def without_leading(module: Module, encoding: str, dimensions: int) -> str:
    """The layout ``encoding`` of a box without its leading dimensions of 1, of which ``dimensions`` are left; "" where
    it has no such form."""
    layout = next((a.partition(" = ")[2] for a in module.aliases if a.startswith(f"{encoding} = ")), "")
    # As Triton's own lowering of such a load has it (3.6.0, ``getEncodingFromDescriptor``); a rank of 2 is not printed.
    rank = f", rank = {dimensions}" if dimensions != 2 else ""
    lower, ranks = re.subn(r", rank = \d+(?=}>$)", rank, layout)
    return module.alias(lower) if ranks and lower.startswith("#ttg.nvmma_shared<") else ""


def _copied_encoding(module: Module, load: IrOperation) -> str:
    """That of the shared memory which the copied tile is wanted in; the one with the fewest bank conflicts where its
    readers want it in registers."""
    readers = readers_of(module.function.walk())
    for operation in readers.get(load.result, ()):
        if operation.name == "ttg.local_alloc":
            made = parse_type(find_types(operation.signature)[-1])
            return made.encoding if made is not None else ""
    return module.alias(str(copied_slot(load, readers, module.aliases)))


def load_number(operation: IrOperation) -> int:
    return int(operation.attributes[NUMBER].split()[0])


def blocks(function: IrOperation) -> list[tuple[Region, IrOperation, tuple[IrOperation, ...]]]:
    """Every region of structured control flow in ``function``: itself, its operation, the operations around it."""
    found: list[tuple[Region, IrOperation, tuple[IrOperation, ...]]] = []

    def visit(operation: IrOperation, around: tuple[IrOperation, ...]) -> None:
        for region in operation.regions:
            found.append((region, operation, around))
            for inner in region.operations:
                if inner.regions and not inner.name.startswith("tt."):
                    visit(inner, (*around, operation))

    visit(function, ())
    return found


def uses(region: Region) -> list[BlockUse]:
    """The loads that stand directly in ``region`` and where their slots are read; a load that nobody reads is left
    out."""
    found = []
    for position, operation in enumerate(region.operations):
        if operation.name not in RING_LOADS:
            continue
        views, tensor = {operation.result}, operation.result
        encoding = slot_type(operation).encoding
        inside = [inner for later in region.operations[position + 1 :] for inner in later.walk()]
        for inner in inside:
            if is_view(inner, views, tensor, encoding):
                views.add(inner.result)
        readers, in_registers, by_threads = [], False, False
        for later, outer in enumerate(region.operations[position + 1 :], position + 1):
            for inner in outer.walk():
                if inner.result_in(views) or not views.intersection(inner.operands):
                    continue
                readers.append(later)
                in_registers |= tensor in inner.operands
                by_threads |= tensor in inner.operands or inner.name == "ttg.local_load"
        if readers:
            names, span = frozenset(views - {tensor}), (min(readers), max(readers))
            number = load_number(operation)
            found.append(BlockUse(number, operation, position, *span, names, in_registers, by_threads))
    return found


def is_view(operation: IrOperation, views: set[str], tensor: str, encoding: str) -> bool:
    """Whether ``operation`` is only another view of a slot. A copy of the loaded tensor into shared memory of the
    slot's own layout is the slot itself."""
    if operation.name not in VIEWS or not views.intersection(operation.operands):
        return False
    if tensor not in operation.operands:
        return True
    result = parse_type(find_types(operation.signature)[-1])
    return operation.name == "ttg.local_alloc" and result is not None and result.encoding == encoding


def slot_type(load: IrOperation) -> ShapedType:
    """The shared memory that one numbered ``load`` fills. Raises :class:`CannotPlan` where its layout is not known."""
    tensor = parse_type(find_types(load.signature)[-1])
    assert tensor is not None
    if SLOT not in load.attributes:
        raise CannotPlan("a block of more dimensions than its result, read in registers", TMA_LOAD)
    rest = (load.attributes[SLOT], "#smem", "mutable")
    return ShapedType("!ttg.memdesc", tensor.shape, tensor.element, rest)


def _filled(load: IrOperation) -> tuple[str, ShapedType, int, tuple[int, ...]]:
    """How a slot is filled, what it is, who fills and who reads it."""
    return load.name, slot_type(load), filler_of(load), _readers(load)


def _readers(load: IrOperation) -> tuple[int, ...]:
    """The partitions that read the slot of ``load``."""
    if READERS not in load.attributes:
        return (0,)
    return tuple(int(n) for n in load.attributes[READERS].partition(":")[2].rstrip("> ").split(",") if n.strip())


def plan_rings(module: Module, partitioning: Partitioning) -> Rings:
    """The rings of the module's kernel under ``partitioning``, its loads numbered. Raises :class:`CannotPlan` for loads
    under control flow other than loops and branches."""
    rings: dict[int, LoadRing] = {}
    groups: dict[int, Group] = {}
    depth_of = _depths(module.function, partitioning)
    shared: list[_Block] = []
    for region, operation, around in blocks(module.function):
        reads = [use for use in uses(region) if _readers(use.operation)]
        inside_loop = [outer for outer in (*around, operation) if outer.name in LOOPS]
        if not reads:
            continue
        where, told = source_line(module, reads[0].operation), short_name(reads[0].operation)
        for outer in (*around, operation):
            if outer.name not in ("tt.func", "scf.if", *LOOPS):
                raise CannotPlan(f"a load inside {outer.name}, which is not specialised", told, where)
        if operation.name == "scf.while" and region is operation.regions[0]:
            raise CannotPlan("a load in the condition of a loop", told, where)
        depth = depth_of[id(inside_loop[-1])] if inside_loop else 1
        spans: dict[tuple[object, ...], list[BlockUse]] = {}
        for use in reads:
            alone = use.load if use.operation.name == CONVERTED else -1
            together = use.first, use.last, filler_of(use.operation), _readers(use.operation), alone
            spans.setdefault(together, []).append(use)
        shape = (depth, tuple(tuple(_filled(use.operation) for use in span) for span in spans.values()))
        former = next((b for b in shared if b.shape == shape and not b.around(around)), None)
        if former is not None and inside_loop:
            for use, ring in zip((u for span in spans.values() for u in span), former.rings, strict=True):
                rings[use.load] = ring
            former.regions.append(region)
            continue
        own = []
        for span in spans.values():
            group = len(groups)
            names = {use.operation.name for use in span}
            groups[group] = Group(
                group, depth, not inside_loop, TMA_LOAD in names, COPY_LOAD in names,
                filler_of(span[0].operation), CONVERTED in names, _readers(span[0].operation),
            )  # fmt: skip
            own += [
                LoadRing(use.load, slot_type(use.operation), depth, group, use.operation.name == COPY_LOAD)
                for use in span
            ]
        rings |= {ring.number: ring for ring in own}
        if inside_loop:
            shared.append(_Block([region], shape, tuple(own)))
    return Rings(rings, groups)


def _depths(function: IrOperation, partitioning: Partitioning) -> dict[int, int]:
    """The slots of each loop that loads, directly or in its branches, by its identity: in the order of the program one
    of its depths each."""
    found: dict[int, int] = {}
    loops = 0
    for operation in function.walk():
        if operation.name in LOOPS and _loads(operation):
            walks = WALK in operation.attributes
            found[id(operation)] = 1 if walks else partitioning.depth(loops)
            loops += not walks
    return found


def _loads(operation: IrOperation) -> bool:
    """Whether ``operation`` holds a load that somebody reads, outside of the loops in it."""
    inside = [inner for region in operation.regions for inner in region.operations if inner.name not in LOOPS]
    return any(uses(region) for region in operation.regions) or any(map(_loads, inside))


@dataclass(frozen=True, eq=False)
class _Block:
    """Blocks one after another that fill the same rings: a later block of the same ``shape`` outside of them joins."""

    regions: list[Region]
    shape: tuple[int, tuple[tuple[tuple[object, ...], ...], ...]]
    rings: tuple[LoadRing, ...]

    def around(self, outer: tuple[IrOperation, ...]) -> bool:
        """Whether one of them is a block of the operations ``outer``, which hold a slot while what is inside runs."""
        return any(region is own for own in self.regions for operation in outer for region in operation.regions)
