"""Shared memory of a simulated kernel: barriers and slots, and what each operation does to them.

An mbarrier has a phase parity, arrivals still to come and bytes still to come; ``wait(p)`` passes once the phase of
parity p is over (PTX ISA, "mbarrier.try_wait"). Of a slot it is known how often it was filled and which filling each
partition last read; tiles themselves are not computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from warpplan.kernels.compiler.inspection.finished import (
    COPY,
    LAND,
    completed,
    landed_arrivals,
    plain_operands,
    read_copy,
)
from warpplan.kernels.compiler.inspection.scalars import is_true
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region
from warpplan.kernels.compiler.ttgir.source_locations import SourceLocations
from warpplan.kernels.compiler.ttgir.types import find_types, parse_type

Env = dict[str, object]
"""Values by name: whole numbers, slots, or None for what is not computed."""


@dataclass(frozen=True)
class BarrierFault:
    """What went wrong: ``partition`` at ``line``, at ``barrier`` if it was one."""

    message: str
    partition: str
    line: str
    barrier: str = ""


@dataclass(eq=False)
class SharedArray:
    """Shared memory: barriers, or tiles in slots."""

    name: str
    barriers: dict[int, BarrierState] = field(default_factory=dict)
    filled: dict[int, int] = field(default_factory=dict)
    """How often each slot was filled."""
    read: dict[tuple[int, str], int] = field(default_factory=dict)
    """Which filling each partition last read."""
    passed: dict[tuple[int, str], int] = field(default_factory=dict)
    """Which filling each partition last had no need to read."""
    last_slot: dict[str, int] = field(default_factory=dict)
    """Which slot each partition last read: it may read one twice before it goes on to the next."""


@dataclass(frozen=True)
class ArraySlot:
    """A reference to one barrier or one tile of an array: the value of a view."""

    array: SharedArray
    index: int = 0


@dataclass
class BarrierState:
    """An mbarrier: of ``count`` arrivals a phase ``pending`` are to come, and ``bytes`` of copies; ``phases`` are
    over."""

    count: int
    pending: int
    bytes: int = 0
    parity: int = 0
    phases: int = 0

    def settle(self) -> None:
        """End the phase where nothing is to come any more."""
        if self.pending == 0 and self.bytes == 0:
            self.pending, self.parity, self.phases = self.count, 1 - self.parity, self.phases + 1


class GameOver(Exception):
    """The game ends: with a fault, or undecided."""

    def __init__(self, fault: BarrierFault | None) -> None:
        self.fault = fault


class SharedArrays:
    """The arrays of one game, and the effects of operations on them. Raises :class:`GameOver` with the first fault."""

    def __init__(self, module: Module) -> None:
        self.lines = SourceLocations(module).lines_in(module.function)
        self.arrays: list[SharedArray] = []
        self.readers: dict[SharedArray, set[str]] = {}
        """Partitions that read each array of tiles."""
        self.reading: dict[str, list[list[ArraySlot]]] = {}
        """By partition, the slots that each of its products in flight reads."""
        self.warps: dict[str, int] = {}
        """Of each partition."""
        self.copying: dict[str, list[ArraySlot]] = {}
        """By partition, the slots that it copies to by ``cp.async`` and has not arrived for: none is filled yet."""

    def issue(self, operation: IrOperation, env: Env, partition: str) -> None:
        """What a ``ttng`` operation does: barriers set up, arrivals, copies, products and waits for them."""
        name = operation.name
        if name == "ttng.init_barrier":
            slot = env.get(plain_operands(operation)[0])
            count = _number(operation)
            if isinstance(slot, ArraySlot) and count:
                slot.array.barriers[slot.index] = BarrierState(count, count)
        elif name in ("ttng.barrier_expect", "ttng.arrive_barrier"):
            names = plain_operands(operation)
            if len(names) > 1 and not is_true(env.get(names[1])):
                return
            barrier = self.barrier(operation, env.get(names[0]), partition)
            if barrier is None:
                return
            expects = name == "ttng.barrier_expect"
            barrier.bytes += _number(operation) if expects else 0
            barrier.pending -= 1 if expects else _number(operation)
            if barrier.pending < 0:
                self._fail(operation, partition, "one arrival too many in a phase", names[0])
            if not expects:
                barrier.settle()
        elif name == LAND:
            self._land(operation, env, partition)
        elif name.startswith("ttng.tc_gen5"):
            for value, when in completed(operation):
                slot = env.get(value)
                if isinstance(slot, ArraySlot) and slot.array.barriers and (not when or is_true(env.get(when))):
                    barrier = self.barrier(operation, slot, partition)
                    assert barrier is not None
                    barrier.pending -= 1
                    barrier.settle()
        elif name == "ttng.async_tma_copy_global_to_local":
            self._copy(operation, env, partition)
        elif name == "ttng.warp_group_dot":
            slots = [s for v in operation.operands if isinstance(s := env.get(v), ArraySlot)]
            self._read(operation, slots, partition)
            if operation.attributes.get("isAsync") == "true":
                self.reading.setdefault(partition, []).append(slots)
        elif name == "ttng.warp_group_dot_wait":
            flying = self.reading.get(partition, [])
            kept = int(operation.attributes.get("pendings", "0").partition(":")[0])
            del flying[: max(0, len(flying) - kept)]
            for result, value in zip(operation.defined, operation.operands, strict=False):
                env[result] = env.get(value)

    def _copy(self, operation: IrOperation, env: Env, partition: str) -> None:
        copy = read_copy(operation)
        if copy.predicate and not is_true(env.get(copy.predicate)):
            return
        slot = env.get(copy.buffer)
        barrier = self.barrier(operation, env.get(copy.barrier), partition)
        if isinstance(slot, ArraySlot):
            self._fill(operation, slot, partition, copy.barrier)
        box = parse_type(find_types(operation.signature)[0])
        if barrier is not None and box is not None:
            barrier.bytes -= box.bytes
            barrier.settle()

    def _land(self, operation: IrOperation, env: Env, partition: str) -> None:
        """Every thread's copies have landed, and it arrives."""
        name = plain_operands(operation)[0]
        barrier = self.barrier(operation, env.get(name), partition)
        for slot in self.copying.pop(partition, []):
            slot.array.filled[slot.index] = slot.array.filled.get(slot.index, 0) + 1
        if barrier is not None:
            barrier.pending -= landed_arrivals(operation, self.warps.get(partition, 0))
            if barrier.pending < 0:
                self._fail(operation, partition, "arrivals too many in a phase", name)
            barrier.settle()

    def _fill(self, operation: IrOperation, slot: ArraySlot, partition: str, barrier: str, landed: bool = True) -> None:
        """A copy into ``slot``, which has to be free; it is filled where the copy has ``landed``."""
        array, filling = slot.array, slot.array.filled.get(slot.index, 0)
        for reader in sorted(self.readers.get(array, ())):
            at = slot.index, reader
            if filling and max(array.read.get(at, 0), array.passed.get(at, 0)) < filling:
                self._fail(operation, partition, f"a slot is filled again before {reader} has read it", barrier)
        for reader, products in self.reading.items():
            if any(slot.array is s.array and slot.index == s.index for slots in products for s in slots):
                self._fail(operation, partition, f"a slot is filled while a product of {reader} reads it", barrier)
        if landed:
            array.filled[slot.index] = filling + 1
        else:
            self.copying.setdefault(partition, []).append(slot)

    def access(self, operation: IrOperation, env: Env, partition: str) -> None:
        """What a ``ttg`` operation does: shared memory allocated, viewed, or read into registers."""
        name = operation.name
        if name == "ttg.local_alloc" and not operation.operands:
            self.arrays.append(SharedArray(operation.result))
            env[operation.result] = ArraySlot(self.arrays[-1])
        elif name == "ttg.memdesc_index":
            base, index = (env.get(v) for v in operation.operands[:2])
            if isinstance(base, ArraySlot):
                env[operation.result] = ArraySlot(base.array, index if isinstance(index, int) else 0)
        elif name.startswith("ttg.memdesc_"):
            env[operation.result] = env.get(operation.operands[0])
        elif name == COPY:
            slots = [s for v in operation.operands if isinstance(s := env.get(v), ArraySlot)]
            for slot in slots:
                self._fill(operation, slot, partition, "", landed=False)
        elif name == "ttg.local_load":
            self._read(operation, [s for v in operation.operands if isinstance(s := env.get(v), ArraySlot)], partition)

    def pass_over(self, body: Region, env: Env, partition: str) -> None:
        """A loop without iterations: the slots that its body would have read may be filled again."""
        for operation in body.walk():
            for slot in (env.get(value) for value in operation.operands):
                if isinstance(slot, ArraySlot) and not slot.array.barriers:
                    slot.array.passed[slot.index, partition] = slot.array.filled.get(slot.index, 0)

    def _read(self, operation: IrOperation, slots: list[ArraySlot], partition: str) -> None:
        for slot in slots:
            array, filling = slot.array, slot.array.filled.get(slot.index, 0)
            if array.filled:
                came_back = array.last_slot.get(partition) != slot.index
                stale = filling <= array.read.get((slot.index, partition), 0)
                if filling == 0 or (came_back and stale):
                    self._fail(operation, partition, "a slot is read before it is filled", "")
            array.last_slot[partition] = slot.index
            array.read[slot.index, partition] = filling

    def barrier(self, operation: IrOperation, slot: object, partition: str) -> BarrierState | None:
        """The barrier that ``slot`` refers to; None where its address is not computed."""
        if not isinstance(slot, ArraySlot):
            return None
        if slot.index not in slot.array.barriers:
            self._fail(
                operation, partition, f"barrier {slot.array.name}[{slot.index}] was not initialised", slot.array.name
            )
        return slot.array.barriers[slot.index]

    def _fail(self, operation: IrOperation, partition: str, why: str, barrier: str) -> None:
        raise GameOver(BarrierFault(f"{partition}: {why}", partition, self.lines[id(operation)], barrier))


def array_of(value: object) -> SharedArray | None:
    """The array that a view refers to; None for other values."""
    return value.array if isinstance(value, ArraySlot) else None


def _number(operation: IrOperation) -> int:
    """The count or the bytes: the one number among the operands."""
    for token in operation.tokens:
        if token == ":":
            break
        if token.isdigit():
            return int(token)
    return 1
