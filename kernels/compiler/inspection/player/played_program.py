"""A kernel played in numpy: every program of a grid, its partitions interleaved as a seed draws it.

    outcome = play(text, inputs, grid=(2, 1, 1), seed=3)

``text`` is a module in Triton's IR: as written (TTIR), at the cut, lowered, or finished. Races, hangs and accesses out
of bounds raise :class:`KernelFault`, also where the numbers would have come out right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpplan.kernels.compiler.inspection.finished import DEFAULT, SPECIALIZE, warps_of, workers
from warpplan.kernels.compiler.inspection.player.asynchronous import ASYNCHRONOUS
from warpplan.kernels.compiler.inspection.player.global_operations import GLOBAL, GLOBAL_WAITING
from warpplan.kernels.compiler.inspection.player.interleaving import Interleaving, Pause, Steps
from warpplan.kernels.compiler.inspection.player.partition import PlayedPartition
from warpplan.kernels.compiler.inspection.player.shared_operations import BARRIERS, SHARED
from warpplan.kernels.compiler.inspection.player.tensor_cores import TENSOR_CORES, TENSOR_MEMORY
from warpplan.kernels.compiler.inspection.player.tiles.device_memory import DeviceMemory, TensorMap
from warpplan.kernels.compiler.inspection.player.tiles.element_types import element_type
from warpplan.kernels.compiler.inspection.player.tiles.faults import KernelFault, NotPlayed
from warpplan.kernels.compiler.inspection.player.tiles.operation_forms import ReadyCode, ReadyOperation
from warpplan.kernels.compiler.inspection.player.tiles.shared_tiles import SharedAllocation
from warpplan.kernels.compiler.inspection.player.tiles.tile_operations import Folding
from warpplan.kernels.compiler.inspection.player.tiles.vector_clocks import AgentNumbers
from warpplan.kernels.compiler.ttgir.parsing import parse


@dataclass(frozen=True)
class BufferArgument:
    """A pointer to the buffer ``name``, ``offset`` bytes after its beginning."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class DescribedArgument:
    """A descriptor made on the host: sizes and strides in elements, outermost first."""

    name: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    element: str
    offset: int = 0


PlayedArgument = BufferArgument | DescribedArgument | int | float


@dataclass(frozen=True)
class PlayedInputs:
    """``buffers`` are the bytes of each tensor by name, ``arguments`` the kernel's in order, constexprs left out."""

    buffers: Mapping[str, np.ndarray]
    arguments: tuple[PlayedArgument, ...]


@dataclass(frozen=True)
class PlayedOutcome:
    """``buffers`` as the kernel left them; ``waits`` for barriers that were passed."""

    buffers: Mapping[str, np.ndarray]
    waits: int


def play(
    text: str | ReadyCode, inputs: PlayedInputs, grid: Sequence[int], seed: int = 0, launched: int | None = None,
    places: Sequence[tuple[int, ...]] = (), fences: bool = True,
) -> PlayedOutcome:  # fmt: skip
    """Play every program of ``grid``, or those at ``places``, one after another; one that waits in a loop for another
    lets it begin.

    ``launched``: the kernel walks over the grid itself, which it takes as its last three arguments, on so many
    programs. ``fences``: a missing proxy fence is a fault; Triton puts its own in after the cut. Raises
    :class:`KernelFault`, :class:`NotPlayed` for an operation that the player does not know, and
    :class:`~warpplan.kernels.compiler.ttgir.ir.MalformedIR`. ``inputs`` are left as they are.
    """
    code = ready(text) if isinstance(text, str) else text
    memory = DeviceMemory({name: np.array(data) for name, data in inputs.buffers.items()})
    wide = (*grid, 1, 1)[:3]
    arguments = inputs.arguments
    if launched is not None:
        arguments, wide = (*arguments, *wide), (launched, 1, 1)
    values = _bound(code, arguments, memory)
    places = list(places) or [place[::-1] for place in np.ndindex(*wide[::-1])]
    schedule, agents = Interleaving(seed), AgentNumbers()
    programs: list[PlayedProgram] = []

    def another() -> bool:
        if not places:
            return False
        programs.append(PlayedProgram(code, memory, places.pop(0), wide, schedule, agents, fences))
        programs[-1].begin(values)
        return True

    with np.errstate(all="ignore"):
        while another():
            schedule.run(another)
    waits = sum(program.waits for program in programs)
    return PlayedOutcome(dict(zip(memory.names, memory.bytes, strict=True)), waits)


def ready(text: str) -> ReadyCode:
    """``text`` read once, for several plays."""
    return ReadyCode(parse(text))


def _bound(code: ReadyCode, arguments: Sequence[PlayedArgument], memory: DeviceMemory) -> dict[str, Any]:
    """The kernel's arguments by their names; a descriptor is followed by its sizes and strides as numbers."""
    values: dict[str, Any] = {}
    parameters = list(code.parameters)
    for argument in arguments:
        if not parameters:
            raise NotPlayed("tt.func", why=f"{len(arguments)} arguments for {len(code.parameters)} parameters")
        name, kind = parameters.pop(0)
        if isinstance(argument, BufferArgument):
            values[name] = np.int64(memory.address(argument.name) + argument.offset)
        elif isinstance(argument, DescribedArgument):
            base = memory.address(argument.name) + argument.offset
            element = element_type(argument.element)
            values[name] = TensorMap(base, argument.sizes, argument.strides, element)
            if values[name].unaligned:
                raise KernelFault("descriptor", f"TMA takes multiples of 16 bytes, not {values[name].unaligned}")
            for number in (*argument.sizes, *argument.strides):
                if not parameters or parameters[0][1].kind != "scalar":
                    break
                inner, inner_kind = parameters.pop(0)
                values[inner] = inner_kind.held.held.type(number)
        else:
            values[name] = kind.held.held.type(argument)
    if parameters:
        raise NotPlayed("tt.func", why=f"no argument for {', '.join(name for name, _ in parameters)}")
    return values


class PlayedProgram:
    """One program of the grid, at ``place``."""

    immediate = {**GLOBAL, **SHARED, **TENSOR_MEMORY}  # noqa: RUF012
    waiting = {**GLOBAL_WAITING, **BARRIERS, **ASYNCHRONOUS, **TENSOR_CORES}  # noqa: RUF012

    def __init__(
        self, code: ReadyCode, memory: DeviceMemory, place: tuple[int, ...], grid: tuple[int, ...],
        schedule: Interleaving, agents: AgentNumbers, fences: bool,
    ) -> None:  # fmt: skip
        self.code, self.memory, self.place, self.grid = code, memory, place, grid
        self.schedule, self.agents, self.fences = schedule, agents, fences
        self.allocations: list[SharedAllocation] = []
        self.maps: dict[int, TensorMap] = {}
        """Descriptors in scratch memory."""
        self.unacquired: set[int] = set()
        self.folding = Folding(self._compute)
        self.waits = 0
        self.waiting = {**self.waiting, SPECIALIZE: self._specialize}

    def begin(self, values: Mapping[str, Any]) -> None:
        """Have the schedule run it."""
        self._main = self._partition(DEFAULT, warps_of(self.code.module), dict(values), {})
        self.schedule.start(self._key(DEFAULT), self._body(self._main))

    def _key(self, name: str) -> str:
        return f"{name} of program {', '.join(map(str, self.place))}"

    def _partition(self, name: str, warps: int, values: dict[str, Any], clock: Mapping[int, int]) -> PlayedPartition:
        agent = self.agents.new()
        return PlayedPartition(self, name, warps, agent, values, {**clock, agent: 1})

    def _compute(self, operation: ReadyOperation, operands: list[Any]) -> Any:
        return self._main.compute(operation, operands)

    def _body(self, partition: PlayedPartition) -> Steps:
        yield from partition.region(self.code.function.regions[0])
        self._left_over(partition)

    def _specialize(self, partition: PlayedPartition, operation: ReadyOperation) -> Steps:
        """``ttg.warp_specialize``: what others know at their ends, the one that goes on knows."""
        made = operation.memory.get("workers")
        if made is None:
            made = operation.memory["workers"] = workers(operation.operation, partition.warps)
        others: list[PlayedPartition] = []
        for worker in made[1:]:
            inside = {name: partition.value(outside, operation) for name, outside in worker.arguments}
            other = self._partition(worker.name, worker.warps, inside, partition.clock)
            others.append(other)
            self.schedule.start(self._key(worker.name), self._worker(other, worker.region))
        partition.tick()
        yield from partition.region(made[0].region)
        results = partition.handed(made[0].region)
        names = [self._key(other.name) for other in others]
        yield Pause(lambda: not any(map(self.schedule.runs, names)), "the other partitions' ends")
        for other in others:
            partition.learn(other.clock)
        partition.values.update(zip(operation.defined, results, strict=True))

    def _worker(self, partition: PlayedPartition, region: Any) -> Steps:
        yield from partition.region(region)
        self._left_over(partition)

    def _left_over(self, partition: PlayedPartition) -> None:
        """At its end a partition has waited for all that it issued: its shared memory is not its own any more."""
        for told, left in (
            ("a product", partition.products), ("a TMA store", partition.stores),
            ("a copy", [*partition.groups, *partition.copies]),
        ):  # fmt: skip
            if left:
                raise KernelFault("unwaited", f"{told} is not waited for at the end", partition=partition.name)
