"""Programs of a kernel run on paper: how often loops go round, and which tiles of memory they begin at.

What a kernel does to indices is computed at the first element of each tile, for one program id and the sizes of a
launch. Of a loop's iterations the first is run: what its loads touch there, and how long it is, is what a launch's
time needs. Indices that are looked up in memory are told apart by where they lie; a single number that an array begins
with is taken for a count, which is large.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from warpplan.kernels.compiler.analysis.operation_kinds import TMA_LOADS, TMA_STORES, result_types
from warpplan.kernels.compiler.paper.corner_values import (
    Corner,
    GatheredIndex,
    IndexName,
    LookedUp,
    Place,
    corner,
    holds,
    is_number,
)
from warpplan.kernels.compiler.ttgir.control import WhileLoop, read_branch, read_loop, read_while
from warpplan.kernels.compiler.ttgir.functions import arguments
from warpplan.kernels.compiler.ttgir.ir import IrOperation, Region
from warpplan.kernels.compiler.ttgir.names import unique_names
from warpplan.kernels.compiler.ttgir.parsing import parse
from warpplan.kernels.compiler.ttgir.printed_shapes import operand_list
from warpplan.kernels.compiler.ttgir.types import ShapedType, find_types, parse_type

UNKNOWN_TRIPS = 32
"""Iterations of a loop whose bounds are not known, as in
:data:`~warpplan.kernels.compiler.costing.kernel_model.NOMINAL_TRIPS`."""
COUNT = 1 << 20
"""Stands for a number that is looked up at the beginning of an array, or wherever it lies if it is taken to be alike
everywhere: as large as a count of rows, so that none of the first programs ends early."""
AXES = {"x": 0, "y": 1, "z": 2}


@dataclass(frozen=True)
class TileAccess:
    """One load or store in the first iteration of the loops around it, which it is done ``times`` often in one program.
    ``at`` tells tiles of one operation apart; ``None`` where the address is not known. ``operation`` numbers it.
    ``looked_up`` is whether the address depends on what is looked up: tiles of unlike ``at`` may then be the same, and
    those that are ``gathered`` may share rows in any order."""

    operation: int
    base: str
    at: tuple[int, ...] | None
    moved_bytes: int
    store: bool
    times: float
    looked_up: bool = False
    gathered: bool = False


@dataclass
class PaperProgram:
    """What one program did: iterations by loop, in the capture's order, and its accesses. ``counted`` is false where a
    loop's length depends on data, or follows no straight line: :data:`UNKNOWN_TRIPS` stand for it."""

    trips: list[float]
    accesses: list[TileAccess] = field(default_factory=list)
    counted: bool = True


class PaperKernel:
    """The cut ``text`` of a kernel, for launches of given sizes. Raises
    :class:`~warpplan.kernels.compiler.ttgir.ir.MalformedIR`."""

    def __init__(self, text: str) -> None:
        self.function = unique_names(parse(text).function)
        every = list(self.function.walk())
        self.numbers = {id(operation): i for i, operation in enumerate(every)}
        self.operands = {id(operation): operand_list(operation) for operation in every}
        self.loops = {id(o): i for i, o in enumerate(o for o in every if o.name in ("scf.for", "scf.while"))}
        self.arguments = arguments(self.function)

    def array_bytes(self, elements: Mapping[str, int]) -> dict[str, int]:
        """Bytes of each array, of which ``elements`` says how many elements it has."""
        found = {name: re.search(r"!tt\.ptr<(\w+)", self.arguments.get(f"%{name}", "")) for name in elements}
        types = {name: ShapedType("tensor", (elements[name],), kind[1]) for name, kind in found.items() if kind}
        return {name: array.bytes for name, array in types.items()}

    def run(
        self, sizes: Mapping[str, int], ids: Sequence[int], grid: Sequence[int], *, alike: bool = False
    ) -> PaperProgram:
        """One program: ``ids`` are its three program ids of ``grid``, ``sizes`` the integer arguments by name.

        ``alike`` takes it that a number which is looked up, such as a tile's expert, is the same wherever it is, and
        that a tile of them, such as rows that are gathered, differs from place to place.
        """
        done = PaperProgram([0.0] * len(self.loops))
        names: dict[str, Corner] = {}
        for name, kind in self.arguments.items():
            plain = name.lstrip("%")
            points = "tensordesc" in kind or "!tt.ptr" in kind
            names[name] = Place(plain) if points else sizes.get(plain)
        _Reader(self, done, ids, grid, alike).region(self.function.regions[0], names, 1.0)
        return done


class _Reader:
    def __init__(
        self, kernel: PaperKernel, done: PaperProgram, ids: Sequence[int], grid: Sequence[int], alike: bool
    ) -> None:
        self.kernel, self.done, self.ids, self.grid, self.alike = kernel, done, ids, grid, alike

    def region(self, region: Region, names: dict[str, Corner], times: float) -> list[Corner]:
        """Run ``region``, which is entered ``times`` often; what its end hands on."""
        for operation in region.operations:
            if operation.name in ("scf.yield", "scf.condition"):
                return [names.get(name) for name in operation.operands]
            self._operation(operation, names, times)
        return []

    def _operation(self, operation: IrOperation, names: dict[str, Corner], times: float) -> None:
        name = operation.name
        if name == "scf.for":
            self._loop(operation, names, times)
        elif name == "scf.if":
            self._branch(operation, names, times)
        elif name == "scf.while":
            self._while(operation, names, times)
        elif name == "tt.get_program_id":
            names[operation.result] = self.ids[AXES[operation.tokens[0]]]
        elif name == "tt.get_num_programs":
            names[operation.result] = self.grid[AXES[operation.tokens[0]]]
        else:
            read = [names.get(value) for value in self.kernel.operands[id(operation)]]
            if name in ("tt.load", "tt.store") or name in TMA_LOADS | TMA_STORES:
                self._access(operation, read, times)
                if name == "tt.load":
                    names[operation.result] = self._look_up(operation, read)
            elif len(operation.defined) == 1:
                names[operation.result] = corner(operation, read)

    def _loop(self, operation: IrOperation, names: dict[str, Corner], times: float) -> None:
        loop = read_loop(operation)
        start, end, step = (names.get(value) for value in (loop.lower, loop.upper, loop.step))
        trips: float = UNKNOWN_TRIPS
        if is_number(start) and is_number(end) and is_number(step) and step > 0:
            trips = max(0, -(-(end - start) // step))
        else:
            self.done.counted = False
        self.done.trips[self.kernel.loops[id(operation)]] += times * trips
        names[loop.variable] = start
        for inside, initial, _, result in loop.carried:
            names[inside] = names.get(initial)
            names[result] = None
        if trips:
            self.region(loop.body, names, times * trips)

    def _while(self, operation: IrOperation, names: dict[str, Corner], times: float) -> None:
        """As many iterations as two numbers that are compared, and whose difference changes evenly, take to meet."""
        loop = read_while(operation)
        state = [names.get(initial) for _, initial, _ in loop.carried]
        trips = self._trips(loop, names, state)
        if trips is None:
            self.done.counted = False
            trips = UNKNOWN_TRIPS
        self.done.trips[self.kernel.loops[id(operation)]] += times * trips
        handed = self._test(loop, names, state, times * (trips + 1))
        if trips:
            names |= zip((inside for inside, *_ in loop.handed), handed, strict=True)
            self.region(loop.after, names, times * trips)
        names |= dict.fromkeys(result for *_, result in loop.handed)

    def _trips(self, loop: WhileLoop, names: dict[str, Corner], state: list[Corner]) -> int | None:
        """Iterations of ``loop`` from ``state`` on; ``None`` where they are not known. Nothing that is run is noted."""
        scratch = _Reader(self.kernel, PaperProgram([0.0] * len(self.kernel.loops)), self.ids, self.grid, self.alike)
        name = loop.condition.operands[0]
        test = next((o for o in loop.before.operations if o.name == "arith.cmpi" and o.result == name), None)
        if test is None:
            return None
        apart: list[int] = []
        for _ in range(3):
            inner = dict(names)
            handed = scratch._test(loop, inner, state, 1.0)
            a, b = (inner.get(value) for value in self.kernel.operands[id(test)])
            if not is_number(a) or not is_number(b):
                return None
            if not apart and not holds(test, a, b):
                return 0
            apart.append(a - b)
            inner |= zip((inside for inside, *_ in loop.handed), handed, strict=True)
            state = scratch.region(loop.after, inner, 1.0)
        first, step = apart[0], apart[1] - apart[0]
        if not step or apart[2] - apart[1] != step:
            return None
        near = max(1, -first // step)
        return next((n for n in range(near, near + 3) if not holds(test, first + step * n, 0)), None)

    def _test(self, loop: WhileLoop, names: dict[str, Corner], state: list[Corner], times: float) -> list[Corner]:
        """Run the part of ``loop`` that decides whether it goes on; what it hands to its body."""
        names |= zip((inside for inside, *_ in loop.carried), state, strict=True)
        return self.region(loop.before, names, times)[1:]

    def _branch(self, operation: IrOperation, names: dict[str, Corner], times: float) -> None:
        branch = read_branch(operation)
        condition = names.get(branch.condition)
        if is_number(condition):
            taken = branch.then if condition else branch.otherwise
        else:  # the way that does more: the other is an early end, or an edge
            taken = max(branch.then, branch.otherwise, key=lambda way: sum(1 for _ in way.walk()))
        for (_, result), value in zip(branch.results, self.region(taken, names, times), strict=False):
            names[result] = value

    def _look_up(self, operation: IrOperation, read: list[Corner]) -> Corner:
        """What stands for an index that is loaded; ``None`` for what is no index, or lies nobody knows where."""
        place = next((value for value in read if isinstance(value, Place)), None)
        if not re.search(r"!tt\.ptr<i\d+", operation.signature):
            return None
        single = next(iter(result_types(operation)), None) is None
        if self.alike and single:
            return COUNT
        if place is None or place.offset is None:
            return None
        if self.alike:
            return place.offset
        name = IndexName.of(place.base, place.offset)
        if not single:
            return GatheredIndex(name)
        first = place.offset == 0 and not isinstance(place.offset, IndexName)
        return LookedUp(COUNT) if first else name

    def _access(self, operation: IrOperation, read: list[Corner], times: float) -> None:
        store = operation.name == "tt.store" or operation.name in TMA_STORES
        tile = _stored(operation) if store else next(iter(result_types(operation)), None)
        if tile is None or not tile.shape:
            return
        place = next((value for value in read if isinstance(value, Place)), Place("unknown", None))
        at: tuple[int, ...] | None = None
        if place.offset is not None:
            # A descriptor's tile begins at coordinates, which are its other operands.
            coordinates = () if operation.name in ("tt.load", "tt.store") else read
            known = [value for value in coordinates if not isinstance(value, Place)]
            numbers = tuple(value for value in known if isinstance(value, int))
            wanted = len(known) - (1 if store else 0)
            at = (
                (place.offset, *numbers)
                if operation.name in ("tt.load", "tt.store") or len(numbers) == wanted
                else None
            )
        number = self.kernel.numbers[id(operation)]
        looked_up, gathered = (any(isinstance(v, kind) for v in at or ()) for kind in (LookedUp, GatheredIndex))
        self.done.accesses.append(TileAccess(number, place.base, at, tile.bytes, store, times, looked_up, gathered))


def _stored(operation: IrOperation) -> ShapedType | None:
    """The tile that a store writes: the pointers' shape and element, or its value's."""
    types = [found for text in find_types(operation.signature) if (found := parse_type(text)) is not None]
    for found in types:
        if found.kind == "tensor" and found.element.startswith("!tt.ptr<"):
            return ShapedType("tensor", found.shape, found.element[len("!tt.ptr<") : -1], found.rest)
    return next((found for found in types if found.kind == "tensor"), None)
