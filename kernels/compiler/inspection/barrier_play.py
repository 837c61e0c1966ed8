"""A finished kernel's barriers simulated: every partition executes its scalar arithmetic, waits, arrivals and copies.

Counts do not show these faults, an execution does: a phase that is off by one, a slot filled again before it was read,
read before it was filled, or let go while a product still reads it. Integers that the launch would give are all
``size``, loaded ones are 1, or many where a program that finds 1 has nothing to do, and the block is the second of the
grid; tiles themselves are not computed. Copies are done at once, and whichever partition can run furthest does so: the
loader in one game, its readers in the other.

Here is the control flow; :mod:`~warpplan.kernels.compiler.inspection.shared_arrays` has the barriers and slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from warpplan.kernels.compiler.inspection.finished import (
    COPY,
    DEFAULT,
    SPECIALIZE,
    plain_operands,
    warps_of,
    workers,
)
from warpplan.kernels.compiler.inspection.scalars import compute, is_true
from warpplan.kernels.compiler.inspection.shared_arrays import BarrierFault, Env, GameOver, SharedArrays, array_of
from warpplan.kernels.compiler.ttgir.control import read_branch, read_loop, yielded
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Module, Region, is_value, split_list, tokenize

SIZES = (128, 1_920)
"""Whole numbers at launch: one block of everything, and fifteen or more."""
MANY = 4_096
"""Numbers in memory, where a program that finds 1 there has nothing to do: counts of rows."""
MOST_STEPS, MOST_ITERATIONS = 8_000, 500
"""Operations of a game, and iterations of a loop without bounds, after which it ends undecided."""
WAIT, DONE = "wait", "done"


@dataclass(frozen=True)
class Played:
    """``waits`` that were passed in all games, the first fault, and the ``phases`` that each array's barriers came
    through in the last game."""

    waits: int
    faults: tuple[BarrierFault, ...] = ()
    phases: tuple[tuple[str, int], ...] = ()


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
            phases = tuple(
                (a.name, sum(b.phases for b in a.barriers.values())) for a in game.shared.arrays if a.barriers
            )
            if fault is not None:
                return Played(waits, (fault,), phases)
    return Played(waits, (), phases)


class _Game:
    """One execution of the kernel: whole numbers ``size``, loaded ones ``loaded``."""

    def __init__(self, module: Module, size: int, loader_first: bool, loaded: int) -> None:
        self.module, self.size, self.loader_first, self.loaded = module, size, loader_first, loaded
        self.shared = SharedArrays(module)
        self.waits = self.steps = 0
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
        except GameOver as stop:
            return stop.fault
        return None

    # Partitions running concurrently

    def _together(self, operation: IrOperation, env: Env) -> Iterator[tuple[str, IrOperation]]:
        runners: list[tuple[str, Iterator[tuple[str, IrOperation]]]] = []
        loaders = set()
        for worker in workers(operation, warps_of(self.module)):
            inside = {a: env.get(b) for a, b in worker.arguments} if worker.arguments else dict(env)
            runners.append((worker.name, self._region(worker.region, inside, worker.name)))
            self.shared.warps[worker.name] = worker.warps
            if any(o.name.startswith(("ttng.async_tma_copy_global", COPY)) for o in worker.region.walk()):
                loaders.add(worker.name)
            for array in {a for value in inside.values() if (a := array_of(value)) is not None}:
                names = {n for n, v in inside.items() if array_of(v) is array}
                if _reads(worker.region, names):
                    self.shared.readers.setdefault(array, set()).add(worker.name)
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
                    raise GameOver(self._deadlock(waiting))
        self.concurrent = False
        yield from ()

    def _deadlock(self, waiting: dict[str, IrOperation]) -> BarrierFault:
        told = [f"{name} at {self.shared.lines[id(op)] or op.name}" for name, op in waiting.items()]
        name, operation = next(iter(waiting.items()))
        return BarrierFault(
            f"a hang with all whole numbers {self.size}: waiting for each other are {' and '.join(told)}", name,
            self.shared.lines[id(operation)], plain_operands(operation)[0],
        )  # fmt: skip

    # One partition

    def _region(self, region: Region, env: Env, partition: str) -> Iterator[tuple[str, IrOperation]]:
        for operation in region.operations:
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise GameOver(None)
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
            self.shared.issue(operation, env, partition)
        elif name.startswith("ttg."):
            self.shared.access(operation, env, partition)
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
        if not iterations:
            self.shared.pass_over(loop.body, env, partition)
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
        raise GameOver(None)  # a lock that nobody opens here

    def _wait(self, operation: IrOperation, env: Env, partition: str) -> Iterator[tuple[str, IrOperation]]:
        names = plain_operands(operation)
        if len(names) > 2 and not is_true(env.get(names[2])):
            return
        barrier = self.shared.barrier(operation, env.get(names[0]), partition)
        phase = env.get(names[1])
        if barrier is None or not isinstance(phase, int):
            return
        while barrier.parity == phase & 1:  # a sign-extended i1 is -1
            if not self.concurrent:
                raise GameOver(self._deadlock({partition: operation}))
            yield WAIT, operation
        self.waits += 1
        yield DONE, operation


def _reads(region: Region, names: set[str]) -> bool:
    """Whether a product or a load from shared memory in ``region`` reads what goes by ``names``, or a view of it."""
    names = set(names)
    for operation in region.walk():
        if operation.name.startswith("ttg.memdesc_") and names.intersection(operation.operands):
            names.add(operation.result)
        elif operation.name in ("ttng.warp_group_dot", "ttg.local_load") and names.intersection(operation.operands):
            return True
    return False
