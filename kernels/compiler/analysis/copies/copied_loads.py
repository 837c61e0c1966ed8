"""Which loads through pointers a producer can copy by ``cp.async``, and the kernel with those marked.

    %a = tt.load %pointers, %mask, %zeros   ──>   %a = warpplan.copy %pointers, %mask

A marked load fills a slot of a ring, as a TMA load does, whatever its addresses are: rows looked up in memory, a mask
that is no bound, an index that is divided. What is put outside of the mask is 0 (``cp.async`` fills with zeros); where
the kernel wants another value the consumers put it there. There are two levels, because loads that feed no product cost
the producer instructions and save the consumers a wait:

    1   tiles that reach an operand of a product in the same iteration
    2   those, and what else the same blocks of a loop read through pointers: scales, biases, rows' statistics

A load stays where it is if a producer could not run ahead with it: its address needs what the consumers compute, the
kernel writes what it reads, it is volatile, or it has no 4 consecutive bytes a thread (PTX ISA, ``cp.async``).
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from warpplan.kernels.compiler.analysis.copies.addresses import Address, address, nesting
from warpplan.kernels.compiler.analysis.copies.lane_runs import LaneRunReader, element_of
from warpplan.kernels.compiler.analysis.copies.slot_layouts import mark_passes
from warpplan.kernels.compiler.analysis.copies.thread_elements import neighbours
from warpplan.kernels.compiler.analysis.load_hazards import WRITES, cache_modifier, is_volatile
from warpplan.kernels.compiler.analysis.operation_kinds import (
    COPY_LOAD,
    DOTS,
    EVERYTHING,
    LOOPS,
    OPERANDS,
    TMA_LOAD,
    VECTOR,
    vector_of,
)
from warpplan.kernels.compiler.analysis.value_flow import definitions, origins
from warpplan.kernels.compiler.ttgir.functions import replace_function
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region
from warpplan.kernels.compiler.ttgir.names import unique_names, with_suffix
from warpplan.kernels.compiler.ttgir.parsing import parse_operation
from warpplan.kernels.compiler.ttgir.types import ShapedType, find_types, parse_type

LEAST_BYTES, MOST_BYTES = 4, 16
"""Of one ``cp.async`` (PTX ISA)."""
_THROUGH = frozenset(
    {
        "tt.trans", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.fp_to_fp", "tt.bitcast", "tt.join", "tt.split",
        "tt.elementwise_inline_asm", "tt.extern_elementwise", "tt.precise_divf", "tt.clampf", "ttg.convert_layout",
        "ttg.local_alloc", "ttg.local_load", "ttg.memdesc_trans", "ttg.memdesc_reshape",
    }
)  # fmt: skip
"""Operations, beside arithmetic, between a load and the product that it feeds."""


@dataclass(frozen=True)
class Uncopied:
    """Why ``load`` stays with the consumers; ``at`` is the operation at fault, the load itself where it is none
    other; ``feeds_product`` as for level 1."""

    load: IrOperation
    reason: str
    at: IrOperation
    feeds_product: bool

    def told(self, line: str) -> str:
        """The reason; with what is at fault and its ``line`` where that is elsewhere."""
        elsewhere = f" ({self.at.name}, {line})" if line and self.at is not self.load else ""
        return f"no copy by cp.async can stand for it: {self.reason}{elsewhere}"


@dataclass
class Copyable:
    """The loads of a kernel that can be copied: by identity, with their level and the elements of one copy."""

    levels: dict[int, int] = field(default_factory=dict)
    vectors: dict[int, int] = field(default_factory=dict)
    refused: list[Uncopied] = field(default_factory=list)


def with_copies(module: Module, level: int) -> Module:
    """A copy of ``module`` in which the loads up to ``level`` that can be copied are marked; its kernel's names are
    unique. At level 0, or where there is none, the kernel is as it was."""
    module = Module(list(module.aliases), copy.deepcopy(module.operation), module.locations)
    function = unique_names(module.function)
    replace_function(module, function)
    if level:
        found = copyable(module)
        wanted = {key for key, least in found.levels.items() if least <= level}
        replace_function(module, unique_names(_marked(function, wanted, found.vectors)))
        mark_passes(module)
    return module


def copied_vectors(module: Module) -> list[int]:
    """For each marked load of ``module``'s kernel the copies of at most 16 bytes that it takes."""
    found = []
    for load in module.function.walk():
        if load.name == COPY_LOAD:
            kind = _tile(load)
            assert kind is not None
            found.append(math.prod(kind.shape) // vector_of(load))
    return found


def copyable(module: Module) -> Copyable:
    """Every load through pointers in the loops of ``module``'s kernel, whose names are unique: copied or refused."""
    found = Copyable()
    reader = _CopyReader(module)
    blocks = list(_loop_blocks(module.function))
    for _, loads in blocks:
        for load in loads:
            feeds = reader.feeds_product(load)
            try:
                found.vectors[id(load)] = reader.read(load)
            except _Stays as why:
                found.refused.append(Uncopied(load, why.reason, why.at, feeds))
                continue
            found.levels[id(load)] = OPERANDS if feeds else EVERYTHING
    # What another copy's address is made of is read by the producer itself, before that copy.
    while True:
        copied = [load for _, loads in blocks for load in loads if id(load) in found.levels]
        early = {id(op) for load in copied for op in reader.needs(load)} | reader.described
        if early.isdisjoint(found.levels):
            break
        for key in early & found.levels.keys():
            del found.levels[key]
    for block, loads in blocks:
        if any(op.name == TMA_LOAD or found.levels.get(id(op)) == OPERANDS for op in block.operations):
            continue
        for load in loads:
            if found.levels.get(id(load)) == EVERYTHING:
                del found.levels[id(load)]
    return found


def _loop_blocks(function: IrOperation) -> Iterator[tuple[Region, list[IrOperation]]]:
    """Every block inside of a loop, its loads of tiles through pointers with it."""

    def inside(operation: IrOperation, looped: bool) -> Iterator[tuple[Region, list[IrOperation]]]:
        looped = looped or operation.name in LOOPS
        for number, region in enumerate(operation.regions):
            if operation.name == "scf.while" and not number:
                continue  # its condition, before the body
            if looped:
                yield region, [op for op in region.operations if op.name == "tt.load" and _tile(op) is not None]
            for inner in region.operations:
                if inner.name in (*LOOPS, "scf.if"):
                    yield from inside(inner, looped)

    yield from inside(function, False)


def _tile(load: IrOperation) -> ShapedType | None:
    kinds = find_types(load.signature)
    return parse_type(kinds[0]) if kinds else None


class _Stays(Exception):
    """Why a load is not copied."""

    def __init__(self, reason: str, at: IrOperation) -> None:
        super().__init__(reason)
        self.reason, self.at = reason, at


class _CopyReader:
    def __init__(self, module: Module) -> None:
        self.aliases, function = module.aliases, module.function
        self.runs = LaneRunReader(function)
        self.defined = definitions(function)
        self.around = nesting(function)
        operations = list(function.walk())
        self.written = {
            base for op in operations if op.name in WRITES for base in origins(op.operands[0], self.defined)
        }
        self.readers: dict[str, list[IrOperation]] = {}
        for operation in operations:
            for name in operation.operands:
                self.readers.setdefault(name, []).append(operation)
        self._addresses: dict[int, Address] = {}
        self.described = {id(op) for load in operations if load.name == TMA_LOAD for op in self.needs(load)}
        """What the addresses of TMA loads are computed by."""

    def address(self, load: IrOperation) -> Address:
        if id(load) not in self._addresses:
            self._addresses[id(load)] = address(load, self.defined, self.around)
        return self._addresses[id(load)]

    def needs(self, load: IrOperation) -> tuple[IrOperation, ...]:
        """The operations that the address of ``load`` is computed by."""
        return self.address(load).operations

    def read(self, load: IrOperation) -> int:
        """The elements of one copy. Raises :class:`_Stays`."""
        kind = _tile(load)
        assert kind is not None
        element = element_of(load)
        if element == "i1" or element.startswith("!tt.ptr"):
            raise _Stays(f"its elements are {element}", load)
        if is_volatile(load) or cache_modifier(load) == "cv":
            raise _Stays("it is to be read again each time, past every cache", load)
        late = self.address(load).late
        if late is not None:
            raise _Stays("its address needs what the consumers compute", late)
        for read in (load, *(op for op in self.needs(load) if op.name == "tt.load")):
            both = self.written & origins(read.operands[0], self.defined)
            if both:
                raise _Stays(f"the kernel also writes {', '.join(sorted(both))}, which it could miss", read)
        size = parse_type(f"tensor<1x{element}>")
        assert size is not None
        width = size.element_bits // 8
        vector = self._vector(load, kind, width)
        if vector * width < LEAST_BYTES:
            raise _Stays(f"a thread has {vector * width} consecutive bytes of it, {LEAST_BYTES} are needed", load)
        return vector

    def _vector(self, load: IrOperation, kind: ShapedType, width: int) -> int:
        """Elements of one copy: those that lie one after the other, that a thread has, and that 16 bytes hold."""
        pointers, mask = load.operands[0], (load.operands[1:2] or [""])[0]
        dim, most = neighbours(kind.encoding, self.aliases, len(kind.shape))
        run = self.runs.vector(pointers, mask, dim, width)
        return min(run, most, max(1, MOST_BYTES // width))

    def feeds_product(self, load: IrOperation) -> bool:
        """Whether ``load`` reaches an operand of a product within one iteration of its innermost loop."""
        loop = next(op for op in reversed(self.around[id(load)]) if op.name in LOOPS)
        here = {id(operation) for operation in loop.walk()}
        seen: set[str] = set()
        waiting = list(load.defined)
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            for reader in self.readers.get(value, ()):
                if id(reader) not in here:
                    continue
                if reader.name in DOTS and value in reader.operands[:2]:
                    return True
                if reader.name in _THROUGH or reader.name.startswith(("arith.", "math.")):
                    waiting += reader.defined
        return False


def _marked(function: IrOperation, wanted: set[int], vectors: dict[int, int]) -> IrOperation:
    """``function`` with the loads ``wanted``, by identity, as copies."""
    constants = {op.result: op for op in function.walk() if op.name == "arith.constant" and op.results}

    def region(old: Region) -> Region:
        new = Region(label=old.label)
        for operation in old.operations:
            new.operations += _copied(operation, constants, vectors) if id(operation) in wanted else [inner(operation)]
        return new

    def inner(operation: IrOperation) -> IrOperation:
        if operation.regions:
            operation.parts = [region(part) if isinstance(part, Region) else part for part in operation.parts]
        return operation

    return inner(function)


def _copied(load: IrOperation, constants: dict[str, IrOperation], vectors: dict[int, int]) -> list[IrOperation]:
    """``load`` as a copy, and what puts another value than 0 where its mask leaves out."""
    pointers, *rest = load.operands
    kind = _tile(load)
    assert kind is not None
    tensor = replace(kind, element=element_of(load))
    other = rest[1] if len(rest) > 1 and not _is_zero(constants.get(rest[1])) else ""
    result = with_suffix(load.result, "_copied") if other else load.result
    mask = "".join(f", {name}" for name in rest[:1])
    text = f"{result} = {COPY_LOAD} {pointers}{mask} {{{VECTOR} = {vectors[id(load)]} : i64}} : {kind} -> {tensor}"
    out = [parse_operation(text)]
    if other:
        lanes = replace(tensor, element="i1")
        out.append(parse_operation(f"{load.result} = arith.select {rest[0]}, {result}, {other} : {lanes}, {tensor}"))
    for operation in out:
        operation.location = load.location
    return out


def _is_zero(constant: IrOperation | None) -> bool:
    if constant is None:
        return False
    found = re.match(r"dense<(-?[\d.]+(?:[eE][+-]?\d+)?)>", "".join(constant.tokens))
    return found is not None and float(found[1]) == 0 and not found[1].startswith("-")
