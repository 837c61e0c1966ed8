"""A consumer: the whole kernel, its loads replaced by slots of the rings that the producer fills.

A slot is waited for right before it is first read, and given back after it is last read. Where a loop does nothing with
its accumulators but multiply into them, one wgmma group is kept in flight, and a slot is given back an iteration
later, when the multiply that reads it is known to be over.
"""

from __future__ import annotations

from dataclasses import replace

from warpplan.kernels.compiler.analysis.operation_kinds import CONVERTED, RING_LOADS, WGMMA, short_name
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.lowering.hopper import ring_positions
from warpplan.kernels.compiler.lowering.hopper.issue_order.overlap import WAIT_AGAIN
from warpplan.kernels.compiler.lowering.hopper.load_rings import (
    DESCRIBE,
    ROWS,
    VIEWS,
    BlockUse,
    Rings,
    load_number,
    uses,
)
from warpplan.kernels.compiler.lowering.hopper.partition_builder import Builder
from warpplan.kernels.compiler.lowering.hopper.ring_positions import RingPositions
from warpplan.kernels.compiler.lowering.hopper.store_staging import Staging
from warpplan.kernels.compiler.ttgir import control
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region, tokenize
from warpplan.kernels.compiler.ttgir.source_locations import source_line
from warpplan.kernels.compiler.ttgir.types import ShapedType, find_types, parse_type

READS_SHARED = frozenset({WGMMA, "ttng.warp_group_dot_wait", "ttg.local_load"})


class ConsumerWriter:
    """Writes a consumer's body from ``function``, the kernel or its part of the rows; ``module`` knows the source
    lines. Raises :class:`CannotPlan` where a slot is read by an operation that is not known."""

    def __init__(self, module: Module, function: IrOperation, rings: Rings, builder: Builder, in_flight: bool) -> None:
        self.module, self.function, self.rings, self.builder = module, function, rings, builder
        self.in_flight = in_flight
        self.staging = Staging(module, builder, builder.prefix.removeprefix("%wp_"))
        self.names: dict[str, str] = {}
        self.views: dict[str, ShapedType] = {}
        self.slots: dict[str, str] = {}
        """The slot of each load, also while its tensor is in registers."""
        self.kept = {name for op in function.walk() if op.name not in RING_LOADS for name in op.operands}

    def body(self) -> list[IrOperation]:
        now = ring_positions.start(self.builder, self.rings)
        region, _ = self._region(self.function.regions[0], now, None)
        operations = [op for op in region.operations if op.name != "tt.return"]
        if self.staging.buffers:
            self.staging.wait(operations)
        return [*self.builder.constants.values(), *operations]

    def _inside(self, region: Region, now: RingPositions) -> tuple[Region, RingPositions]:
        return self._region(region, now, None)

    def _region(self, region: Region, now: RingPositions, flight: _InFlight | None) -> tuple[Region, RingPositions]:
        out: list[IrOperation] = []
        reads = {use.load: use for use in uses(region)}
        spans = self._spans(list(reads.values()))
        held: dict[int, tuple[str, str]] = {}
        deferred = flight.groups if flight is not None else set()
        for position, operation in enumerate(region.operations):
            for group, (first, _) in spans.items():
                if first == position:
                    self._acquire(out, group, held[group], [u for u in reads.values() if self._group(u) == group])
            if operation.name == CONVERTED:
                now = self._fill(out, operation, now)
            elif operation.name in RING_LOADS:
                if load_number(operation) in reads:  # what nobody reads is left out, and has no ring
                    now = self._take_slot(out, reads[load_number(operation)], now, held)
            elif operation.name in VIEWS and self._is_slot(operation):
                self._write_view(out, operation)
            elif self.staging.suits(operation) and region is not self.function.regions[0]:
                self.staging.store(out, operation.substituted(self.names))
            elif operation.name == "scf.for":
                now = self._loop(out, operation, now)
            elif operation.name == "scf.while":
                now = self._while(out, operation, now)
            elif operation.name == "scf.if":
                now = self._branch(out, operation, now)
            elif operation.name != DESCRIBE or operation.result in self.kept:
                if operation.name == DESCRIBE and region is not self.function.regions[0]:
                    self.staging.wait(out)  # it is made where the last one is, which a store under way may still read
                if WAIT_AGAIN in operation.attributes:
                    self._wait_again(out, operation, reads, held)
                out.append(self._plain(operation, flight))
            if flight is not None and position == flight.last:
                self._wait_but_last(out, flight)
                for group in sorted(deferred):
                    self._release(out, group, held[group][0], before=flight.started(self.builder, out))
            for group, (_, last) in spans.items():
                if last == position and group not in deferred:
                    if any(use.by_threads for use in reads.values() if self._group(use) == group):
                        self._finish_reads(out, operation)
                    self._release(out, group, held[group][0])
        return Region(out, region.label), now

    def _group(self, use: BlockUse) -> int:
        return self.rings.rings[use.load].group

    def _spans(self, reads: list[BlockUse]) -> dict[int, tuple[int, int]]:
        spans: dict[int, tuple[int, int]] = {}
        for use in reads:
            first, last = spans.get(self._group(use), (use.first, use.last))
            spans[self._group(use)] = (min(first, use.first), max(last, use.last))
        return spans

    def _acquire(self, out: list[IrOperation], group: int, position: tuple[str, str], reads: list[BlockUse]) -> None:
        full = self.builder.barrier_at(out, f"%wp_full{group}", self.rings.groups[group].depth, position[0])
        self.builder.wait(out, full, position[1])
        if any(self.rings.rings[use.load].copied and use.views for use in reads):
            # cp.async writes through the generic proxy, wgmma reads through the async one (PTX ISA, "Async proxy").
            self.builder.op(out, "ttng.fence_async_shared {bCluster = false}", reads[0].operation.location)
        for use in reads:
            if use.in_registers:
                slot = self.names[use.operation.result]
                tensor = find_types(use.operation.signature)[-1]
                text = f"$ = ttg.local_load {slot} : {self.views[slot]} -> {tensor}"
                self.names[use.operation.result] = self.builder.op(out, text, use.operation.location)

    def _wait_again(
        self,
        out: list[IrOperation],
        operation: IrOperation,
        reads: dict[int, BlockUse],
        held: dict[int, tuple[str, str]],
    ) -> None:
        """Wait for the slot that ``operation`` reads and this block holds: it cannot have been filled anew."""
        for group in sorted({self._group(u) for u in reads.values() if u.views.intersection(operation.operands)}):
            slot, phase = held[group]
            full = self.builder.barrier_at(out, f"%wp_full{group}", self.rings.groups[group].depth, slot)
            self.builder.wait(out, full, phase)

    def _finish_reads(self, out: list[IrOperation], operation: IrOperation) -> None:
        """Loads through the generic proxy that are under way when a slot is given back may bring what TMA then writes
        to it through the async one: a barrier of threads waits for no load, a fence does (seen in attention forward on
        an H200, triton 3.6.0, where the code had to be fetched: one launch in 20 had rows of the next tile)."""
        self.builder.op(out, "ttng.fence_async_shared {bCluster = false}", operation.location)

    def _release(self, out: list[IrOperation], group: int, slot: str, before: str = "") -> None:
        """Give a slot back; with ``before``, the one before it, where that condition holds."""
        depth = self.rings.groups[group].depth
        if self.rings.groups[group].once:
            return
        if before:
            slot = self.builder.slot_before(out, slot, depth)
        empty = self.builder.barrier_at(out, f"%wp_empty{group}", depth, slot)
        self.builder.arrive(out, empty, before)

    def _take_slot(
        self, out: list[IrOperation], use: BlockUse, now: RingPositions, held: dict[int, tuple[str, str]]
    ) -> RingPositions:
        """At a load: which slot it is, for this block to hold, and where its group goes on."""
        group = self.rings.group_of(use.load)
        if group.number not in held:
            held[group.number] = now[group.number]
            if not group.once:
                now = now | {group.number: self.builder.next_position(out, *now[group.number], group.depth)}
        self._name_slot(out, use, held[group.number][0])
        return now

    def _fill(self, out: list[IrOperation], operation: IrOperation, now: RingPositions) -> RingPositions:
        """At a converted operand: put it into the next slot of its ring. Threads write through the generic proxy, wgmma
        reads through the async one, so each thread fences before the partition arrives."""
        build, number = self.builder, load_number(operation)
        ring, group = self.rings.rings[number], self.rings.group_of(number)
        slot, phase = now[group.number]
        empty = build.barrier_at(out, f"%wp_empty{group.number}", group.depth, slot)
        build.wait(out, empty, build.op(out, f"$ = arith.xori {phase}, {build.constant(1)} : i32"))
        place = build.slot_at(out, ring.name, ring.type, slot)
        value, tensor = operation.substituted(self.names).operands[0], find_types(operation.signature)[-1]
        build.op(out, f"ttg.local_store {value}, {place} : {tensor} -> {ring.slot}", operation.location)
        build.op(out, "ttng.fence_async_shared {bCluster = false}", operation.location)
        build.arrive(out, build.barrier_at(out, f"%wp_full{group.number}", group.depth, slot))
        return now | {group.number: build.next_position(out, slot, phase, group.depth)}

    def _name_slot(self, out: list[IrOperation], use: BlockUse, place: str) -> None:
        ring = self.rings.rings[use.load]
        slot, kind = self.builder.slot_at(out, ring.name, ring.type, place), ring.slot
        rows = use.operation.attributes.get(ROWS)
        if rows is not None:
            dimension, offset, size = (int(n) for n in rows.partition(":")[2].rstrip("> ").split(","))
            shape = tuple(size if i == dimension else n for i, n in enumerate(kind.shape))
            offsets = ", ".join(str(offset if i == dimension else 0) for i in range(len(shape)))
            part = replace(kind, shape=shape, rest=(*kind.rest, "x".join(map(str, kind.shape))))
            slot = self.builder.op(out, f"$ = ttg.memdesc_subslice {slot}[{offsets}] : {kind} -> {part}")
            kind = part
        self.views[slot] = kind
        self.names[use.operation.result] = self.slots[use.operation.result] = slot

    def _slot(self, name: str) -> str:
        return self.slots.get(name, self.names.get(name, name))

    def _is_slot(self, operation: IrOperation) -> bool:
        name = self._slot(operation.operands[0]) if operation.operands else ""
        if name not in self.views:
            return False
        if operation.name != "ttg.local_alloc":
            return True
        made = parse_type(find_types(operation.signature)[-1])
        return made is not None and made.encoding == self.views[name].encoding

    def _write_view(self, out: list[IrOperation], operation: IrOperation) -> None:
        """Another view of a slot. Copying the loaded tensor into shared memory of its own layout is the slot itself."""
        source = self._slot(operation.operands[0])
        if operation.name == "ttg.local_alloc":
            self.names[operation.result] = source
            return
        kind = self.views[source]
        made = parse_type(find_types(operation.signature)[-1])
        assert made is not None
        whole = kind.rest[3] if len(kind.rest) > 3 else ""
        if operation.name == "ttg.memdesc_trans" and whole:
            order = [int(n) for n in operation.attributes["order"].partition(":")[2].rstrip("> ").split(",")]
            sizes = whole.split("x")
            whole = "x".join(sizes[i] for i in order)
        elif operation.name == "ttg.memdesc_subslice":
            whole = whole or "x".join(map(str, kind.shape))
        elif whole:
            raise self._refusal(operation, "a part of a slot cannot be read under another shape")
        result = replace(made, rest=(*made.rest[:2], "mutable", *([whole] if whole else [])))
        new = _retyped(operation.substituted(self.names), {0: str(kind), -1: str(result)})
        out.append(new)
        self.views[operation.result] = result

    def _plain(self, operation: IrOperation, flight: _InFlight | None) -> IrOperation:
        new = operation.substituted(self.names)
        read = {i: str(self.views[name]) for i, name in enumerate(new.operands) if name in self.views}
        if any(name in self.views for inner in new.walk() if inner is not new for name in inner.operands):
            raise self._refusal(operation, "a slot is read inside it")
        if read:
            if operation.name not in READS_SHARED:
                raise self._refusal(operation, "it reads what the producer loads in a way that is not known")
            new = _retyped(new, read)
        if flight is not None and operation.result_in(set(flight.results)):
            new.set_attribute("isAsync", "true")
        new.drop_attribute(WAIT_AGAIN)
        return new

    def _loop(self, out: list[IrOperation], operation: IrOperation, now: RingPositions) -> RingPositions:
        loop = control.read_loop(operation.substituted(self.names, deep=False))
        original = control.read_loop(operation)
        keys = ring_positions.groups_inside(loop.body, self.rings)
        flight = self._kept_in_flight(original, loop) if self.in_flight else None
        new, renamed, after = ring_positions.carry_loop(
            loop, now, keys, self.builder, lambda region, state: self._region(region, state, flight)
        )
        if keys:
            ring_positions.leave_alone(new)
        out.append(new)
        self.names |= renamed
        if flight is not None:
            self._drain(out, original, flight, after)
        return after

    def _while(self, out: list[IrOperation], operation: IrOperation, now: RingPositions) -> RingPositions:
        loop = control.read_while(operation.substituted(self.names, deep=False))
        keys = ring_positions.groups_inside(loop.after, self.rings)
        new, renamed, after = ring_positions.carry_while(loop, now, keys, self.builder, self._inside)
        out.append(new)
        self.names |= renamed
        return after

    def _branch(self, out: list[IrOperation], operation: IrOperation, now: RingPositions) -> RingPositions:
        branch = control.read_branch(operation.substituted(self.names, deep=False))
        keys = ring_positions.groups_of_branch(branch, self.rings)
        new, renamed, after = ring_positions.carry_branch(branch, now, keys, self.builder, self._inside)
        out.append(new)
        self.names |= renamed
        return after

    def _kept_in_flight(self, loop: control.ForLoop, renamed: control.ForLoop) -> _InFlight | None:
        """The multiplies of ``loop`` if all of them only add to accumulators that nothing else in the loop touches, and
        read both operands from slots of rings of two or more."""
        own = loop.body.operations
        dots = [op for op in loop.body.walk() if op.name == WGMMA]
        positions = [i for i, op in enumerate(own) if op.name == WGMMA]
        reads = uses(loop.body)
        if not dots or len(positions) != len(dots) or not reads:
            return None
        if any(self.rings.group_of(use.load).depth < 2 for use in reads):
            return None
        slots = {name for use in reads for name in use.views}
        for dot in dots:
            a, b, accumulator = dot.operands[:3]
            carried = [i for i, (inside, *_) in enumerate(loop.carried) if inside == accumulator]
            touched = [name for op in loop.body.walk() for name in op.operands if name in (accumulator, dot.result)]
            if len(carried) != 1 or touched.count(accumulator) != 1 or touched.count(dot.result) != 1:
                return None
            if loop.yielded[carried[0]] != dot.result or not {a, b} <= slots:
                return None
        read = {name for dot in dots for name in dot.operands[:2]}
        groups = {self._group(use) for use in reads if read & use.views}
        return _InFlight(positions[-1], [dot.result for dot in dots], groups, renamed)

    def _wait_but_last(self, out: list[IrOperation], flight: _InFlight) -> None:
        """Wait until only this iteration's multiplies are running."""
        self._wait(out, flight.results, [self._type_of(out, name) for name in flight.results], len(flight.results))

    def _wait(self, out: list[IrOperation], values: list[str], kinds: list[str], pending: int) -> None:
        names = [self.names.get(value, value) for value in values]
        made = self.builder.fresh("done")
        results, renamed = control.pack(made, values)
        text = f" {', '.join(names)} {{pendings = {pending} : i32}} : {', '.join(kinds)}"
        out.append(IrOperation("ttng.warp_group_dot_wait", results, [*tokenize(text)]))
        self.names |= renamed

    def _type_of(self, out: list[IrOperation], name: str) -> str:
        made = next(op for op in reversed(out) if name in op.defined)
        return find_types(made.signature)[-1]

    def _drain(self, out: list[IrOperation], loop: control.ForLoop, flight: _InFlight, after: RingPositions) -> None:
        """After the loop: its last multiplies end, and the slots that they read are given back."""
        ends = [(result, kind) for _, _, kind, result in loop.carried if loop.yielded_as(result) in flight.results]
        self._wait(out, [result for result, _ in ends], [kind for _, kind in ends], 0)
        ran = flight.ran(self.builder, out)
        for group in sorted(flight.groups):
            self._release(out, group, after[group][0], before=ran)

    def _refusal(self, operation: IrOperation, reason: str) -> CannotPlan:
        return CannotPlan(reason, short_name(operation), source_line(self.module, operation))


class _InFlight:
    """The multiplies of ``loop`` that are kept in flight: the position of the last one in its body, their results, and
    the groups that they read, whose slots are given back an iteration late."""

    def __init__(self, last: int, results: list[str], groups: set[int], loop: control.ForLoop) -> None:
        self.last, self.results, self.groups, self.loop = last, results, groups, loop

    def started(self, builder: Builder, out: list[IrOperation]) -> str:
        """Whether an iteration went before."""
        loop = self.loop
        return builder.op(out, f"$ = arith.cmpi sgt, {loop.variable}, {loop.lower} : {loop.kind}")

    def ran(self, builder: Builder, out: list[IrOperation]) -> str:
        """Whether the loop ran at all."""
        loop = self.loop
        return builder.op(out, f"$ = arith.cmpi sgt, {loop.upper}, {loop.lower} : {loop.kind}")


def _retyped(operation: IrOperation, changed: dict[int, str]) -> IrOperation:
    """``operation`` with the printed types at the positions ``changed`` replaced; they stand in the order of the
    operands, the result's last."""
    head = [part for part in operation.parts if isinstance(part, str)]
    text = "".join(head)
    signature = operation.signature
    kinds = find_types(signature)
    wanted = [changed.get(i, changed.get(i - len(kinds), kind)) for i, kind in enumerate(kinds)]
    at, pieces = 0, []
    for former, new in zip(kinds, wanted, strict=True):
        found = signature.index(former, at)
        pieces += [signature[at:found], new]
        at = found + len(former)
    new_signature = "".join(pieces) + signature[at:]
    start = text.rindex(signature)
    return IrOperation(operation.name, operation.results, [*tokenize(text[:start] + new_signature)], operation.location)
