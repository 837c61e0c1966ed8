"""A captured kernel's predicted time on one SM, as Triton compiles it or with its loops planned.

A loop's interval is its solved initiation interval, lengthened by what memory cannot deliver in time, as in
:mod:`warpplan.planner.predict`:

    interval = ‖ II, bytes / L2 rate, latency / slots in flight ‖_p

A kernel without specialisation has ``stages`` − 2 slots in flight: a slot is refilled by the same warps that wait for
the product that frees it, once they have met. Products of mma.sync read registers: what they multiply is copied out of
its slot first, of which there is one fewer, and all of them are in flight.

Loads that stream (:mod:`~...analysis.streams`) take no less than DRAM's rate, specialised or not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from warpplan.kernels.compiler.analysis.capture import Body, Captured, Obstacle
from warpplan.kernels.compiler.analysis.loop_work import LoopWork
from warpplan.kernels.compiler.analysis.operation_kinds import LOAD_KINDS, RING_KINDS
from warpplan.kernels.compiler.costing.deferred_loops import as_issued, products_at_once
from warpplan.kernels.compiler.costing.fusing import fuse, lowered, steady
from warpplan.kernels.compiler.costing.loop_graph import THREADS, Shape, cost_of, kept_apart, loop_graph, pinned
from warpplan.kernels.compiler.costing.pressure import live_registers, shared_bytes
from warpplan.kernels.compiler.costing.whole_launch import (
    NOMINAL_FLOP,
    LaunchRates,
    LaunchSize,
    iterations,
    waves,
)
from warpplan.kernels.compiler.sizes.gain_model import NOMINAL_TRIPS, StrategyTerms
from warpplan.kernels.compiler.sizes.loop_trips import Trips
from warpplan.kernels.compiler.strategy.protocol import Strategy
from warpplan.planner.predict.time_model import launch_constants
from warpplan.planner.problem.terms import WARP_COUNTS
from warpplan.planner.solve import solve
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.device import Device
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.plan import Outcome, Plan
from warpplan.planner.values.profile import Profile

SOLVE_SECONDS, MORE_SECONDS = 0.1, 0.5
"""Work budgets in seconds of a slow core: of one loop's solve, and of a second one where that ended without any plan.
Chosen by hand. Doubled: a kernel with many schemes takes twice as long to rank where loops are hard."""
WORTH_TRYING = 0.8
"""Gain over the kernel left alone below which a strategy is not worth a compile. The bound is low because the time of
a kernel left alone is predicted too short: several blocks on an SM never wait for each other's units, and nothing
spills."""
LEAST_DEPTH = 2
"""Slots of a ring: one is filled while one is read."""
COMPILER_REGISTERS = 40
"""A thread's addresses and counters in one partition that does everything, as fitted for pipelined GEMMs."""
MOST_BLOCKS = 8
"""Resident blocks on an SM that are counted at most. Chosen by hand."""
DRAM_RATE = 4.8e12
"""Bytes a second that an H200's memory delivers (its data sheet), for a profile without ceilings."""
CANNOT_RANK = "cannot be ranked"
"""How the reason begins why a kernel, or one configuration of a list, has no predicted time."""
BLOCK_BYTES = 1_024
"""Shared memory of each block that the system keeps (CUDA C++ Programming Guide, "Compute Capability 9.0")."""


@dataclass(frozen=True)
class RankedStrategy:
    """``scheme`` None leaves the kernel alone. ``plans`` and ``ii_cycles`` are of each loop that loads through TMA, in
    program order; ``predicted_cycles`` of one tile's loops and ends on one SM. ``gain`` is the time of leaving the
    kernel alone over this one's, within the power limit; ``reason`` says what bounds it or which obstacle there was.
    ``copies`` is the level of the captured kernel (:meth:`Captured.at`) that was planned. ``launch_us`` is of a whole
    launch, where its size is known: unlike cycles, it compares between tiles. ``terms`` are what its time at other
    sizes is predicted from."""

    scheme: Strategy | None
    plans: tuple[Plan, ...]
    ii_cycles: tuple[int, ...]
    predicted_cycles: float
    gain: float
    reason: str
    copies: int = 0
    launch_us: float | None = None
    terms: StrategyTerms | None = None


def ii_of(outcome: Outcome) -> int:
    """The interval of an outcome that has a plan."""
    assert outcome.plan is not None
    return outcome.plan.schedule.ii_cycles


def busiest_unit(graph: DependenceGraph) -> int:
    """Cycles of work an iteration for the unit that has most."""
    return max((sum(op.occupancy for op in graph.ops if op.unit == unit) for unit, _ in graph.units), default=0)


def multiplies_registers(loop: Body) -> bool:
    """Whether all products of ``loop`` are mma.sync's."""
    cores = {work.product.tensor_cores for work in loop.of_kind("dot") if work.product is not None}
    return cores == {"mma"}


def loads_for_products(loop: Body) -> frozenset[str]:
    """The loads through pointers that reach an operand of a product of ``loop`` in the same iteration: those that
    Triton pipelines (its AssignLatencies pass). What scales a result is none of them."""
    sources: dict[str, set[str]] = {}
    for flow in loop.flows:
        if flow.distance == 0 and flow.kind == "data" and not flow.accumulates:
            sources.setdefault(flow.dst, set()).add(flow.src)
    seen: set[str] = set()
    waiting = [work.id for work in loop.of_kind("dot")]
    while waiting:
        found = sources.get(waiting.pop(), set()) - seen
        seen |= found
        waiting += found
    return frozenset(work.id for work in loop.of_kind("load") if work.id in seen)


def excess_warps(captured: Captured) -> Obstacle | None:
    """Why ``captured`` is left alone where it has more warps than a partition of the planner's graph: the kernel as
    Triton compiles it, which strategies are compared with, is one partition of all its warps."""
    most = max(WARP_COUNTS)
    if captured.warps <= most:
        return None
    return Obstacle(
        f"{CANNOT_RANK}: num_warps is {captured.warps}; set it to 4 or 8: the planner takes {most} warps at most, "
        "and a plan sets the warps of its partitions itself"
    )


class KernelModel:
    """Predicts a captured kernel's time on one SM, left alone; generations add how it is specialised. ``launch`` is
    what is known of the launch, where one is meant."""

    def __init__(
        self, captured: Captured, profile: Profile, device: Device, stages: int, launch: LaunchSize | None = None
    ) -> None:
        self.captured, self.profile, self.device, self.stages = captured, profile, device, stages
        self.launch = launch
        self._alone_or_beside: dict[tuple[str, int, bool], tuple[Outcome, int]] = {}
        self.constants = launch_constants(profile)
        ceilings = dict(profile.ceilings)
        clock, rate = ceilings.get("clock_hz_idle"), ceilings.get("l2_bytes_per_s")
        # 5.5 TB/s over the SMs at boost clock: the H100's published L2 read rate, for a profile without ceilings.
        known = rate.p50 / clock.p50 if rate is not None and clock is not None else 5.5e12 / device.boost_clock_hz
        self.l2_bytes_per_cycle = known / device.sm_count
        rate = ceilings.get("read_bytes_per_s")
        known = rate.p50 / clock.p50 if rate is not None and clock is not None else DRAM_RATE / device.boost_clock_hz
        self.dram_bytes_per_cycle = known / device.sm_count

    def alone(self) -> RankedStrategy:
        """The kernel as Triton pipelines it: one partition, resident as often as registers and memory allow."""
        shape = self._unspecialized()
        blocks = self.resident(shape)
        outcomes = [self._together(loop, shape.warps, 1, pipelined=True)[0] for loop in self.captured.loading]
        found = self._alone_intervals(shape, blocks)
        plans = tuple(outcome.plan for outcome in outcomes if outcome.plan is not None)
        reason = f"{self.captured.warps} warps, {self.stages} stages: {outcomes[-1].reason}"
        cycles = self.tile([term for _, term in found], shape) + self.beside(shape.warps, blocks, pipelined=True)
        intervals = tuple(ii for ii, _ in found)
        return RankedStrategy(None, plans, intervals, cycles, 1.0, reason, self.captured.copies)

    def alone_terms(self) -> tuple[StrategyTerms, ...]:
        """The kernel's own terms with 1, 2, … resident blocks on an SM, as many as there can be."""
        shape = self._unspecialized()
        outside = self.tile([0.0] * len(self.captured.loading), shape)
        return tuple(
            StrategyTerms(
                tuple(term for _, term in self._alone_intervals(shape, blocks)),
                outside + self.beside(shape.warps, blocks, pipelined=True),
            )
            for blocks in range(1, self.resident(shape) + 1)
        )

    def _unspecialized(self) -> Shape:
        return Shape(1, max(4, self.captured.warps), specialized=False)

    def _alone_intervals(self, shape: Shape, blocks: int) -> list[tuple[int, float]]:
        """Each loop's interval without and with what memory adds, ``blocks`` being resident."""
        found = []
        for loop in self.captured.loading:
            _, ii = self._together(loop, shape.warps, blocks, pipelined=True)
            slots = max(0.5, self.stages - 2 + multiplies_registers(loop)) * blocks
            found.append((ii, self.interval(loop, ii, slots)))
        return found

    def beside(self, warps: int, blocks: int, *, pipelined: bool) -> float:
        """Cycles of the loops that multiply what they load through pointers, which no producer runs ahead of. Triton
        pipelines them in a kernel that is left alone; in a specialised one each load is waited for."""
        total = 0.0
        for loop in self.captured.loops:
            if loop.of_kind("dot") and loads_for_products(loop) and not loop.of_kind(*RING_KINDS, "loop"):
                _, ii = self._together(loop, warps, blocks, pipelined=pipelined)
                total += ii * self.trips(loop)
        return total

    def _together(self, loop: Body, warps: int, blocks: int, *, pipelined: bool) -> tuple[Outcome, int]:
        """``loop`` run by one partition: the outcome, and the interval with ``blocks`` on the SM. ``pipelined``: what
        it loads for a product through pointers is copied to shared memory iterations ahead, as Triton does."""
        key = loop.id, warps, pipelined
        if key not in self._alone_or_beside:
            graph, _ = self.graph(loop, Shape(1, warps, specialized=False), 1 << 30)
            ahead = loads_for_products(loop) if pipelined and self.stages > 1 else frozenset()
            # ptxas decides about registers, by spilling; the time that takes is not counted.
            ops = (replace(op, registers=0, latency=op.issue if op.id in ahead else op.latency) for op in graph.ops)
            graph = replace(graph, ops=tuple(ops))
            outcome = solve(graph, SolveOptions(SOLVE_SECONDS, depth=max(1, self.stages)))
            assert outcome.plan is not None  # no limit binds
            self._alone_or_beside[key] = outcome, busiest_unit(graph)
        outcome, busiest = self._alone_or_beside[key]
        return outcome, max(busiest, -(-ii_of(outcome) // blocks))

    def graph(self, loop: Body, shape: Shape, smem_bytes: int | None = None) -> tuple[DependenceGraph, dict[str, int]]:
        """What is solved for ``loop``, and the partition of each of its operations."""
        often = as_issued(steady(loop), shape)
        often = lowered(often) if shape.specialized else often
        fused, _ = fuse(often, kept_apart(often))
        graph = loop_graph(fused, shape, self.profile.costs, self.device, smem_bytes=smem_bytes)
        return graph, pinned(graph, fused, shape)

    def interval(self, loop: Body, ii: int, slots: float) -> float:
        """Cycles an iteration, with what memory adds."""
        loads = loop.of_kind(*LOAD_KINDS)
        c, p = self.constants, self.constants["block_norm"]
        latency = max(
            (cost_of(load, self.profile.costs, source="dram" if load.streamed else "l2").latency for load in loads),
            default=0.0,
        )
        streamed = sum(load.buffer_bytes for load in loads if load.streamed)
        loaded = sum(load.buffer_bytes for load in loads)
        transfer = max(c["l2_scale"] * loaded / self.l2_bytes_per_cycle, streamed / self.dram_bytes_per_cycle)
        arrival = (c["latency_scale"] * latency + c["transfer_scale"] * transfer) / max(0.5, slots)
        return float(sum(term**p for term in (ii, transfer, arrival)) ** (1 / p))

    def tile(self, terms: list[float], shape: Shape) -> float:
        """One tile: its loops, what fills the first slots, and the work around them."""
        loops = self.captured.loading
        steady = sum(term * self.trips(loop) for loop, term in zip(loops, terms, strict=True))
        preloaded = shape.specialized and self.nested()  # the producer loads the next tile meanwhile
        costs = self.profile.costs
        inner = {loop.id for loop in loops}

        def few(work: LoopWork) -> bool:
            """Whether ``work`` of a loop is done in few iterations, which is here taken to be one."""
            return work.rare or (work.seldom and shape.specialized)

        ends = sum(
            cost_of(work, costs, replace(shape, consumers=1)).issue
            for body in (self.captured.body, *self.captured.loops) for work in body.work
            if work.kind not in (*RING_KINDS, "loop") and (body.id not in inner or few(work))
        )  # fmt: skip
        return steady + (0.0 if preloaded else self.first_fill(shape)) + ends

    def trips(self, loop: Body) -> float:
        """Iterations of ``loop``, each time that it is entered."""
        if self.launch is not None and self.launch.trips:
            return iterations(self._counted()[loop.id], self.launch, self.device.sm_count)
        return float(loop.trips if loop.trips is not None else NOMINAL_TRIPS)

    def _counted(self) -> dict[str, Trips | None]:
        trips = () if self.launch is None else self.launch.trips
        return {loop.id: counted for loop, counted in zip(self.captured.loops, trips, strict=False)}

    def launch_us(self, cycles: float) -> float | None:
        """The time of the launch where one tile takes ``cycles`` of an SM; ``None`` where no launch is meant."""
        if self.launch is None:
            return None
        loops = {loop.id: loop for loop in self.captured.loops}
        around: list[Body] = []
        parent = self.captured.loading[0].parent
        while parent:
            around.append(loops[parent])
            parent = loops[parent].parent
        tiles = math.prod(self.trips(loop) for loop in around)
        flop, rates = self._flop_and_rates()
        counted = self._counted()
        known = all(counted.get(loop.id) is not None for loop in (*self.captured.loading, *around))
        if flop and not (known and self.launch.programs):
            # What one launch does is not known, but all configurations do the same.
            return self._equal_work_us(cycles, self.launch)
        sm_cycles = waves(self.launch, self.device.sm_count) * tiles * cycles
        return rates.time_us(sm_cycles, flop * tiles * self.launch.programs, self.launch)

    def gain(self, alone: float, cycles: float) -> float:
        """Of a strategy by which a tile takes ``cycles`` of an SM, over the kernel left alone, by which it takes
        ``alone``: of times in which all SMs work and the tensor cores keep to what the power limit sustains."""
        size = LaunchSize(0)
        return self._equal_work_us(alone, size) / self._equal_work_us(cycles, size)

    def _equal_work_us(self, cycles: float, size: LaunchSize) -> float:
        flop, rates = self._flop_and_rates()
        if not flop:
            return rates.time_us(cycles, 0.0, size)
        return rates.time_us(NOMINAL_FLOP / (flop * self.device.sm_count) * cycles, NOMINAL_FLOP, size)

    def _flop_and_rates(self) -> tuple[float, LaunchRates]:
        """Of one tile, and what bounds a launch beside its loops."""
        dots = [(work.product, loop) for loop in self.captured.loading for work in loop.of_kind("dot")]
        flop = sum(2.0 * p.m * p.n * p.k * self.trips(loop) for p, loop in dots if p is not None)
        product = next((p for p, _ in dots if p is not None), None)
        return flop, LaunchRates.of(self.profile, self.device, product)

    def nested(self) -> bool:
        """Whether the kernel walks over its tiles by itself."""
        return all(loop.parent for loop in self.captured.loading)

    def first_fill(self, shape: Shape) -> float:
        """Cycles until the first slot is filled."""
        loads = self.captured.loading[0].of_kind(*LOAD_KINDS)
        return max(cost_of(load, self.profile.costs, shape, "dram").latency for load in loads)

    def resident(self, shape: Shape) -> int:
        """Blocks of the unspecialised kernel on one SM."""
        live = max(max(live_registers(loop, shape), products_at_once(loop, shape)) for loop in self.captured.loading)
        registers = min(self.device.registers_per_thread, COMPILER_REGISTERS + live)
        by_registers = self.device.registers_per_sm // (THREADS * shape.warps * registers)
        depths = tuple(max(1, self.stages - multiplies_registers(loop)) for loop in self.captured.loading)
        by_memory = self.device.smem_bytes_per_sm // (shared_bytes(self.captured, depths, alone=True) + BLOCK_BYTES)
        # No more are there than the grid has for an SM.
        programs = 0 if self.launch is None else self.launch.programs
        there = -(-programs // self.device.sm_count) or MOST_BLOCKS
        return max(1, min(by_registers, by_memory, MOST_BLOCKS, there))
