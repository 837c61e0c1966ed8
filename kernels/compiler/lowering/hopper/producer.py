"""The producer: the slice of a kernel that its loads need, each load filling a slot of its ring.

A TMA load is one thread's to issue. What TMA cannot load all threads of the producer copy by ``cp.async``, each the
addresses that it computed, and arrive on the slot's barrier when their copies have landed: once a slot, after the last
copy into the rings of its group, for an arrival waits for all copies of its thread (PTX ISA,
``cp.async.mbarrier.arrive.noinc``).

The slice is taken of the whole function: loops and branches around loads, their bounds and conditions, and whatever the
coordinates are computed from. Everything else belongs to the consumers. A value that both need is computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from warpplan.kernels.compiler.analysis.copies.addresses import may_repeat, read_by, steered_by
from warpplan.kernels.compiler.analysis.load_hazards import refuse_hazards
from warpplan.kernels.compiler.analysis.operation_kinds import (
    CONTROL,
    COPY_LOAD,
    LOOPS,
    RING_LOADS,
    short_name,
)
from warpplan.kernels.compiler.analysis.value_flow import CARRIED, HANDED, definitions
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.lowering.hopper import ring_positions
from warpplan.kernels.compiler.lowering.hopper.load_rings import DESCRIBE, Rings, load_number
from warpplan.kernels.compiler.lowering.hopper.partition_builder import Builder
from warpplan.kernels.compiler.lowering.hopper.ring_positions import RingPositions
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region
from warpplan.kernels.compiler.ttgir.source_locations import source_line
from warpplan.kernels.compiler.ttgir.types import ShapedType, find_types, parse_type

_T = TypeVar("_T")
SCALAR = frozenset({"scf.for", "scf.while", "scf.if", "scf.condition", "scf.yield", "tt.make_tensor_descriptor"})
"""Operations whose tensor types are not of values that they compute."""


class Slice:
    """What the loads of ``module``'s kernel need. ``kept`` are operations, by identity; ``carried`` the positions that
    a loop keeps of what it carries, ``handed`` those that a branch or a ``scf.while`` keeps of what it returns. Raises
    :class:`CannotPlan` where the producer would have to do what only the program's own order makes right."""

    def __init__(self, module: Module, rings: Rings) -> None:
        self.module = module
        self.rings = rings
        self.kept: set[int] = set()
        self.carried: dict[int, set[int]] = {}
        self.handed: dict[int, set[int]] = {}
        self._definitions = definitions(module.function)
        self._around: dict[int, tuple[IrOperation, ...]] = {}
        self._nest(module.function, ())
        self._needed: set[str] = set()
        self._work: list[str] = []
        for operation in module.function.walk():
            if operation.name in RING_LOADS and load_number(operation) in rings.rings:
                self._enclose(operation)
                self._work += operation.operands
        while self._work:
            name = self._work.pop()
            if name not in self._needed:
                self._needed.add(name)
                self._need(name)
        refuse_hazards(module, self._definitions, self.kept)

    @property
    def copies(self) -> bool:
        """Whether ``cp.async`` fills some of its rings."""
        return any(group.copies for group in self.rings.groups.values())

    @property
    def has_tensors(self) -> bool:
        """Whether it works on tensors, which takes all the warps that their layouts were made for."""
        if self.copies:
            return True
        for operation in self.module.function.walk():
            if id(operation) in self.kept and operation.name not in SCALAR:
                kinds = (parse_type(text) for text in find_types(operation.signature))
                if any(kind is not None and kind.kind == "tensor" for kind in kinds):
                    return True
        return False

    def describes_again(self, operation: IrOperation) -> bool:
        """Whether ``operation`` makes a descriptor in a loop: each time in the same place in memory."""
        return operation.name == DESCRIBE and any(outer.name in LOOPS for outer in self._around[id(operation)])

    def _nest(self, operation: IrOperation, around: tuple[IrOperation, ...]) -> None:
        self._around[id(operation)] = around
        for region in operation.regions:
            for inner in region.operations:
                self._nest(inner, (*around, operation))

    def _enclose(self, operation: IrOperation) -> None:
        for outer in self._around[id(operation)]:
            if outer.name != "tt.func":
                self._keep(outer)

    def _keep(self, operation: IrOperation) -> None:
        """Keep control flow, and with it what steers it."""
        if id(operation) in self.kept:
            return
        self.kept.add(id(operation))
        if operation.name not in CONTROL:
            raise self._refusal(operation, "what its loads need is computed under control flow that is not specialised")
        self._work += steered_by(operation)

    def _need(self, name: str) -> None:
        if name not in self._definitions:
            return  # an argument of the function
        made = self._definitions[name]
        operation = made.operation
        if operation.name in CONTROL:
            self._keep(operation)
            self._work += made.sources
            for which, positions in ((CARRIED, self.carried), (HANDED, self.handed)):
                if made.kind == which:
                    positions.setdefault(id(operation), set()).add(made.position)
        else:
            if not may_repeat(operation):
                raise self._refusal(operation, "the address of a load depends on it")
            self.kept.add(id(operation))
            self._work += read_by(operation)
        self._enclose(operation)

    def _refusal(self, operation: IrOperation, reason: str) -> CannotPlan:
        return CannotPlan(reason, short_name(operation), source_line(self.module, operation))


@dataclass
class _Filling:
    """A slot of a group: its barrier, its place, how many loads are still to fill it."""

    full: str
    slot: str
    left: int


class ProducerWriter:
    """Writes the producer's body from ``part``."""

    def __init__(self, part: Slice, builder: Builder) -> None:
        self.slice, self.rings, self.builder = part, part.rings, builder
        self.names: dict[str, str] = {}
        self.filling: RingPositions = {}
        """The groups of which some loads are still to come, and where they were before."""

    def body(self) -> list[IrOperation]:
        function = self.slice.module.function.regions[0]
        region, _ = self._region(function, ring_positions.start(self.builder, self.rings))
        return [*self.builder.constants.values(), *region.operations]

    def _region(self, region: Region, now: RingPositions) -> tuple[Region, RingPositions]:
        out: list[IrOperation] = []
        acquired: dict[int, _Filling] = {}
        landed = False
        for operation in region.operations:
            landed = landed and operation.name not in (*RING_LOADS, *CONTROL)
            if operation.name in RING_LOADS and load_number(operation) in self.rings.rings:
                now = self._load(out, operation, now, acquired)
            elif id(operation) not in self.slice.kept:
                continue
            elif operation.name in CONTROL:
                new, renamed, now = self._control(operation, now)
                self.names |= renamed
                out.append(new)
            else:
                if self.slice.describes_again(operation) and not landed:
                    self._land(out, now)
                    landed = True
                out.append(operation.substituted(self.names))
        return Region(out, region.label), now

    def _control(self, operation: IrOperation, now: RingPositions) -> tuple[IrOperation, dict[str, str], RingPositions]:
        """A loop or branch with what the loads need of it, the positions carried through."""
        read, build = operation.substituted(self.names, deep=False), self.builder
        carried, handed = (which.get(id(operation), set()) for which in (self.slice.carried, self.slice.handed))
        emit = self._pruned(carried, handed)
        if operation.name == "scf.for":
            loop = control.read_loop(read)
            loop.carried = _at(loop.carried, carried)
            keys = ring_positions.groups_inside(loop.body, self.rings)
            made = ring_positions.carry_loop(loop, now, keys, build, emit)
            ring_positions.leave_alone(made[0])
            return made
        if operation.name == "scf.while":
            repeat = control.read_while(read)
            repeat.carried, repeat.handed = _at(repeat.carried, carried), _at(repeat.handed, handed)
            return ring_positions.carry_while(
                repeat, now, ring_positions.groups_inside(repeat.after, self.rings), build, emit
            )
        branch = control.read_branch(read)
        branch.results = _at(branch.results, handed)
        emit = self._pruned(handed, handed)
        return ring_positions.carry_branch(
            branch, now, ring_positions.groups_of_branch(branch, self.rings), build, emit
        )

    def _pruned(self, carried: set[int], handed: set[int]) -> ring_positions.Emit:
        """Emit a region that yields only what is kept of what is ``carried``, or its condition of what is ``handed``
        on."""

        def emit(region: Region, now: RingPositions) -> tuple[Region, RingPositions]:
            new, after = self._region(region, now)
            last = region.operations[-1] if region.operations else None
            if last is not None and last.name in ("scf.yield", "scf.condition"):
                positions = handed if last.name == "scf.condition" else carried
                ending = control.handing(last, _at(control.handed(last), positions))
                new.operations.append(ending.substituted(self.names))
            return new, after

        return emit

    def _land(self, out: list[IrOperation], now: RingPositions) -> None:
        """Wait until every copy under way is done: none may still read the descriptor that is made anew."""
        for group, (slot, phase) in (now | self.filling).items():
            depth = self.rings.groups[group].depth
            for i in range(depth):
                place = self.builder.constant(i)
                full = self.builder.barrier_at(out, f"%wp_full{group}", depth, place)
                before = self.builder.op(out, f"$ = arith.cmpi sle, {slot}, {place} : i32")
                lap = self.builder.op(out, f"$ = arith.extui {before} : i1 to i32")
                self.builder.wait(out, full, self.builder.op(out, f"$ = arith.xori {phase}, {lap} : i32"))

    def _load(
        self, out: list[IrOperation], operation: IrOperation, now: RingPositions, acquired: dict[int, _Filling]
    ) -> RingPositions:
        """Fill a slot. The first load of a group waits until it is free and says how many bytes all of them bring."""
        build, number = self.builder, load_number(operation)
        ring, group = self.rings.rings[number], self.rings.group_of(number)
        if group.number not in acquired:
            slot, phase = self.filling[group.number] = now[group.number]
            if not group.once:
                empty = build.barrier_at(out, f"%wp_empty{group.number}", group.depth, slot)
                flipped = build.op(out, f"$ = arith.xori {phase}, {build.constant(1)} : i32")
                build.wait(out, empty, flipped)
                now = now | {group.number: build.next_position(out, slot, phase, group.depth)}
            full = build.barrier_at(out, f"%wp_full{group.number}", group.depth, slot)
            members = self.rings.of_group(group.number)
            size = sum(member.slot.bytes for member in members if not member.copied)
            if group.boxes:
                expect = f"ttng.barrier_expect {full}, {size}, {build.true()} : {build.barrier}"
                build.op(out, expect, operation.location)
            acquired[group.number] = _Filling(full, slot, len(members))
        filling = acquired[group.number]
        filling.left -= 1
        full, slot = filling.full, filling.slot
        place = build.slot_at(out, ring.name, ring.type, slot)
        if operation.name == COPY_LOAD:
            self._copy(out, operation, place, ring.slot)
        else:
            self._fetch(out, operation, place, full, ring.slot)
        if not filling.left:
            del self.filling[group.number]
            if group.copies:
                arrive = f"ttng.async_copy_mbarrier_arrive {full} {{noIncrement}} : {build.barrier}"
                build.op(out, arrive, operation.location)
        return now

    def _fetch(self, out: list[IrOperation], load: IrOperation, place: str, full: str, slot: ShapedType) -> None:
        """Issue a TMA load into ``place``."""
        build = self.builder
        descriptor, *coordinates = load.substituted(self.names).operands
        kind = find_types(load.signature)[0]
        build.op(
            out,
            f"ttng.async_tma_copy_global_to_local {descriptor}[{', '.join(coordinates)}] {place}, {full}, "
            f"{build.true()} : {kind}, {build.barrier} -> {slot}",
            load.location,
        )

    def _copy(self, out: list[IrOperation], load: IrOperation, place: str, slot: ShapedType) -> None:
        """Copy a tile of addresses into ``place``; what its mask leaves out becomes 0."""
        pointers, *mask = load.substituted(self.names).operands
        masked = "".join(f" mask {name}" for name in mask)
        kind = find_types(load.signature)[0]
        text = f"$ = ttg.async_copy_global_to_local {pointers}, {place}{masked} : {kind} -> {slot}"
        self.builder.op(out, text, load.location)


def _at(values: list[_T], positions: set[int]) -> list[_T]:
    return [value for i, value in enumerate(values) if i in positions]
