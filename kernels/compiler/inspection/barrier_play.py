"""A finished kernel's barriers simulated: every partition executes its scalar arithmetic, waits, arrivals and copies.

Counts do not show these faults, an execution does: a phase that is off by one, a slot filled again before it was read,
read before it was filled, or let go while a product still reads it. Integers that the launch would give are all
``size``, loaded ones are 1, or many where a program that finds 1 has nothing to do, and the block is the second of the
grid; tiles themselves are not computed. Copies are done at once, and whichever partition can run furthest does so: the
loader in one game, its readers in the other.

An mbarrier has a phase parity, arrivals still to come and bytes still to come; ``wait(p)`` passes once the phase of
parity p is over (PTX ISA, "mbarrier.try_wait").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from warpplan.kernels.compiler.inspection.finished import (
    DEFAULT,
    SPECIALIZE,
    completed,
    plain_operands,
    read_copy,
    warps_of,
    workers,
)
from warpplan.kernels.compiler.inspection.scalars import compute, is_true
from warpplan.kernels.compiler.ttgir.control import read_branch, read_loop, yielded
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region, is_value, split_list, tokenize
from warpplan.kernels.compiler.ttgir.source_locations import SourceLocations
from warpplan.kernels.compiler.ttgir.types import find_types, parse_type

SIZES = (128, 1_920)
"""Whole numbers at launch: one block of everything, and fifteen or more."""
MANY = 4_096
"""Numbers in memory, where a program that finds 1 there has nothing to do: counts of rows."""
MOST_STEPS, MOST_ITERATIONS = 8_000, 500
"""Operations of a game, and iterations of a loop without bounds, after which it ends undecided."""
WAIT, DONE = "wait", "done"
Env = dict[str, object]


@dataclass(frozen=True)
class BarrierFault:
    """What went wrong: ``partition`` at ``line``, at ``barrier`` if it was one."""

    message: str
    partition: str
    line: str
    barrier: str = ""


@dataclass(frozen=True)
class Played:
    """``waits`` that were passed in all games, the first fault, and the ``phases`` that each array's barriers came
    through in the last game."""

    waits: int
    faults: tuple[BarrierFault, ...] = ()
    phases: tuple[tuple[str, int], ...] = ()


@dataclass(eq=False)
class _Array:
    """Shared memory: barriers, or tiles in slots."""

    name: str
    barriers: dict[int, _Barrier] = field(default_factory=dict)
    filled: dict[int, int] = field(default_factory=dict)
    """How often each slot was filled."""
    read: dict[tuple[int, str], int] = field(default_factory=dict)
    """Which filling each partition last read."""
    last_slot: dict[str, int] = field(default_factory=dict)
    """Which slot each partition last read: it may read one twice before it goes on to the next."""


@dataclass(frozen=True)
class _Slot:
    array: _Array
    index: int = 0


@dataclass
class _Barrier:
    count: int
    pending: int
    bytes: int = 0
    parity: int = 0
    phases: int = 0

    def settle(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.pending, self.parity, self.phases = self.count, 1 - self.parity, self.phases + 1


class _Stop(Exception):
    def __init__(self, fault: BarrierFault | None) -> None:
        self.fault = fault


def play(module: Module) -> Played:
    """Play the module's kernel, once for each of ``SIZES`` and for whether loaders or readers run first."""
    played = _games(module, 1)
    return played if played.waits or played.faults else _games(module, MANY)


def _games(module: Module, loaded: int) -> Played:
    waits = 0
    for size in SIZES:
        for loader_first in (True, False):
            game = _Game(module, size, loader_first, loaded)
            fault = game.run()
            waits += game.waits
            phases = tuple((a.name, sum(b.phases for b in a.barriers.values())) for a in game.arrays if a.barriers)
            if fault is not None:
                return Played(waits, (fault,), phases)
    return Played(waits, (), phases)


class _Game:
    def __init__(self, module: Module, size: int, loader_first: bool, loaded: int) -> None:
        self.module, self.size, self.loader_first, self.loaded = module, size, loader_first, loaded
        self.lines = SourceLocations(module).lines_in(module.function)
        self.waits = self.steps = 0
        self.arrays: list[_Array] = []
        self.readers: dict[_Array, set[str]] = {}
        self.reading: dict[str, list[list[_Slot]]] = {}
        self.concurrent = False
        """Whether partitions run concurrently: in one that runs alone, a wait that does not pass never will."""

    def run(self) -> BarrierFault | None:
        """The first fault; none where everybody came to the end."""
        function = self.module.function
        env: Env = {}
        head = "".join(p for p in function.parts if isinstance(p, str))
        for argument in head.split("%")[1:]:
            name, _, kind = argument.partition(":")
            env["%" + name.strip()] = self.size if kind.strip().startswith(("i32", "i64")) else None
        try:
            for _ in self._region(function.regions[0], env, DEFAULT):
                pass
        except _Stop as stop:
            return stop.fault
        return None

    # Partitions running concurrently

    def _together(self, operation: IrOperation, env: Env) -> Iterator[tuple[str, IrOperation]]:
        runners: list[tuple[str, Iterator[tuple[str, IrOperation]]]] = []
        loaders = set()
        for worker in workers(operation, warps_of(self.module)):
            inside = {a: env.get(b) for a, b in worker.arguments} if worker.arguments else dict(env)
            runners.append((worker.name, self._region(worker.region, inside, worker.name)))
            if any(o.name.startswith("ttng.async_tma_copy_global") for o in worker.region.walk()):
                loaders.add(worker.name)
            for array in {a for value in inside.values() if (a := _array(value)) is not None}:
                names = {n for n, v in inside.items() if _array(v) is array}
                if _reads(worker.region, names):
                    self.readers.setdefault(array, set()).add(worker.name)
        runners.sort(key=lambda r: (r[0] in loaders) != self.loader_first)
        waiting: dict[str, IrOperation] = {}
        self.concurrent = True
        while runners:
            before = self.steps
            for name, runner in list(runners):
                waiting.pop(name, None)
                step = next(runner, None)
                if step is None:
                    runners.remove((name, runner))
                elif step[0] == WAIT:
                    waiting[name] = step[1]
                if self.steps > before:
                    break  # somebody ran: whoever is first in the order goes on first
            else:
                if runners and len(waiting) == len(runners):
                    raise _Stop(self._deadlock(waiting))
        self.concurrent = False
        yield from ()

    def _deadlock(self, waiting: dict[str, IrOperation]) -> BarrierFault:
        told = [f"{name} at {self.lines[id(op)] or op.name}" for name, op in waiting.items()]
        name, operation = next(iter(waiting.items()))
        return BarrierFault(
            f"a hang with all whole numbers {self.size}: waiting for each other are {' and '.join(told)}", name,
            self.lines[id(operation)], plain_operands(operation)[0],
        )  # fmt: skip

    # One partition

    def _region(self, region: Region, env: Env, partition: str) -> Iterator[tuple[str, IrOperation]]:
        for operation in region.operations:
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise _Stop(None)
            yield from self._operation(operation, env, partition)

    def _operation(self, operation: IrOperation, env: Env, partition: str) -> Iterator[tuple[str, IrOperation]]:
        name = operation.name
        if name == SPECIALIZE:
            yield from self._together(operation, env)
        elif name == "scf.for":
            yield from self._loop(operation, env, partition)
        elif name == "scf.if":
            branch = read_branch(operation)
            taken = branch.then if is_true(env.get(branch.condition)) else branch.otherwise
            inside = dict(env)
            yield from self._region(taken, inside, partition)
            for (_, outside), value in zip(branch.results, yielded(taken), strict=False):
                env[outside] = inside.get(value)
        elif name == "scf.while":
            yield from self._while(operation, env, partition)
        elif name == "ttng.wait_barrier":
            yield from self._wait(operation, env, partition)
        elif name.startswith("ttng."):
            self._device(operation, env, partition)
        elif name.startswith("ttg."):
            self._memory(operation, env, partition)
        else:
            for result in operation.defined:
                env[result] = compute(operation, [env.get(v) for v in operation.operands], self.loaded)

    def _loop(self, operation: IrOperation, env: Env, partition: str) -> Iterator[tuple[str, IrOperation]]:
        loop = read_loop(operation)
        first, last, step = (env.get(v) for v in (loop.lower, loop.upper, loop.step))
        iterations: range | tuple[None, None] = (None, None)
        if isinstance(first, int) and isinstance(last, int) and isinstance(step, int) and step > 0:
            iterations = range(first, last, step)
        carried = [env.get(initial) for _, initial, _, _ in loop.carried]
        for index in iterations:
            inside = dict(env)
            inside[loop.variable] = index
            inside.update(zip((inner for inner, *_ in loop.carried), carried, strict=True))
            yield from self._region(loop.body, inside, partition)
            carried = [inside.get(value) for value, _ in zip(loop.yielded, loop.carried, strict=False)]
        env.update(zip((outside for *_, outside in loop.carried), carried, strict=True))

    def _while(self, operation: IrOperation, env: Env, partition: str) -> Iterator[tuple[str, IrOperation]]:
        head = "".join(p for p in operation.parts[: operation.parts.index(operation.regions[0])] if isinstance(p, str))
        pairs = [pair.split(" = ") for pair in split_list(head.partition("(")[2].partition(")")[0]) if " = " in pair]
        before, after = operation.regions
        inner = [token for token in tokenize(after.label) if is_value(token)]
        carried = [env.get(initial) for _, initial in pairs]
        for _ in range(MOST_ITERATIONS):
            inside = dict(env) | dict(zip((name for name, _ in pairs), carried, strict=False))
            yield from self._region(before, inside, partition)
            condition, *handed = [inside.get(value) for value in yielded(before)]
            if not is_true(condition):
                env.update(zip(operation.defined, handed, strict=False))
                return
            inside = dict(env) | dict(zip(inner, handed, strict=False))
            yield from self._region(after, inside, partition)
            carried = [inside.get(value) for value in yielded(after)]
        raise _Stop(None)  # a lock that nobody opens here

    def _wait(self, operation: IrOperation, env: Env, partition: str) -> Iterator[tuple[str, IrOperation]]:
        names = plain_operands(operation)
        if len(names) > 2 and not is_true(env.get(names[2])):
            return
        barrier = self._barrier(operation, env.get(names[0]), partition)
        phase = env.get(names[1])
        if barrier is None or not isinstance(phase, int):
            return
        while barrier.parity == phase & 1:  # a sign-extended i1 is -1
            if not self.concurrent:
                raise _Stop(self._deadlock({partition: operation}))
            yield WAIT, operation
        self.waits += 1
        yield DONE, operation

    def _device(self, operation: IrOperation, env: Env, partition: str) -> None:
        name = operation.name
        if name == "ttng.init_barrier":
            slot = env.get(plain_operands(operation)[0])
            count = _number(operation)
            if isinstance(slot, _Slot) and count:
                slot.array.barriers[slot.index] = _Barrier(count, count)
        elif name in ("ttng.barrier_expect", "ttng.arrive_barrier"):
            names = plain_operands(operation)
            if len(names) > 1 and not is_true(env.get(names[1])):
                return
            barrier = self._barrier(operation, env.get(names[0]), partition)
            if barrier is None:
                return
            expects = name == "ttng.barrier_expect"
            barrier.bytes += _number(operation) if expects else 0
            barrier.pending -= 1 if expects else _number(operation)
            if barrier.pending < 0:
                self._fail(operation, partition, "one arrival too many in a phase", names[0])
            if not expects:
                barrier.settle()
        elif name.startswith("ttng.tc_gen5"):
            for value, when in completed(operation):
                slot = env.get(value)
                if isinstance(slot, _Slot) and slot.array.barriers and (not when or is_true(env.get(when))):
                    barrier = self._barrier(operation, slot, partition)
                    assert barrier is not None
                    barrier.pending -= 1
                    barrier.settle()
        elif name == "ttng.async_tma_copy_global_to_local":
            self._copy(operation, env, partition)
        elif name == "ttng.warp_group_dot":
            slots = [s for v in operation.operands if isinstance(s := env.get(v), _Slot)]
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
        barrier = self._barrier(operation, env.get(copy.barrier), partition)
        if isinstance(slot, _Slot):
            array, filling = slot.array, slot.array.filled.get(slot.index, 0)
            for reader in sorted(self.readers.get(array, ())):
                if filling and array.read.get((slot.index, reader), 0) < filling:
                    self._fail(
                        operation, partition, f"a slot is filled again before {reader} has read it", copy.barrier
                    )
            for reader, products in self.reading.items():
                if any(slot.array is s.array and slot.index == s.index for slots in products for s in slots):
                    self._fail(
                        operation, partition, f"a slot is filled while a product of {reader} reads it", copy.barrier
                    )
            array.filled[slot.index] = filling + 1
        box = parse_type(find_types(operation.signature)[0])
        if barrier is not None and box is not None:
            barrier.bytes -= box.bytes
            barrier.settle()

    def _memory(self, operation: IrOperation, env: Env, partition: str) -> None:
        name = operation.name
        if name == "ttg.local_alloc" and not operation.operands:
            self.arrays.append(_Array(operation.result))
            env[operation.result] = _Slot(self.arrays[-1])
        elif name == "ttg.memdesc_index":
            base, index = (env.get(v) for v in operation.operands[:2])
            if isinstance(base, _Slot):
                env[operation.result] = _Slot(base.array, index if isinstance(index, int) else 0)
        elif name.startswith("ttg.memdesc_"):
            env[operation.result] = env.get(operation.operands[0])
        elif name == "ttg.local_load":
            self._read(operation, [s for v in operation.operands if isinstance(s := env.get(v), _Slot)], partition)

    def _read(self, operation: IrOperation, slots: list[_Slot], partition: str) -> None:
        for slot in slots:
            array, filling = slot.array, slot.array.filled.get(slot.index, 0)
            if array.filled:
                came_back = array.last_slot.get(partition) != slot.index
                stale = filling <= array.read.get((slot.index, partition), 0)
                if filling == 0 or (came_back and stale):
                    self._fail(operation, partition, "a slot is read before it is filled", "")
            array.last_slot[partition] = slot.index
            array.read[slot.index, partition] = filling

    def _barrier(self, operation: IrOperation, slot: object, partition: str) -> _Barrier | None:
        if not isinstance(slot, _Slot):
            return None
        if slot.index not in slot.array.barriers:
            self._fail(
                operation, partition, f"barrier {slot.array.name}[{slot.index}] was not initialised", slot.array.name
            )
        return slot.array.barriers[slot.index]

    def _fail(self, operation: IrOperation, partition: str, why: str, barrier: str) -> None:
        raise _Stop(BarrierFault(f"{partition}: {why}", partition, self.lines[id(operation)], barrier))


def _array(value: object) -> _Array | None:
    return value.array if isinstance(value, _Slot) else None


def _reads(region: Region, names: set[str]) -> bool:
    """Whether a product or a load from shared memory in ``region`` reads what goes by ``names``, or a view of it."""
    names = set(names)
    for operation in region.walk():
        if operation.name.startswith("ttg.memdesc_") and names.intersection(operation.operands):
            names.add(operation.result)
        elif operation.name in ("ttng.warp_group_dot", "ttg.local_load") and names.intersection(operation.operands):
            return True
    return False


def _number(operation: IrOperation) -> int:
    """The count or the bytes: the one number among the operands."""
    for token in operation.tokens:
        if token == ":":
            break
        if token.isdigit():
            return int(token)
    return 1
