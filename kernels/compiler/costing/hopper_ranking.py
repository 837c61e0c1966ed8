"""Captured loops to ranked Hopper schemes: which specialisation pays, by the planner.

Every way to share a kernel out (consumers, their warps) is planned loop by loop with its partitions pinned, and
compared with leaving the kernel alone by the times of :mod:`~warpplan.kernels.compiler.costing.kernel_model`. No scheme
changes the tile, so the times of one tile compare directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from warpplan.kernels.compiler.analysis.capture import Body, Captured, Obstacle
from warpplan.kernels.compiler.analysis.copies.producer_size import LEAST_REGISTERS, PRODUCER_WARPS
from warpplan.kernels.compiler.analysis.operation_kinds import LOAD_KINDS, OPERANDS
from warpplan.kernels.compiler.costing.assigned_loops import assigned
from warpplan.kernels.compiler.costing.copy_costs import registers_of_producer
from warpplan.kernels.compiler.costing.deferred_loops import issued_together
from warpplan.kernels.compiler.costing.free_problem import solved_assignments
from warpplan.kernels.compiler.costing.kernel_model import (
    BLOCK_BYTES,
    LEAST_DEPTH,
    MORE_SECONDS,
    SOLVE_SECONDS,
    WORTH_TRYING,
    KernelModel,
    RankedStrategy,
    busiest_unit,
    excess_warps,
    ii_of,
)
from warpplan.kernels.compiler.costing.loop_graph import (
    BASE_REGISTERS,
    MMA_COLUMNS,
    MMA_ROWS,
    Shape,
    in_flight,
    lookahead_product,
    registers_for,
)
from warpplan.kernels.compiler.costing.misfit import misfit
from warpplan.kernels.compiler.costing.pressure import live_registers, loads_alike, shared_bytes
from warpplan.kernels.compiler.costing.whole_launch import LaunchSize
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.lowering.assigned.converter_size import (
    CONVERTER_WARPS,
    MOST_REGISTERS,
    converter_registers,
)
from warpplan.kernels.compiler.lowering.register_shares import starting_registers
from warpplan.kernels.compiler.sizes.gain_model import GainModel, StrategyTerms
from warpplan.kernels.compiler.sizes.loop_trips import loop_trips
from warpplan.kernels.compiler.strategy.hopper import MOST_BLOCKS, MOST_CONSUMER_WARPS, PRODUCER, HopperStrategy
from warpplan.kernels.compiler.strategy.protocol import MOST_DEPTH, Strategy
from warpplan.kernels.compiler.ttgir.parsing import parse
from warpplan.planner.errors import InvalidInput
from warpplan.planner.solve import effective_ii, solve
from warpplan.planner.values.device import Device
from warpplan.planner.values.options import PartitionSpec, SolveOptions
from warpplan.planner.values.plan import Outcome, Plan
from warpplan.planner.values.profile import Profile

START_DEPTH = 3
"""Slots that the search for the fewest begins with: one being read, one filled, one on its way."""
WORTH_A_SLOT = 0.99
"""Factor on the interval that one slot more must reach: it has to be shorter by a hundredth. Chosen by hand."""
WORTH_A_BLOCK = 0.97
"""Factor on a kernel's time that one block more on an SM must reach, for each comes with its own prologue and fewer
registers. Chosen by hand."""
MORE_REGISTERS = 52
"""Registers beside a loop's values that a consumer must have where several blocks run on an SM, or where it has two
tiles of a lone product. ptxas of Triton 3.6.0 gives kernels with descriptors 22 to 57; a block more is no gain where
its consumers spill. Of block-scaled fp8 GEMMs whose two tiles of 64 x 128 leave 44 to 47, some spill, 260 bytes a
thread."""
WARP_GROUP = 4
"""Warps that issue one wgmma (PTX ISA, "Warpgroup")."""


def schemes(captured: Captured, profile: Profile, device: Device, *, stages: int = 3) -> tuple[RankedStrategy, ...]:
    """The schemes worth trying, best first: leaving the kernel alone, in its place, and those not predicted to be
    clearly slower. Raises :class:`CannotPlan` with the operation and the source line where there are none; else as
    :func:`rank`."""
    ranked = rank(captured, profile, device, stages=stages)
    found = tuple(r for r in ranked if r.gain >= WORTH_TRYING)
    if all(r.scheme is None for r in found):
        obstacle = excess_warps(captured) if _ways(captured) else None
        obstacle = obstacle or (None if captured.copied else _obstacle(captured))
        if obstacle is None and all(r.scheme is None for r in ranked):
            obstacle = no_fit(captured.copied[-1] if captured.copied else captured, device)
        if obstacle is not None:
            raise CannotPlan(obstacle.reason, obstacle.operation, obstacle.line)
        raise CannotPlan(next(r.reason for r in ranked if r.scheme is None))
    return found


def gain_models(
    ranked: Sequence[RankedStrategy],
    captured: Captured,
    text: str,
    profile: Profile,
    device: Device,
    *,
    stages: int = 3,
) -> dict[Strategy, GainModel]:
    """What the gain of each strategy of ``ranked``, of the kernel ``text``, is at other sizes; of those whose producer
    runs ahead of the same loops as Triton's own pipeline."""
    stock = HopperModel(_stock(_ways(captured)), profile, device, stages)
    loading = {loop.id for loop in stock.captured.loading}
    trips = tuple(
        t for t, loop in zip(loop_trips(parse(text).function), captured.loops, strict=True) if loop.id in loading
    )
    alone = stock.alone_terms()
    return {
        r.scheme: GainModel(device.sm_count, trips, alone, r.terms, bool(r.scheme.walking_programs))
        for r in ranked
        if r.scheme is not None and r.terms is not None
        and {loop.id for loop in captured.at(r.copies).loading} == loading
    }  # fmt: skip


def rank(
    captured: Captured, profile: Profile, device: Device, *, stages: int = 3, launch: LaunchSize | None = None
) -> tuple[RankedStrategy, ...]:
    """Every scheme that fits, best first, and leaving the kernel alone among them, with the obstacle where nothing
    fits.

    ``stages`` is the ``num_stages`` of the unspecialised compile; with ``launch``, times of that launch are predicted,
    too, but for a kernel with an obstacle. Deterministic; of equal predictions fewer partitions,
    warps and slots come first. Raises :class:`InvalidInput` for a device that is not Hopper.
    """
    if not device.has_wgmma:
        raise InvalidInput(
            f"schemes for {device.name}: expected a Hopper GPU; on Blackwell Triton's own partitions are steered",
            field="device", value=device.name,
        )  # fmt: skip
    ways = _ways(captured)
    obstacle = excess_warps(captured) if ways else _obstacle(captured)
    if not ways or obstacle is not None:
        return (RankedStrategy(None, (), (), 0.0, 1.0, str(obstacle)),)
    stock = HopperModel(_stock(ways), profile, device, stages, launch)
    alone = stock.alone()
    found = []
    for way in ways:
        model = HopperModel(way, profile, device, stages, launch)
        shapes = _shapes(way)
        found += [s for shape in shapes for s in model.crowded(shape)]
        for shape, assignment in solved_assignments(way, shapes, profile, device):
            found += AssignedModel(way, assignment, profile, device, stages, launch).assigned(shape)
    once = {r.scheme: r for r in (*found, *_storing(found, ways, stock))}.values()
    ranked = [replace(s, gain=stock.gain(alone.predicted_cycles, s.predicted_cycles)) for s in once]
    if not ranked:
        alone = replace(alone, reason=str(no_fit(ways[-1], device)))
    elif not any(s.gain > 1 for s in ranked):
        alone = replace(alone, reason=f"no partition pays: {alone.reason}")
    timed = (replace(r, launch_us=stock.launch_us(r.predicted_cycles)) for r in (alone, *ranked))
    return tuple(sorted(timed, key=_order))


def _storing(found: Sequence[RankedStrategy], ways: Sequence[Captured], stock: HopperModel) -> list[RankedStrategy]:
    """The best of ``found`` that walks, again with TMA stores, where shared memory suffices: both are to be tried."""
    levels = {way.copies: way for way in ways if way.stored_bytes}
    for ranked in sorted((r for r in found if r.copies in levels), key=_order):
        scheme, way = ranked.scheme, levels[ranked.copies]
        if isinstance(scheme, HopperStrategy) and scheme.persistent and not scheme.assignment:
            depths = scheme.ring_depths(len(way.loading))
            needed = shared_bytes(way, depths, consumers=scheme.consumers, warps=scheme.warps, storing=True)
            if needed <= stock.shared_bytes_of_block(scheme.blocks):
                return [replace(ranked, scheme=replace(scheme, stores=1))]
    return []


def _ways(captured: Captured) -> list[Captured]:
    """``captured`` with its producer at each level of what it copies, where nothing stands against it."""
    return [way for way in (captured, *captured.copied) if _obstacle(way) is None]


def _stock(ways: Sequence[Captured]) -> Captured:
    """Which of ``ways`` Triton's own pipeline is most like: it copies ahead what feeds products."""
    return next((way for way in ways if way.copies == OPERANDS), ways[0])


def no_fit(captured: Captured, device: Device) -> Obstacle:
    """Why no scheme fits ``captured``, for which :func:`rank` found none."""
    return misfit(captured, [replace(shape, in_flight=False) for shape in _shapes(captured)], device)


def _obstacle(captured: Captured) -> Obstacle | None:
    return captured.obstacle() or next(
        (o for loop in captured.loading if (o := captured.obstacle(loop.id)) is not None), None
    )


def _binding(plan: Plan, solved: tuple[int, Outcome], depth: int, interval: int) -> str:
    """What binds the interval of ``plan`` with rings of ``depth`` slots: the plan's own reason, or too few slots."""
    if interval <= plan.schedule.ii_cycles:
        return solved[1].reason
    held = max(channel.live_cycles for channel in plan.channels)
    return f"{depth} slots: too few to load ahead, each held {held} cycles"


def _fastest(found: list[RankedStrategy]) -> float:
    return min(ranked.predicted_cycles for ranked in found)


def _order(ranked: RankedStrategy) -> tuple[object, ...]:
    s = ranked.scheme
    return round(ranked.predicted_cycles), () if s is None else s.complexity


def _shapes(captured: Captured) -> list[Shape]:
    """Consumers and warps that the tile's rows allow. One consumer runs any loop as Triton laid it out, with products
    of 16 rows by mma.sync or none. Several share out rows, 64 or more each, in whole wgmma instructions; so do the two
    warp groups of a consumer of eight warps."""
    rows = [
        work.product.m
        for loop in captured.loading for work in loop.of_kind("dot")
        if work.product is not None and any(name.endswith("warp_group_dot") for name in work.names)
    ]  # fmt: skip
    flying = any(
        lookahead_product(loop) is not None
        or issued_together(loop)
        or all(in_flight(loop, work) for work in loop.of_kind("dot"))
        for loop in captured.loading
    )
    found = []
    for consumers, warps in product((1, 2, 3), (4, 8)):
        # The rows of all products are shared out, or of none.
        whole = consumers == 1 or (rows and all(r % (MMA_ROWS * consumers) == 0 for r in rows))
        # Two groups of four warps without rows for both share out columns, and exchange what they multiply again.
        apart = warps == WARP_GROUP or all(r >= MMA_ROWS * consumers * warps // WARP_GROUP for r in rows)
        if whole and apart and consumers * warps <= MOST_CONSUMER_WARPS:
            registers = registers_of_producer(captured)
            shape = Shape(consumers, warps, in_flight=flying, producer_registers=registers)
            # Of equal predictions the one first that takes fewer registers.
            both = _promotes(captured) or _defers(captured)
            found += [replace(shape, in_flight=False), shape] if both else [shape]
    return found


def _promotes(captured: Captured) -> bool:
    """Whether a loop works on its only product, which may be issued an iteration early or not: early, a thread has two
    tiles of it, which takes registers and may gain nothing."""
    return any(len(loop.of_kind("dot")) == 1 and lookahead_product(loop) is not None for loop in captured.loading)


def _defers(captured: Captured) -> bool:
    """Whether products of a loop may be issued together: then their results are in registers at once."""
    return any(lookahead_product(loop) is None and issued_together(loop) for loop in captured.loading)


class HopperModel(KernelModel):
    """Predicts a captured kernel's time under each scheme, and left alone as in :class:`KernelModel`."""

    assignment: tuple[int, ...] = ()

    def extra_specs(self, shape: Shape) -> tuple[PartitionSpec, ...]:
        """The partitions of an assignment."""
        return ()

    def crowded(self, shape: Shape) -> list[RankedStrategy]:
        """The schemes of ``shape`` with one block on an SM, and with more for as long as that is faster: while a
        consumer waits for its own results, another block's works."""
        best: list[RankedStrategy] = []
        for blocks in range(1, MOST_BLOCKS + 1):
            found = self.specialized(replace(shape, blocks=blocks))
            if not found or (best and _fastest(found) > WORTH_A_BLOCK * _fastest(best)):
                break
            best += found
        return best

    def specialized(self, shape: Shape) -> list[RankedStrategy]:
        """The schemes of ``shape``: at the fewest slots that keep its interval, one fewer and one more; none where it
        does not fit."""
        registers = registers_for(shape, self.device)
        loops = self.captured.loading
        has_lookahead = shape.in_flight and any(lookahead_product(loop) is not None for loop in loops)
        # A product that is issued an iteration early takes registers that there may not be; then none is.
        otherwise = replace(shape, in_flight=False)
        two_tiles = shape.in_flight and _promotes(self.captured)
        beside = MORE_REGISTERS if shape.blocks > 1 or two_tiles else BASE_REGISTERS
        if any(live_registers(loop, shape) + beside > registers for loop in loops):
            return self.specialized(otherwise) if has_lookahead else []
        limit_bytes = self.shared_bytes_of_block(shape.blocks)
        most = self._fit([MOST_DEPTH] * len(loops), shape, limit_bytes)
        if most is None:
            return []
        memory = limit_bytes if shape.blocks > 1 else None
        specs = tuple(PartitionSpec(f"consumer{i}", shape.warps, registers) for i in range(shape.consumers))
        copying = shape.producer_registers > LEAST_REGISTERS
        specs += (PartitionSpec(PRODUCER, PRODUCER_WARPS if copying else 1, shape.producer_registers),)
        specs += self.extra_specs(shape)
        solved = []
        for loop, limit in zip(loops, most, strict=True):
            fewest = self._fewest_slots(loop, shape, specs, limit, memory)
            if fewest is None:
                return self.specialized(otherwise) if has_lookahead else []
            solved.append(fewest)
        plans = tuple(plan for plan in (outcome.plan for _, outcome in solved) if plan is not None)
        # By programs that walk over the grid, what fills the first slots is loaded while the last tile is finished.
        saved = {0: 0.0, 1: 0.0 if self.nested() else self.first_fill(shape)}
        found: dict[tuple[tuple[int, ...], int], RankedStrategy] = {}
        for step in (0, -1, 1):
            wanted = [self._depth_of(loop, solved) + step for loop in loops]
            depths = tuple(min(limit, max(LEAST_DEPTH, d)) for d, limit in zip(wanted, most, strict=True))
            if (depths, 0) in found or self._shared_bytes(depths, shape) > limit_bytes:
                continue
            intervals = tuple(
                effective_ii(plan, depth) if depth < fewest else plan.schedule.ii_cycles
                for plan, depth, (fewest, _) in zip(plans, depths, solved, strict=True)
            )
            why = "; ".join(dict.fromkeys(map(_binding, plans, solved, depths, intervals)))
            busiest = [busiest_unit(self.graph(loop, shape)[0]) for loop in loops]
            intervals = tuple(max(b, -(-ii // shape.blocks)) for b, ii in zip(busiest, intervals, strict=True))
            slots = (shape.blocks * (d - 1) for d in depths)
            terms = [self.interval(*each) for each in zip(loops, intervals, slots, strict=True)]
            waited = self.beside(shape.warps * shape.consumers, shape.blocks, pipelined=False)
            cycles = self.tile(terms, shape) + waited
            for persistent in (0, 1) if self.captured.walks else (0,):
                level = self.captured.copies
                scheme = HopperStrategy(
                    shape.consumers, depths, shape.warps, int(shape.in_flight), persistent, level, shape.blocks,
                    self.assignment,
                )  # fmt: skip
                outside = self.tile([0.0] * len(loops), shape) - saved[persistent] + waited
                once = self.first_fill(shape) if persistent or self.nested() else 0.0
                sized = StrategyTerms(tuple(terms), outside, once)
                ranked = RankedStrategy(
                    scheme, plans, intervals, cycles - saved[persistent], 1.0, why, level, terms=sized
                )
                found[depths, persistent] = ranked
        return list(found.values())

    def _depth_of(self, loop: Body, solved: list[tuple[int, Outcome]]) -> int:
        """The most slots that ``loop``, or another that can share its rings, wants."""
        loops = zip(self.captured.loading, solved, strict=True)
        return max(depth for other, (depth, _) in loops if loads_alike(other) == loads_alike(loop))

    def _fewest_slots(
        self, loop: Body, shape: Shape, specs: tuple[PartitionSpec, ...], most: int, memory: int | None
    ) -> tuple[int, Outcome] | None:
        """The fewest slots, from ``START_DEPTH``, beyond which the interval gets no shorter, and the plan with them.
        Loads take their 90th percentile from DRAM."""
        graph, pins = self.graph(loop, shape, memory)
        chosen: tuple[int, Outcome] | None = None
        for depth in range(min(START_DEPTH, most), most + 1):
            options = SolveOptions(SOLVE_SECONDS, depth, pinned=pins, partitions=specs)
            outcome = solve(graph, options)
            if outcome.status == "unknown":
                outcome = solve(graph, replace(options, work_limit_s=MORE_SECONDS))
            if outcome.plan is None:
                break
            if chosen is not None and ii_of(outcome) > WORTH_A_SLOT * ii_of(chosen[1]):
                break
            chosen = depth, outcome
            if ii_of(outcome) <= busiest_unit(graph):
                break
        return chosen

    def shared_bytes_of_block(self, blocks: int) -> int:
        """Shared memory that each of ``blocks`` on an SM can have."""
        share = self.device.smem_bytes_per_sm // blocks - BLOCK_BYTES
        return min(self.device.smem_bytes_per_block, share)

    def _shared_bytes(self, depths: tuple[int, ...], shape: Shape) -> int:
        return shared_bytes(self.captured, depths, consumers=shape.consumers, warps=shape.warps)

    def _fit(self, depths: list[int], shape: Shape, limit_bytes: int) -> tuple[int, ...] | None:
        """``depths`` with slots taken from the deepest rings until all fit into ``limit_bytes``."""
        while self._shared_bytes(tuple(depths), shape) > limit_bytes:
            deepest = max(range(len(depths)), key=lambda i: (depths[i], -i))
            if depths[deepest] <= 1:
                return None
            depths[deepest] -= 1
        return tuple(depths)


class AssignedModel(HopperModel):
    """Predicts a captured kernel's time under an assignment of its loops' operations, with one block on an SM."""

    def __init__(
        self, captured: Captured, assignment: tuple[int, ...], profile: Profile, device: Device, stages: int,
        launch: LaunchSize | None,
    ) -> None:  # fmt: skip
        super().__init__(assigned(captured, assignment), profile, device, stages, launch)
        self.assignment = assignment

    def assigned(self, shape: Shape) -> list[RankedStrategy]:
        """The schemes of ``shape`` under the assignment; none where it does not fit. ptxas takes no product whose
        accumulator needs all the registers that a thread starts with (C7602)."""
        registers = tuple(self._converters().values())
        if any(wanted > MOST_REGISTERS for wanted in registers):
            return []
        start = starting_registers(shape.consumers * shape.warps, PRODUCER_WARPS * (1 + len(registers)))
        shape = replace(shape, converter_registers=registers, extra_partitions=max(self.assignment), blocks=1)
        for loop in self.captured.loading:
            for work in loop.of_kind("dot"):
                assert work.product is not None
                across = max(1, shape.warps // PRODUCER_WARPS * MMA_ROWS * shape.consumers // work.product.m)
                if min(MMA_COLUMNS, work.product.n // across) // 2 + BASE_REGISTERS > start:
                    return []
        return self.specialized(shape)

    def extra_specs(self, shape: Shape) -> tuple[PartitionSpec, ...]:
        converters = self._converters()
        return tuple(
            PartitionSpec(f"converter{number}", CONVERTER_WARPS, converters[number]) if number in converters
            else PartitionSpec(f"{PRODUCER}{number}", 1, LEAST_REGISTERS)
            for number in range(1, shape.extra_partitions + 1)
        )  # fmt: skip

    def _converters(self) -> dict[int, int]:
        """Registers a thread of each converter, by its number."""
        read: dict[int, dict[str, tuple[int, ...]]] = {}
        for loop in self.captured.loops:
            loads = {work.id: work.shape for work in loop.of_kind(*LOAD_KINDS)}
            for number in {work.partition for work in loop.of_kind("converted")}:
                inside = {work.id for work in loop.work if work.partition == number}
                sources = {flow.src for flow in loop.flows if flow.dst in inside} & loads.keys()
                read.setdefault(number, {}).update({f"{loop.id} {load}": loads[load] for load in sources})
        return {number: converter_registers(tiles.values()) for number, tiles in sorted(read.items())}
