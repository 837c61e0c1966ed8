"""A kernel's TTGIR at the cut as loops that can be planned, and what cannot be, with the reason and the source line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from warpplan.kernels.compiler.analysis.copies.copied_loads import copyable, with_copies
from warpplan.kernels.compiler.analysis.copies.invariant_operands import hoist_invariant_operands
from warpplan.kernels.compiler.analysis.copies.thin_addresses import with_thin_addresses
from warpplan.kernels.compiler.analysis.copies.transposed_stores import mark_transposed_stores
from warpplan.kernels.compiler.analysis.grid_walk import can_walk_grid
from warpplan.kernels.compiler.analysis.loop_work import Flow, LoopWork, read_work
from warpplan.kernels.compiler.analysis.operation_kinds import (
    COPY_LOAD,
    FREE,
    LOOPS,
    RING_KINDS,
    TMA_LOADS,
    short_name,
)
from warpplan.kernels.compiler.analysis.row_values import Types, row_values, value_types
from warpplan.kernels.compiler.analysis.streams import LoadForm, load_forms, streamed_loads
from warpplan.kernels.compiler.analysis.work_groups import register_bits
from warpplan.kernels.compiler.pipeline.conversion_memory import scratch_of_conversions
from warpplan.kernels.compiler.ttgir.accumulator_layouts import with_one_accumulator_layout
from warpplan.kernels.compiler.ttgir.control import handed, read_loop, read_while
from warpplan.kernels.compiler.ttgir.ir import IrOperation, MalformedIR, Module, Region
from warpplan.kernels.compiler.ttgir.names import unique_names
from warpplan.kernels.compiler.ttgir.parsing import parse
from warpplan.kernels.compiler.ttgir.source_locations import SourceLocation, SourceLocations

HOPPER = 9
"""Major compute capability of the GPUs on which producers copy."""
POINTERS = (
    "loads through pointers: a producer runs ahead of loads through tensor descriptors, and on Hopper of pointer loads "
    "that feed a product (tl.dot)"
)


@dataclass(frozen=True)
class Obstacle:
    """Why a loop, or the whole kernel (``loop`` ""), is not specialised; ``operation`` and ``line`` as in
    :class:`CannotPlan`."""

    reason: str
    operation: str = ""
    line: str = ""
    loop: str = ""

    def __str__(self) -> str:
        where = " ".join(part for part in (self.operation, f"({self.line})" if self.line else "") if part)
        return f"{where}: {self.reason}" if where else self.reason


@dataclass(frozen=True)
class Body:
    """A loop's body, or the function's own (``id`` "").

    ``parent`` is the loop around it. ``rows`` are those of its products' accumulators, ``None`` where it has none.
    ``trips`` is known for constant bounds. ``work`` is in an order in which one thread can run it. ``held_bits`` are
    those of tiles from outside that it reads in each iteration, which stay in registers: (of those that follow the rows
    of a product, of others). ``overlapped``: its products are waited for where they are read, and the last one may be
    that of the iteration before (:mod:`~...costing.overlapped_loops`, :mod:`~...costing.deferred_loops`).
    ``vectors_in_place``: its small loads are not read an iteration ahead.
    """

    id: str
    line: str
    kind: str
    parent: str
    work: tuple[LoopWork, ...]
    flows: tuple[Flow, ...]
    rows: int | None
    trips: int | None
    held_bits: tuple[int, int] = (0, 0)
    overlapped: bool = False
    vectors_in_place: bool = False

    def of_kind(self, *kinds: str) -> tuple[LoopWork, ...]:
        return tuple(work for work in self.work if work.kind in kinds)


@dataclass(frozen=True)
class Captured:
    """A kernel at the cut: ``loops`` outer before inner, ``body`` what is outside of them; ``walks`` says whether one
    program can do the work of several, one after the other; ``remarks`` what a specialised loop has to do without.

    ``copied`` is the same kernel where the producer copies what is loaded through pointers, up to each level ``copies``
    that adds a load (:mod:`~warpplan.kernels.compiler.analysis.copies.copied_loads`); ``uncopied`` says which loads
    feed a product and cannot be copied. ``stored_bytes`` are those of the tiles that it stores through pointers and
    that TMA could store; ``stores_kept`` says which stores and additions of products TMA cannot do, and why.
    """

    kernel: str
    capability: int
    warps: int
    body: Body
    loops: tuple[Body, ...]
    obstacles: tuple[Obstacle, ...]
    walks: bool = False
    remarks: tuple[Obstacle, ...] = ()
    copies: int = 0
    copied: tuple[Captured, ...] = ()
    uncopied: tuple[Obstacle, ...] = ()
    stored_bytes: int = 0
    stores_kept: tuple[Obstacle, ...] = ()

    def at(self, copies: int) -> Captured:
        """The kernel as a strategy of that level sees it."""
        return next((other for other in self.copied if other.copies == copies), self)

    @property
    def stores_left(self) -> bool:
        """Whether it stores a tile of a product that TMA cannot."""
        return any(kept.operation == "tt.store" for kept in self.stores_kept)

    @property
    def loading(self) -> tuple[Body, ...]:
        """The loops that load into rings, which a producer runs ahead of: those that a scheme's depths are for."""
        return tuple(loop for loop in self.loops if loop.of_kind(*RING_KINDS))

    def obstacle(self, loop: str = "") -> Obstacle | None:
        """The first obstacle to planning ``loop``, or the whole kernel."""
        return next((o for o in self.obstacles if o.loop == loop), None)


def capture(text: str) -> Captured:
    """Read what :func:`pipeline.cut` gives. Raises :class:`MalformedIR` where it is no kernel that can be read."""
    module = parse(with_one_accumulator_layout(text))
    try:
        hoist_invariant_operands(module)
        mark_transposed_stores(module)
        return capture_module(module)
    except (AssertionError, IndexError, KeyError, StopIteration, ValueError) as error:
        # The tree holds any operands and types: which an operation needs is known only where it is read.
        raise MalformedIR(f"an operation without the operands or types of its kind ({error})", field="ttgir") from error


def capture_module(module: Module) -> Captured:
    """:func:`capture` of what is parsed already."""
    alone = _captured(module, 0)
    if alone.capability // 10 != HOPPER or not any(body.of_kind("load") for body in alone.loops):
        return alone
    try:
        return _with_copied(alone, module)
    except (AssertionError, IndexError, KeyError, StopIteration, ValueError):
        return alone  # addresses in a form that is not read: their loads stay with the consumers


def _with_copied(alone: Captured, module: Module) -> Captured:
    named = with_copies(module, 0)
    found = copyable(named)
    locations = SourceLocations(named)
    copied = tuple(_captured(with_copies(module, level), level) for level in sorted(set(found.levels.values())))
    uncopied = tuple(
        Obstacle(each.told(str(locations.of(each.at))), "tt.load", str(locations.of(each.load)))
        for each in found.refused if each.feeds_product
    )  # fmt: skip
    return replace(alone, copied=copied, uncopied=uncopied)


def _captured(module: Module, copies: int) -> Captured:
    function = unique_names(module.function)
    types = value_types(function)
    attributes = module.operation.attributes
    capability = _number(attributes.get("ttg.target", "").rpartition(":")[2])
    warps = _number(attributes.get("ttg.num-warps", ""))
    reader = _LoopReader(
        function, types, SourceLocations(module), load_forms(module.aliases, function, types),
        scratch_of_conversions(module.aliases, function, warps, capability),
    )  # fmt: skip
    loops = tuple(reader.loops(function.regions[0], ""))
    body = reader.body(function.regions[0], (), "", "", "tt.func", "", None)
    name = next(token[1:] for token in function.tokens if token.startswith("@"))
    obstacles = (
        *_kernel_obstacles(function, loops, SourceLocations(module)),
        *(o for b in loops for o in _loop_obstacles(b)),
    )
    return Captured(
        name,
        capability,
        warps,
        body,
        loops,
        obstacles,
        can_walk_grid(module),
        tuple(_remarks(loops, capability)),
        copies,
    )


class _LoopReader:
    def __init__(
        self, function: IrOperation, types: Types, locations: SourceLocations, forms: Mapping[str, LoadForm],
        scratch: Mapping[str, int],
    ) -> None:  # fmt: skip
        self.forms, self.scratch = forms, scratch
        self.types, self.rows, self.locations = types, row_values(function, types), locations
        self.constants, self.streamed = _constants(function), streamed_loads(function)
        self.outside = {
            name: types.get(name) for operation in function.walk() if short_name(operation) not in FREE
            for name in operation.defined if not operation.regions
        }  # fmt: skip
        """The tiles that operations other than views and constants make, which cost nothing to repeat."""
        self.names: set[str] = set()

    def loops(self, region: Region, parent: str) -> list[Body]:
        found: list[Body] = []
        for operation in region.operations:
            inside = parent
            if operation.name in LOOPS:
                found.append(self._loop(operation, parent))
                inside = found[-1].id
            if not operation.name.startswith(("tt.", '"tt.')):
                for inner in operation.regions:
                    found += self.loops(inner, inside)
        return found

    def _loop(self, operation: IrOperation, parent: str) -> Body:
        location = self.locations.of(operation)
        name = self._name(location)
        if operation.name == "scf.while":
            repeat = read_while(operation)
            following = [value for value, _ in handed(repeat.after.operations[-1])]
            round_trip = dict(zip((inside for inside, *_ in repeat.carried), following, strict=True))
            handed_on = zip(repeat.handed, repeat.condition.operands[1:], strict=True)
            back = tuple((inside, round_trip[v]) for (inside, *_), v in handed_on if v in round_trip)
            return self.body(repeat.after, back, name, str(location), "scf.while", parent, None)
        loop = read_loop(operation)
        carried = tuple((inside, back) for (inside, *_), back in zip(loop.carried, loop.yielded, strict=False))
        trips = self._trips(loop.lower, loop.upper, loop.step)
        return self.body(loop.body, carried, name, str(location), "scf.for", parent, trips)

    def body(
        self, region: Region, carried: tuple[tuple[str, str], ...], name: str, line: str, kind: str, parent: str,
        trips: int | None,
    ) -> Body:  # fmt: skip
        work, flows = read_work(
            region, carried, dict(self.types), self.rows, self.locations, self.streamed, self.forms, self.scratch
        )  # fmt: skip
        work = with_thin_addresses(work, flows)
        rows = max((w.product.m for w in work if w.product is not None), default=None)
        held = self._held_bits(region) if kind in LOOPS else (0, 0)
        return Body(name, line, kind, parent, work, flows, rows, trips, held)

    def _held_bits(self, region: Region) -> tuple[int, int]:
        operations = list(region.walk())
        inside = {name for operation in operations for name in operation.defined}
        read = {name for operation in operations for name in operation.operands} - inside
        tiles = {name: tile for name in read if (tile := self.outside.get(name)) is not None}
        # Whole numbers are offsets and masks, which a thread repeats from its rows' and its columns'.
        outside = [(name, register_bits(t)) for name, t in tiles.items() if t.element.startswith(("f", "bf"))]
        rows = sum(bits for name, bits in outside if name in self.rows)
        return rows, sum(bits for _, bits in outside) - rows

    def _name(self, location: SourceLocation) -> str:
        stem = f"loop@{location}" if location.file else "loop"
        name = next(n for i in range(len(self.names) + 1) if (n := f"{stem}.{i + 1}" if i else stem) not in self.names)
        self.names.add(name)
        return name

    def _trips(self, lower: str, upper: str, step: str) -> int | None:
        first, last, stride = (self.constants.get(value) for value in (lower, upper, step))
        if first is None or last is None or not stride:
            return None
        return max(0, -(-(last - first) // stride))


def _constants(function: IrOperation) -> dict[str, int]:
    """Whole numbers by name."""
    found = {}
    for operation in function.walk():
        if operation.name == "arith.constant" and operation.tokens and operation.results:
            number = operation.tokens[0]
            if number.lstrip("-").isdigit():
                found[operation.result] = int(number)
    return found


def _kernel_obstacles(function: IrOperation, loops: tuple[Body, ...], locations: SourceLocations) -> list[Obstacle]:
    if not loops:
        why = "no loop: there is nothing for a producer to run ahead of"
        return [Obstacle(why, function.name, str(locations.of(function)))]
    if not any(operation.name in (*TMA_LOADS, COPY_LOAD) for operation in function.walk()):
        load = next((o for o in function.walk() if o.name == "tt.load"), None)
        if load is None:
            return [Obstacle("no loop loads anything", loops[0].kind, loops[0].line)]
        why = POINTERS
        return [Obstacle(why, "tt.load", str(locations.of(load)))]
    if not any(loop.of_kind(*RING_KINDS) for loop in loops):
        outside = next(operation for operation in function.walk() if operation.name in (*TMA_LOADS, COPY_LOAD))
        why = "its TMA loads are outside of its loops: there is nothing for a producer to run ahead of"
        return [Obstacle(why, outside.name, str(locations.of(outside)))]
    return []


def _loop_obstacles(loop: Body) -> list[Obstacle]:
    loads = loop.of_kind(*RING_KINDS)
    nested = loop.of_kind("loop")
    if not loads:
        pointers = loop.of_kind("load")
        if nested or not pointers:
            return []  # what matters is said of the loop inside; one that loads nothing needs no producer
        why = POINTERS
        return [Obstacle(why, pointers[0].names[0], pointers[0].line, loop.id)]
    for load in loads:
        late = _needs(loop, load.id)
        if late is not None:
            why = f"its address needs {late.id}, which the consumers compute"
            return [Obstacle(why, load.names[0], load.line, loop.id)]
    return []


def _remarks(loops: tuple[Body, ...], capability: int) -> Iterator[Obstacle]:
    if capability // 10 != HOPPER:
        return
    for loop in loops:
        if loop.kind == "scf.while" and loop.of_kind(*RING_KINDS):
            for product in loop.of_kind("dot"):
                why = "it ends before the next one begins: only a counted loop says whether an iteration went before"
                yield Obstacle(why, product.names[0], product.line, loop.id)


def producer_slice(loop: Body) -> frozenset[str]:
    """The operations that the addresses of the loop's loads into rings need, the loads among them."""
    needed = {work.id for work in loop.of_kind(*RING_KINDS)}
    while True:
        more = {flow.src for flow in loop.flows if flow.dst in needed} - needed
        if not more:
            return frozenset(needed)
        needed |= more


def _needs(loop: Body, load: str) -> LoopWork | None:
    """A tile's work that the address of ``load`` depends on."""
    by_id = {work.id: work for work in loop.work}
    seen: set[str] = set()
    waiting = [flow.src for flow in loop.flows if flow.dst == load]
    while waiting:
        work = by_id[waiting.pop()]
        if work.kind in ("dot", "shared_load", "loop"):
            return work
        if work.id not in seen:
            seen.add(work.id)
            waiting += [flow.src for flow in loop.flows if flow.dst == work.id]
    return None


def _number(text: str) -> int:
    digits = text.split(":")[0].strip().strip('"')
    return int(digits) if digits.isdigit() else 0
