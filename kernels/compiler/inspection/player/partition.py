"""One partition of a played program: its values, its control flow, its share of global memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from warpplan.kernels.compiler.inspection.player.interleaving import Landing, Pause, Steps
from warpplan.kernels.compiler.inspection.player.tiles.device_memory import OutOfBounds
from warpplan.kernels.compiler.inspection.player.tiles.faults import FaultKind, KernelFault, NotPlayed
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyOperation
from warpplan.kernels.compiler.inspection.player.tiles.tile_operations import PURE
from warpplan.kernels.compiler.inspection.player.tiles.vector_clocks import Actor, Clock, merge
from warpplan.kernels.compiler.ttgir.control import read_branch, read_loop, read_while
from warpplan.kernels.compiler.ttgir.ir import Region

if TYPE_CHECKING:
    from warpplan.kernels.compiler.inspection.player.played_program import PlayedProgram

ENDS = frozenset({"scf.yield", "scf.condition", "ttg.warp_yield", "ttg.warp_return", "tt.return"})
MOST_TURNS = 4_000
"""Iterations of an ``scf.while``, after which it is taken to have no end."""


@dataclass(eq=False)
class FlyingProduct:
    """A wgmma group under way; ``value`` is there once its partition has waited for it."""

    compute: Callable[[], Any]
    clock: Clock
    value: Any = None
    done: bool = False

    def finish(self) -> None:
        if not self.done:
            self.value, self.done = self.compute(), True


@dataclass(eq=False)
class PlayedPartition:
    """``clock`` is what comes before its next operation; the lists hold what it issued and has not waited for."""

    program: PlayedProgram
    name: str
    warps: int
    agent: int
    values: dict[str, Any]
    clock: Clock
    products: list[FlyingProduct] = field(default_factory=list)
    stores: list[tuple[Landing, Clock]] = field(default_factory=list)
    copies: list[tuple[Landing, Clock]] = field(default_factory=list)
    """``cp.async`` copies in no group so far."""
    groups: list[list[tuple[Landing, Clock]]] = field(default_factory=list)
    issued: list[Landing] = field(default_factory=list)
    """What it gave to its tensor core."""
    core: tuple[int, Clock] | None = None

    def actor(self, operation: ReadyOperation) -> Actor:
        """The partition itself, accessing memory now."""
        told = f"{operation.name} of {self.name}" + (f" ({operation.line})" if operation.line else "")
        return Actor(self.agent, self.clock, told)

    def fork(self, operation: ReadyOperation, asynchronous: bool = True) -> Actor:
        """An asynchronous operation that begins now; what the partition does next is at a later time."""
        agent = self.program.agents.new()
        actor = Actor(agent, {**self.clock, agent: 1}, self.actor(operation).told, asynchronous)
        self.tick()
        return actor

    def tick(self) -> None:
        """What comes next is not in the past of whoever has learnt of what came before."""
        self.clock[self.agent] += 1

    def learn(self, clock: Clock) -> None:
        """What is past for ``clock`` is past."""
        merge(self.clock, clock)

    def fault(self, kind: FaultKind, message: str, operation: ReadyOperation) -> KernelFault:
        return KernelFault(kind, message, partition=self.name, operation=operation.name, line=operation.line)

    def value(self, name: str, operation: ReadyOperation) -> Any:
        """A value that ``operation`` reads. Raises :class:`KernelFault` for a product that nobody waited for."""
        value = self.values[name]
        if isinstance(value, FlyingProduct):
            if not value.done:
                raise self.fault("unwaited", f"{name} is read before its product was waited for", operation)
            return value.value
        return value

    def region(self, region: Region) -> Steps:
        """Execute it; what it ends with is in :meth:`handed`."""
        for operation in self.program.code.of(region):
            if operation.name in ENDS:
                return
            yield from self.operation(operation)

    def handed(self, region: Region) -> list[Any]:
        """The values that its last operation hands on."""
        operations = self.program.code.of(region)
        last = operations[-1] if operations else None
        return [self.values[name] for name in last.operands] if last is not None and last.name in ENDS else []

    def operation(self, operation: ReadyOperation) -> Steps:
        name = operation.name
        if name == "scf.for":
            yield from self._loop(operation)
        elif name == "scf.if":
            yield from self._branch(operation)
        elif name == "scf.while":
            yield from self._while(operation)
        elif name in self.program.waiting:
            yield from self.program.waiting[name](self, operation)
        else:
            self.immediate(operation)

    def immediate(self, operation: ReadyOperation) -> None:
        """An operation that never waits."""
        own = self.program.immediate.get(operation.name)
        if own is not None:
            own(self, operation)
            return
        result = self.compute(operation, [self.value(name, operation) for name in operation.operands])
        self.define(operation, result if isinstance(result, list) else [result])

    def compute(self, operation: ReadyOperation, operands: list[Any]) -> Any:
        """An operation on values alone. Raises :class:`NotPlayed`."""
        if operation.name in ("tt.reduce", "tt.scan"):
            folding = self.program.folding
            return (folding.reduce if operation.name == "tt.reduce" else folding.scan)(operation, operands)
        try:
            return PURE[operation.name](operation, operands)
        except KeyError as error:
            raise NotPlayed(operation.name, operation.line) from error

    def define(self, operation: ReadyOperation, results: list[Any]) -> None:
        """Give the results their names; their shapes have to be the printed ones."""
        for name, kind, value in zip(operation.defined, operation.results, results, strict=True):
            if kind.kind == "tensor" and isinstance(value, np.ndarray) and value.shape != kind.shape:
                raise NotPlayed(operation.name, operation.line, f"a result of {value.shape}, not {kind.shape}")
            self.values[name] = value

    # Control flow

    def _loop(self, operation: ReadyOperation) -> Steps:
        loop = operation.memory.get("loop")
        if loop is None:
            loop = operation.memory["loop"] = read_loop(operation.operation)
        first, last, step = (self.value(name, operation) for name in (loop.lower, loop.upper, loop.step))
        carried = [self.values[initial] for _, initial, _, _ in loop.carried]
        for index in range(int(first), int(last), int(step)):
            self.values[loop.variable] = type(first)(index)
            self.values.update(zip((inside for inside, *_ in loop.carried), carried, strict=True))
            yield from self.region(loop.body)
            carried = self.handed(loop.body)
        self.values.update(zip(operation.defined, carried, strict=True))

    def _while(self, operation: ReadyOperation) -> Steps:
        loop = operation.memory.get("loop")
        if loop is None:
            loop = operation.memory["loop"] = read_while(operation.operation)
        carried = [self.values[initial] for _, initial, _ in loop.carried]
        for _ in range(MOST_TURNS):
            self.values.update(zip((inside for inside, *_ in loop.carried), carried, strict=True))
            yield from self.region(loop.before)
            goes_on, *handed = self.handed(loop.before)
            if not goes_on:
                self.values.update(zip(operation.defined, handed, strict=True))
                return
            self.values.update(zip((inside for inside, *_ in loop.handed), handed, strict=True))
            yield from self.region(loop.after)
            carried = self.handed(loop.after)
        raise self.fault("hang", f"a loop without an end after {MOST_TURNS:,} iterations", operation)

    def _branch(self, operation: ReadyOperation) -> Steps:
        branch = operation.memory.get("branch")
        if branch is None:
            branch = operation.memory["branch"] = read_branch(operation.operation)
        taken = branch.then if self.value(branch.condition, operation) else branch.otherwise
        yield from self.region(taken)
        self.values.update(zip(operation.defined, self.handed(taken), strict=True))

    # Global memory

    def load(self, operation: ReadyOperation) -> None:
        """``tt.load``; what a mask hides is ``other``, or 0."""
        operands = [self.value(name, operation) for name in operation.operands]
        addresses, *rest = operands
        mask = np.broadcast_to(rest[0], np.shape(addresses)) if rest else np.ones(np.shape(addresses), bool)
        try:
            loaded = self.program.memory.load(addresses, mask, operation.types[0].pointee)
        except OutOfBounds as error:
            raise self.fault("bounds", f"a load of {error}", operation) from error
        if len(rest) > 1:
            loaded = np.where(mask, loaded, rest[1]).astype(loaded.dtype)
        self.values[operation.defined[0]] = loaded if np.ndim(addresses) else loaded.reshape(())[()]

    def store(self, operation: ReadyOperation) -> None:
        """``tt.store``."""
        addresses, values, *mask = (self.value(name, operation) for name in operation.operands)
        try:
            self.program.memory.store(addresses, values, mask[0] if mask else True, operation.types[0].pointee)
        except OutOfBounds as error:
            raise self.fault("bounds", f"a store to {error}", operation) from error

    def spin(self) -> Steps:
        """After a look into memory that others change."""
        yield Pause(spins=True)
