"""The producer: the slice of a kernel that its TMA loads need, each load filling a slot of its ring.

The slice is taken of the whole function: loops and branches around loads, their bounds and conditions, and whatever the
coordinates are computed from. Everything else belongs to the consumers. A value that both need is computed twice.
"""

from __future__ import annotations

from warpplan.kernels.compiler import control, turns
from warpplan.kernels.compiler.builder import Builder
from warpplan.kernels.compiler.errors import CannotPlan
from warpplan.kernels.compiler.ir import Module, Operation, Region, is_value
from warpplan.kernels.compiler.locations import source_line
from warpplan.kernels.compiler.names import header_definitions
from warpplan.kernels.compiler.rings import LOAD, Rings, load_number
from warpplan.kernels.compiler.turns import Turns
from warpplan.kernels.compiler.types import find_types, parse_type

PURE_DIALECTS = ("arith.", "math.")
PURE = frozenset(
    {
        "tt.get_program_id", "tt.get_num_programs", "tt.splat", "tt.unsplat", "tt.make_range", "tt.expand_dims",
        "tt.broadcast", "tt.addptr", "tt.bitcast", "tt.int_to_ptr", "tt.ptr_to_int", "tt.make_tensor_descriptor",
        "tt.reduce", "tt.trans", "tt.reshape", "ttg.convert_layout", "tt.load", "ub.poison",
    }
)  # fmt: skip
SCALAR = frozenset({"scf.for", "scf.if", "tt.make_tensor_descriptor"})
"""Operations whose tensor types are not of values that they compute."""
WRITES = frozenset({"tt.store", "tt.descriptor_store", "tt.descriptor_reduce", "tt.atomic_rmw", "tt.atomic_cas"})


class Slice:
    """What the loads of ``module``'s kernel need. ``kept`` are operations, by identity; ``carried`` the positions that
    a loop or branch keeps of what it carries or returns. Raises :class:`CannotPlan` where the producer would have to
    do what only the program's own order makes right."""

    def __init__(self, module: Module, rings: Rings) -> None:
        self.module = module
        self.rings = rings
        self.kept: set[int] = set()
        self.carried: dict[int, set[int]] = {}
        self._definition: dict[str, tuple[Operation, int | None]] = {}
        self._around: dict[int, tuple[Operation, ...]] = {}
        self._index(module.function, ())
        self._needed: set[str] = set()
        self._work: list[str] = []
        for operation in module.function.walk():
            if operation.name == LOAD and load_number(operation) in rings.rings:
                self._enclose(operation)
                self._work += operation.operands
        while self._work:
            name = self._work.pop()
            if name not in self._needed:
                self._needed.add(name)
                self._need(name)
        self._refuse_hazards()

    @property
    def has_tensors(self) -> bool:
        """Whether some kept operation works on a tensor, which takes all the warps its layout was made for."""
        for operation in self.module.function.walk():
            if id(operation) in self.kept and operation.name not in SCALAR:
                kinds = (parse_type(text) for text in find_types(operation.signature))
                if any(kind is not None and kind.kind == "tensor" for kind in kinds):
                    return True
        return False

    def _index(self, operation: Operation, around: tuple[Operation, ...]) -> None:
        self._around[id(operation)] = around
        for i, name in enumerate(operation.defined):
            self._definition[name] = (operation, i)
        if operation.name == "scf.for":
            loop = control.read_loop(operation)
            self._definition[loop.variable] = (operation, None)
            for i, (inside, *_) in enumerate(loop.carried):
                self._definition[inside] = (operation, i)
        for region in operation.regions:
            for inner in region.operations:
                self._index(inner, (*around, operation))

    def _enclose(self, operation: Operation) -> None:
        for outer in self._around[id(operation)]:
            if outer.name == "tt.func" or id(outer) in self.kept:
                continue
            if outer.name not in ("scf.for", "scf.if"):
                raise self._refusal(outer, "what its loads need is computed under control flow that is not specialised")
            self.kept.add(id(outer))
            if outer.name == "scf.for":
                loop = control.read_loop(outer)
                self._work += [loop.lower, loop.upper, loop.step]
            else:
                self._work.append(control.read_branch(outer).condition)

    def _need(self, name: str) -> None:
        if name not in self._definition:
            return  # an argument of the function
        operation, position = self._definition[name]
        if operation.name == "scf.for":
            self.kept.add(id(operation))
            loop = control.read_loop(operation)
            self._work += [loop.lower, loop.upper, loop.step]
            if position is not None and position not in self.carried.setdefault(id(operation), set()):
                self.carried[id(operation)].add(position)
                self._work += [loop.carried[position][1], loop.yielded[position]]
        elif operation.name == "scf.if":
            assert position is not None
            self.kept.add(id(operation))
            branch = control.read_branch(operation)
            self.carried.setdefault(id(operation), set()).add(position)
            yields = [control.yielded(region)[position] for region in (branch.then, branch.otherwise)]
            self._work += [branch.condition, *yields]
        else:
            kind = operation.name.strip('"')
            if kind not in PURE and not kind.startswith(PURE_DIALECTS):
                raise self._refusal(operation, "the address of a TMA load depends on it")
            self.kept.add(id(operation))
            own = {token for inner in operation.walk() for token in (*inner.defined, *header_definitions(inner))}
            labels = {t for region in operation.regions for t in region.label.split() if is_value(t)}
            self._work += [v for inner in operation.walk() for v in inner.operands if v not in own | labels]
        self._enclose(operation)

    def _refuse_hazards(self) -> None:
        """The producer runs ahead of the consumers: it must not read what they write."""
        writers = [op for op in self.module.function.walk() if op.name in WRITES]
        for operation in writers:
            if operation.name == "tt.atomic_cas":
                raise self._refusal(operation, "programs wait for one another; loads that run ahead would not")
        written = {base for operation in writers for base in self._bases(operation.operands[0])}
        for operation in self.module.function.walk():
            kept_read = operation.name == "tt.load" and id(operation) in self.kept
            if not kept_read and operation.name != LOAD:
                continue
            both = written.intersection(self._bases(operation.operands[0]))
            if both:
                what = ", ".join(sorted(both))
                raise self._refusal(operation, f"the kernel also writes {what}; loads that run ahead could miss it")

    def _bases(self, name: str) -> set[str]:
        """The function arguments that pointer or descriptor ``name`` may come from."""
        bases, seen, work = set(), set(), [name]
        while work:
            value = work.pop()
            if value in seen:
                continue
            seen.add(value)
            if value not in self._definition:
                bases.add(value)
                continue
            operation, position = self._definition[value]
            if operation.name == "scf.for":
                loop = control.read_loop(operation)
                if position is not None:
                    work += [loop.carried[position][1], loop.yielded[position]]
            elif operation.name == "scf.if":
                assert position is not None
                branch = control.read_branch(operation)
                work += [control.yielded(region)[position] for region in (branch.then, branch.otherwise)]
            elif operation.name == "arith.select":
                work += operation.operands[1:]
            elif operation.name == "tt.int_to_ptr":
                bases.add("memory behind a whole number")
            elif operation.name == "tt.load":
                bases.add("memory behind a loaded pointer")
            elif operation.operands:
                work.append(operation.operands[0])
        return bases

    def _refusal(self, operation: Operation, reason: str) -> CannotPlan:
        return CannotPlan(reason, operation.name, source_line(self.module, operation))


class Producer:
    """Writes the producer's body from ``part``."""

    def __init__(self, part: Slice, builder: Builder) -> None:
        self.slice, self.rings, self.builder = part, part.rings, builder
        self.names: dict[str, str] = {}

    def body(self) -> list[Operation]:
        function = self.slice.module.function.regions[0]
        region, _ = self._region(function, turns.start(self.builder, self.rings))
        return [*self.builder.constants.values(), *region.operations]

    def _region(self, region: Region, now: Turns) -> tuple[Region, Turns]:
        out: list[Operation] = []
        acquired: dict[int, tuple[str, str]] = {}
        for operation in region.operations:
            if operation.name == LOAD and load_number(operation) in self.rings.rings:
                now = self._load(out, operation, now, acquired)
            elif operation.name == "scf.for" and id(operation) in self.slice.kept:
                loop = control.read_loop(operation.substituted(self.names, deep=False))
                positions = self.slice.carried.get(id(operation), set())
                loop.carried = [c for i, c in enumerate(loop.carried) if i in positions]
                keys = turns.groups_inside(loop.body, self.rings)
                new, renamed, now = turns.carry_loop(loop, now, keys, self.builder, self._pruned(positions))
                self.names |= renamed
                turns.leave_alone(new)
                out.append(new)
            elif operation.name == "scf.if" and id(operation) in self.slice.kept:
                branch = control.read_branch(operation.substituted(self.names, deep=False))
                positions = self.slice.carried.get(id(operation), set())
                branch.results = [r for i, r in enumerate(branch.results) if i in positions]
                keys = turns.groups_of_branch(branch, self.rings)
                new, renamed, now = turns.carry_branch(branch, now, keys, self.builder, self._pruned(positions))
                self.names |= renamed
                out.append(new)
            elif id(operation) in self.slice.kept:
                out.append(operation.substituted(self.names))
        return Region(out, region.label), now

    def _pruned(self, positions: set[int]) -> turns.Emit:
        """Emit a region and keep only ``positions`` of what it yields."""

        def emit(region: Region, now: Turns) -> tuple[Region, Turns]:
            new, after = self._region(region, now)
            last = region.operations[-1] if region.operations else None
            if last is not None and last.name == "scf.yield":
                values = zip(last.operands, control.yield_types(last), strict=True)
                kept = [(self.names.get(v, v), t) for i, (v, t) in enumerate(values) if i in positions]
                new.operations.append(control.yield_of(kept, last.location))
            return new, after

        return emit

    def _load(
        self, out: list[Operation], operation: Operation, now: Turns, acquired: dict[int, tuple[str, str]]
    ) -> Turns:
        """Fill a slot. The first load of a group waits until it is free and says how many bytes all of them bring."""
        build, number = self.builder, load_number(operation)
        ring, group = self.rings.rings[number], self.rings.group_of(number)
        if group.number not in acquired:
            slot, phase = now[group.number]
            if not group.once:
                empty = build.barrier_at(out, f"%wp_empty{group.number}", group.depth, slot)
                flipped = build.op(out, f"$ = arith.xori {phase}, {build.constant(1)} : i32")
                build.wait(out, empty, flipped)
                now = now | {group.number: build.next_turn(out, slot, phase, group.depth)}
            full = build.barrier_at(out, f"%wp_full{group.number}", group.depth, slot)
            size = sum(member.slot.bytes for member in self.rings.of_group(group.number))
            build.op(out, f"ttng.barrier_expect {full}, {size}, {build.true()} : {build.barrier}", operation.location)
            acquired[group.number] = (full, slot)
        full, slot = acquired[group.number]
        place = build.slot_at(out, ring.name, ring.type, slot)
        descriptor, *coordinates = operation.substituted(self.names).operands
        kind = find_types(operation.signature)[0]
        build.op(
            out,
            f"ttng.async_tma_copy_global_to_local {descriptor}[{', '.join(coordinates)}] {place}, {full}, "
            f"{build.true()} : {kind}, {build.barrier} -> {ring.slot}",
            operation.location,
        )
        return now
