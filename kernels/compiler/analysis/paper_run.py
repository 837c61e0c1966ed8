"""Programs of a kernel run on paper: how often loops go round, and which addresses are touched, with no data.

What a kernel does to indices is computed for a few program ids and the sizes of a launch; of a loop's iterations the
first two and the last are run, and what is carried advances in between by what it did in the first. Addresses that are
looked up in memory are not known and are counted as touching nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from warpplan.kernels.compiler.analysis.operation_kinds import TMA_LOADS, TMA_STORES, result_types
from warpplan.kernels.compiler.analysis.paper_values import Descriptor, PointedAt, Value, computed
from warpplan.kernels.compiler.ttgir.control import read_branch, read_loop
from warpplan.kernels.compiler.ttgir.ir import IrOperation, MalformedIR, Region
from warpplan.kernels.compiler.ttgir.names import unique_names
from warpplan.kernels.compiler.ttgir.parsing import parse
from warpplan.kernels.compiler.ttgir.printed_shapes import operand_list
from warpplan.kernels.compiler.ttgir.types import ShapedType, find_types, parse_type

LINE_BYTES = 128
"""Of L2 and of what a warp's access is cut into (CUDA C++ Programming Guide, "Device Memory Accesses")."""
UNKNOWN_TRIPS = 32
"""Iterations of a loop whose bounds are not known, as in
:data:`~warpplan.kernels.compiler.costing.kernel_model.NOMINAL_TRIPS`."""
AXES = {"x": 0, "y": 1, "z": 2}


@dataclass(frozen=True, eq=False)
class Access:
    """Lines of memory that one operation touched once: ``lines`` are numbers in the tensor ``base``, ``None`` where
    they are not known; ``first`` whether in the first iteration of every loop around it."""

    base: str
    lines: np.ndarray | None
    moved_bytes: int
    store: bool
    first: bool


@dataclass
class PaperProgram:
    """What one program did: iterations by loop, in the capture's order, and its accesses."""

    trips: dict[int, float] = field(default_factory=dict)
    accesses: list[Access] = field(default_factory=list)


class PaperKernel:
    """The cut ``text`` of a kernel, for launches with given sizes. Raises :class:`MalformedIR`."""

    def __init__(self, text: str) -> None:
        self.function = unique_names(parse(text).function)
        self._operands = {id(o): operand_list(o) for o in self.function.walk()}
        loops = [o for o in self.function.walk() if o.name in ("scf.for", "scf.while")]
        self.loop_numbers = {id(o): i for i, o in enumerate(loops)}
        self._arguments = _arguments(self.function)

    def run(self, sizes: Mapping[str, int], ids: Sequence[int], grid: Sequence[int]) -> PaperProgram:
        """One program: ``ids`` are its three program ids, ``sizes`` the integer arguments by name."""
        done = PaperProgram({number: 0.0 for number in self.loop_numbers.values()})
        names: dict[str, Value] = {}
        for name, kind in self._arguments.items():
            plain = name.lstrip("%")
            if "tensordesc" in kind:
                names[name] = Descriptor(plain, 0)
            elif "!tt.ptr" in kind:
                names[name] = PointedAt(plain, 0)
            else:
                names[name] = sizes.get(plain)
        _Player(self, done, ids, grid).region(self.function.regions[0], names, 1.0, True)
        return done


class _Player:
    def __init__(self, kernel: PaperKernel, done: PaperProgram, ids: Sequence[int], grid: Sequence[int]) -> None:
        self.kernel, self.done, self.ids, self.grid = kernel, done, ids, grid

    def region(self, region: Region, names: dict[str, Value], times: float, first: bool) -> list[Value]:
        """Run ``region``, which is entered ``times`` often; what its end hands on."""
        for operation in region.operations:
            if operation.name in ("scf.yield", "scf.condition"):
                return [names.get(name) for name in operation.operands]
            self._operation(operation, names, times, first)
        return []

    def _operation(self, operation: IrOperation, names: dict[str, Value], times: float, first: bool) -> None:
        if operation.name == "scf.for":
            return self._loop(operation, names, times, first)
        if operation.name == "scf.if":
            return self._branch(operation, names, times, first)
        if operation.name == "scf.while":
            self.done.trips[self.kernel.loop_numbers[id(operation)]] += times * UNKNOWN_TRIPS
            return None
        read = [names.get(name) for name in self.kernel._operands[id(operation)]]
        if operation.name in ("tt.load", "tt.store") or operation.name in TMA_LOADS | TMA_STORES:
            self._access(operation, read, first)
        elif operation.name == "tt.get_program_id":
            names[operation.result] = self.ids[AXES[operation.tokens[0]]]
        elif operation.name == "tt.get_num_programs":
            names[operation.result] = self.grid[AXES[operation.tokens[0]]]
        elif operation.name == "tt.make_tensor_descriptor" and isinstance(read[0], PointedAt):
            names[operation.result] = Descriptor(read[0].base, int(read[0].offset or 0))
        elif len(operation.results) == 1 and len(operation.defined) == 1:
            names[operation.result] = computed(operation, read)
        return None

    def _loop(self, operation: IrOperation, names: dict[str, Value], times: float, first: bool) -> None:
        loop = read_loop(operation)
        bounds = [names.get(value) for value in (loop.lower, loop.upper, loop.step)]
        number = self.kernel.loop_numbers[id(operation)]
        carried = [names.get(initial) for _, initial, _, _ in loop.carried]
        if any(not isinstance(b, int | np.integer) for b in bounds) or not bounds[2]:
            trips, start, step = UNKNOWN_TRIPS, 0, 1
        else:
            start, end, step = map(int, bounds)
            trips = max(0, -(-(end - start) // step))
        self.done.trips[number] += times * trips
        played = sorted({0, 1, trips - 1} & set(range(trips)))
        at = 0
        steps: list[Value] = []
        for i in played:
            if i > at and steps:
                carried = [_advanced(value, by, i - at) for value, by in zip(carried, steps, strict=True)]
                at = i
            names[loop.variable] = start + i * step
            names.update({inside: value for (inside, *_), value in zip(loop.carried, carried, strict=True)})
            share = times * trips / len(played)
            after = self.region(loop.body, names, share, first and i == 0)
            if not steps:
                steps = [_step(before, now) for before, now in zip(carried, after, strict=True)]
            carried, at = after, at + 1
        names.update({result: value for (*_, result), value in zip(loop.carried, carried, strict=True)})

    def _branch(self, operation: IrOperation, names: dict[str, Value], times: float, first: bool) -> None:
        branch = read_branch(operation)
        condition = names.get(self.kernel._operands[id(operation)][0])
        taken = branch.otherwise if isinstance(condition, int | np.integer) and not condition else branch.then
        handed = self.region(taken, names, times, first) if taken is not None else []
        for (_, result), value in zip(branch.results, handed, strict=False):
            names[result] = value

    def _access(self, operation: IrOperation, read: list[Value], first: bool) -> None:
        store = operation.name == "tt.store" or operation.name in TMA_STORES
        tile = _stored(operation) if store else next(iter(result_types(operation)), None)
        if tile is None or not tile.shape:
            return
        size = tile.bytes
        place = next((value for value in read if isinstance(value, PointedAt | Descriptor)), None)
        base = place.base if place is not None else "unknown"
        lines = None
        if isinstance(place, Descriptor):
            numbers = [int(v) for v in read if isinstance(v, int | np.integer)]
            # A descriptor's tile is told from others by its corner: lines of different corners never meet.
            corner = hash((place.offset, *numbers)) & 0xFFFFFFFFFF
            lines = corner * 65_536 + np.arange(max(1, size // LINE_BYTES))
        elif isinstance(place, PointedAt) and isinstance(place.offset, np.ndarray):
            masks = [v for v in read if isinstance(v, np.ndarray) and v.dtype == bool and v.shape == place.offset.shape]
            offsets = place.offset[masks[0]] if masks else place.offset.ravel()
            lines = np.unique(offsets * max(1, tile.element_bits // 8) // LINE_BYTES)
        self.done.accesses.append(Access(base, lines, size, store, first))


def _stored(operation: IrOperation) -> ShapedType | None:
    """The tile that a store writes: the type of its pointers, element for pointer, or of its value."""
    types = [parse_type(text) for text in find_types(operation.signature)]
    for found in types:
        if found is not None and found.kind == "tensor" and "!tt.ptr<" in found.element:
            return ShapedType("tensor", found.shape, found.element[len("!tt.ptr<") : -1], found.rest)
    return next((t for t in types if t is not None and t.kind == "tensor"), None)


def _step(before: Value, after: Value) -> Value:
    """What one iteration adds, ``None`` where that is not known."""
    if isinstance(before, PointedAt) and isinstance(after, PointedAt) and before.base == after.base:
        return after.offset - before.offset
    if isinstance(before, PointedAt | Descriptor) or isinstance(after, PointedAt | Descriptor):
        return None
    return None if before is None or after is None else after - before


def _advanced(value: Value, by: Value, times: int) -> Value:
    if by is None or value is None:
        return value if isinstance(value, Descriptor) else None
    return PointedAt(value.base, value.offset + times * by) if isinstance(value, PointedAt) else value + times * by


def _arguments(function: IrOperation) -> dict[str, str]:
    """The type of each of the kernel's arguments."""
    from warpplan.kernels.compiler.ttgir.functions import arguments

    found: dict[str, str] = {}
    for name, kind in arguments(function):
        found[name] = kind
    if not found and "(" not in "".join(function.tokens):
        raise MalformedIR("a kernel without a list of arguments", field="ttgir")
    return found
