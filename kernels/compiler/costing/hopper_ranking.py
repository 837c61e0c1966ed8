"""Captured loops to ranked schemes: which specialisation pays, by the planner.

Every way to share a kernel out (consumers, their warps) is planned loop by loop with its partitions pinned, and
compared with leaving the kernel alone. A loop's interval is then lengthened by what memory cannot deliver in time, as
in :mod:`warpplan.planner.predict`:

    interval = ‖ II, bytes / L2 rate, latency / slots in flight ‖_p

A kernel without specialisation has ``stages`` − 2 slots in flight: a slot is refilled by the same warps that wait for
the product that frees it, once they have met. No scheme changes the tile, so the times of one tile compare directly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from warpplan.kernels.compiler.analysis.capture import Body, Captured, Obstacle, producer_slice
from warpplan.kernels.compiler.costing.fusing import fuse, steady
from warpplan.kernels.compiler.costing.loop_graph import BASE_REGISTERS as PRODUCER_REGISTERS
from warpplan.kernels.compiler.costing.loop_graph import (
    THREADS,
    Shape,
    cost_of,
    in_flight,
    lookahead_product,
    loop_graph,
    pinned,
    registers_for,
)
from warpplan.kernels.compiler.costing.pressure import live_registers, loads_alike, shared_bytes, slot_bytes
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.strategy.hopper import PRODUCER, HopperStrategy
from warpplan.kernels.compiler.strategy.protocol import MOST_DEPTH, Strategy
from warpplan.planner.errors import InvalidInput
from warpplan.planner.predict.time_model import GLOBAL_DEFAULTS
from warpplan.planner.solve import effective_ii, solve
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.device import Device
from warpplan.planner.values.options import PartitionSpec, SolveOptions
from warpplan.planner.values.plan import Outcome, Plan
from warpplan.planner.values.profile import Profile

SOLVE_SECONDS, MORE_SECONDS = 0.1, 0.5
"""CP-SAT's deterministic time for one loop, and where that ended without any plan."""
NOMINAL_TRIPS = 32
"""Iterations of a loop whose bounds are not constant: 32 blocks of 64 or 128 are sizes of 2048 to 4096."""
WORTH_TRYING = 0.8
"""What is predicted slower than that is not worth a compile. The bound is low because leaving a kernel alone is
predicted kindly: several blocks on an SM never wait for each other's units, and nothing spills."""
ROWS = 64
LEAST_DEPTH = 2
START_DEPTH = 3
"""One slot being read, one filled, one on its way."""
WORTH_A_SLOT = 0.99
"""A slot more has to shorten the interval by a hundredth."""
COMPILER_REGISTERS = 40
"""A thread's addresses and counters in one partition that does everything, as fitted for pipelined GEMMs."""
MOST_BLOCKS = 8


@dataclass(frozen=True)
class RankedStrategy:
    """``scheme`` None leaves the kernel alone. ``plans`` and ``ii_cycles`` are of each loop that loads through TMA, in
    program order; ``predicted_cycles`` of one tile's loops and ends on one SM. ``gain`` is the time of leaving the
    kernel alone over this one's; ``reason`` says what bounds it or which obstacle there was."""

    scheme: Strategy | None
    plans: tuple[Plan, ...]
    ii_cycles: tuple[int, ...]
    predicted_cycles: float
    gain: float
    reason: str


def schemes(captured: Captured, profile: Profile, device: Device, *, stages: int = 3) -> tuple[RankedStrategy, ...]:
    """The schemes worth trying, best first: leaving the kernel alone, in its place, and those not predicted to be
    clearly slower. Raises :class:`CannotPlan` with the operation and the source line where there are none; else as
    :func:`rank`."""
    ranked = rank(captured, profile, device, stages=stages)
    found = tuple(r for r in ranked if r.gain >= WORTH_TRYING)
    if all(r.scheme is None for r in found):
        obstacle = _obstacle(captured)
        if obstacle is not None:
            raise CannotPlan(obstacle.reason, obstacle.operation, obstacle.line)
        raise CannotPlan(next(r.reason for r in ranked if r.scheme is None))
    return found


def rank(captured: Captured, profile: Profile, device: Device, *, stages: int = 3) -> tuple[RankedStrategy, ...]:
    """Every scheme that fits, best first, and leaving the kernel alone among them, with the obstacle where nothing
    fits.

    ``stages`` is the ``num_stages`` of the unspecialised compile. Deterministic; of equal predictions fewer partitions,
    warps and slots come first. Raises :class:`InvalidInput` for a device that is not Hopper.
    """
    if not device.has_wgmma:
        raise InvalidInput(
            f"schemes for {device.name}: expected a Hopper GPU; on Blackwell Triton's own partitions are steered",
            field="device", value=device.name,
        )  # fmt: skip
    obstacle = _obstacle(captured)
    if obstacle is not None:
        return (RankedStrategy(None, (), (), 0.0, 1.0, str(obstacle)),)
    model = KernelModel(captured, profile, device, stages)
    alone = model.alone()
    found = [s for shape in _shapes(captured) for s in model.specialized(shape)]
    ranked = [replace(s, gain=alone.predicted_cycles / s.predicted_cycles) for s in found]
    if not any(s.gain > 1 for s in ranked):
        alone = replace(alone, reason=f"no partition pays: {alone.reason}")
    return tuple(sorted((alone, *ranked), key=_order))


def _obstacle(captured: Captured) -> Obstacle | None:
    return captured.obstacle() or next(
        (o for loop in captured.loading if (o := captured.obstacle(loop.id)) is not None), None
    )


def _order(ranked: RankedStrategy) -> tuple[object, ...]:
    s = ranked.scheme
    return round(ranked.predicted_cycles), () if s is None else s.complexity


def _shapes(captured: Captured) -> list[Shape]:
    """Consumers and warps that the tile's rows allow: 64 rows or more a consumer, in whole wgmma instructions."""
    rows = [loop.rows for loop in captured.loading if loop.rows is not None]
    flying = any(
        lookahead_product(loop) is not None or any(in_flight(loop, work) for work in loop.of_kind("dot"))
        for loop in captured.loading
    )
    found = []
    for consumers, warps in product((1, 2, 3), (4, 8)):
        whole = all(r % (ROWS * consumers) == 0 for r in rows) and (rows or consumers == 1)
        if whole and consumers * warps <= 12:
            found.append(Shape(consumers, warps, in_flight=flying))
    return found


def _ii(outcome: Outcome) -> int:
    assert outcome.plan is not None
    return outcome.plan.schedule.ii_cycles


def _busiest(graph: DependenceGraph) -> int:
    """Cycles of work an iteration for the unit that has most."""
    return max((sum(op.occupancy for op in graph.ops if op.unit == unit) for unit, _ in graph.units), default=0)


class KernelModel:
    """Predicts a captured kernel's time on one SM, left alone and under schemes."""

    def __init__(self, captured: Captured, profile: Profile, device: Device, stages: int) -> None:
        self.captured, self.profile, self.device, self.stages = captured, profile, device, stages
        calibration = profile.calibration("gemm")
        self.constants = {**GLOBAL_DEFAULTS, **(dict(calibration.constants) if calibration is not None else {})}
        ceilings = dict(profile.ceilings)
        clock, rate = ceilings.get("clock_hz_idle"), ceilings.get("l2_bytes_per_s")
        # 5.5 TB/s over the SMs at boost clock: the H100's published L2 read rate, for a profile without ceilings.
        known = rate.p50 / clock.p50 if rate is not None and clock is not None else 5.5e12 / device.boost_clock_hz
        self.l2_bytes_per_cycle = known / device.sm_count

    def alone(self) -> RankedStrategy:
        """The kernel as Triton pipelines it: one partition, resident as often as registers and memory allow."""
        shape = Shape(1, max(4, self.captured.warps), specialized=False)
        blocks = self.resident(shape)
        intervals, plans, terms = [], [], []
        for loop in self.captured.loading:
            graph, _ = self._graph(loop, shape, 1 << 30)
            # ptxas decides about registers, by spilling; the time that takes is not counted.
            graph = replace(graph, ops=tuple(replace(op, registers=0) for op in graph.ops))
            options = SolveOptions(SOLVE_SECONDS, depth=max(1, self.stages))
            outcome = solve(graph, options)
            assert outcome.plan is not None  # no limit binds
            ii = max(_busiest(graph), -(-_ii(outcome) // blocks))
            intervals.append(ii)
            plans.append(outcome.plan)
            terms.append(self.interval(loop, ii, max(0.5, self.stages - 2) * blocks))
        reason = f"{self.captured.warps} warps, {self.stages} stages: {outcome.reason}"
        return RankedStrategy(None, tuple(plans), tuple(intervals), self.tile(terms, shape), 1.0, reason)

    def specialized(self, shape: Shape) -> list[RankedStrategy]:
        """The schemes of ``shape``: at the fewest slots that keep its interval, one fewer and one more; none where it
        does not fit."""
        registers = registers_for(shape, self.device)
        loops = self.captured.loading
        looks_ahead = shape.in_flight and any(lookahead_product(loop) is not None for loop in loops)
        # A product that is issued an iteration early takes registers that there may not be; then none is.
        otherwise = replace(shape, in_flight=False)
        if any(live_registers(loop, shape) + PRODUCER_REGISTERS > registers for loop in loops):
            return self.specialized(otherwise) if looks_ahead else []
        most = self._fit([MOST_DEPTH] * len(loops))
        if most is None:
            return []
        specs = tuple(PartitionSpec(f"consumer{i}", shape.warps, registers) for i in range(shape.consumers))
        specs += (PartitionSpec(PRODUCER, 1, PRODUCER_REGISTERS),)
        solved = []
        for loop, limit in zip(loops, most, strict=True):
            fewest = self._fewest_slots(loop, shape, specs, limit)
            if fewest is None:
                return self.specialized(otherwise) if looks_ahead else []
            solved.append(fewest)
        plans = tuple(plan for plan in (outcome.plan for _, outcome in solved) if plan is not None)
        why = "; ".join(dict.fromkeys(outcome.reason for _, outcome in solved))
        # By programs that walk over the grid, what fills the first slots is loaded while the last tile is finished.
        saved = {0: 0.0, 1: 0.0 if self._nested() else self._first(shape)}
        found: dict[tuple[tuple[int, ...], int], RankedStrategy] = {}
        for step in (0, -1, 1):
            wanted = [self._depth_of(loop, solved) + step for loop in loops]
            depths = tuple(min(limit, max(LEAST_DEPTH, d)) for d, limit in zip(wanted, most, strict=True))
            if (depths, 0) in found or shared_bytes(self.captured, depths) > self.device.smem_bytes_per_block:
                continue
            intervals = tuple(
                effective_ii(plan, depth) if depth < fewest else plan.schedule.ii_cycles
                for plan, depth, (fewest, _) in zip(plans, depths, solved, strict=True)
            )
            terms = [self.interval(*each) for each in zip(loops, intervals, (d - 1 for d in depths), strict=True)]
            cycles = self.tile(terms, shape)
            for persistent in (0, 1) if self.captured.walks else (0,):
                scheme = HopperStrategy(shape.consumers, depths, shape.warps, int(shape.in_flight), persistent)
                ranked = RankedStrategy(scheme, plans, intervals, cycles - saved[persistent], 1.0, why)
                found[depths, persistent] = ranked
        return list(found.values())

    def _depth_of(self, loop: Body, solved: list[tuple[int, Outcome]]) -> int:
        """The most slots that ``loop``, or another that can share its rings, wants."""
        loops = zip(self.captured.loading, solved, strict=True)
        return max(depth for other, (depth, _) in loops if loads_alike(other) == loads_alike(loop))

    def _fewest_slots(
        self, loop: Body, shape: Shape, specs: tuple[PartitionSpec, ...], most: int
    ) -> tuple[int, Outcome] | None:
        """The fewest slots, from ``START_DEPTH``, beyond which the interval gets no shorter, and the plan with them.
        Loads take their 90th percentile from DRAM."""
        graph, pins = self._graph(loop, shape)
        chosen: tuple[int, Outcome] | None = None
        for depth in range(min(START_DEPTH, most), most + 1):
            options = SolveOptions(SOLVE_SECONDS, depth, pinned=pins, partitions=specs)
            outcome = solve(graph, options)
            if outcome.status == "unknown":
                outcome = solve(graph, replace(options, work_limit_s=MORE_SECONDS))
            if outcome.plan is None:
                break
            if chosen is not None and _ii(outcome) > WORTH_A_SLOT * _ii(chosen[1]):
                break
            chosen = depth, outcome
            if _ii(outcome) <= _busiest(graph):
                break
        return chosen

    def _graph(self, loop: Body, shape: Shape, smem_bytes: int | None = None) -> tuple[DependenceGraph, dict[str, int]]:
        """What is solved for ``loop``, and the partition of each of its operations."""
        often = steady(loop)
        fused, _ = fuse(often, producer_slice(often))
        graph = loop_graph(fused, shape, self.profile.costs, self.device, smem_bytes=smem_bytes)
        return graph, pinned(graph, fused, shape)

    def _fit(self, depths: list[int]) -> tuple[int, ...] | None:
        """``depths`` with slots taken from the deepest rings until all fit."""
        while shared_bytes(self.captured, tuple(depths)) > self.device.smem_bytes_per_block:
            deepest = max(range(len(depths)), key=lambda i: (depths[i], -i))
            if depths[deepest] <= 1:
                return None
            depths[deepest] -= 1
        return tuple(depths)

    def interval(self, loop: Body, ii: int, slots: float) -> float:
        """Cycles an iteration, with what memory adds."""
        loads = loop.of_kind("tma_load")
        c, p = self.constants, self.constants["block_norm"]
        latency = max((cost_of(load, self.profile.costs).latency for load in loads), default=0.0)
        transfer = c["l2_scale"] * slot_bytes(loop) / self.l2_bytes_per_cycle
        arrival = (c["latency_scale"] * latency + c["transfer_scale"] * transfer) / max(0.5, slots)
        return float(sum(term**p for term in (ii, transfer, arrival)) ** (1 / p))

    def tile(self, terms: list[float], shape: Shape) -> float:
        """One tile: its loops, what fills the first slots, and the work around them."""
        loops = self.captured.loading
        steady = sum(
            term * (loop.trips if loop.trips is not None else NOMINAL_TRIPS)
            for loop, term in zip(loops, terms, strict=True)
        )
        preloaded = shape.specialized and self._nested()  # the producer loads the next tile meanwhile
        costs = self.profile.costs
        inner = {loop.id for loop in loops}
        ends = sum(
            cost_of(work, costs, replace(shape, consumers=1)).issue
            for body in (self.captured.body, *self.captured.loops) for work in body.work
            if work.kind not in ("tma_load", "loop") and (body.id not in inner or work.rare)
        )  # fmt: skip
        return steady + (0.0 if preloaded else self._first(shape)) + ends

    def _nested(self) -> bool:
        """Whether the kernel walks over its tiles by itself."""
        return all(loop.parent for loop in self.captured.loading)

    def _first(self, shape: Shape) -> float:
        """Cycles until the first slot is filled."""
        loads = self.captured.loading[0].of_kind("tma_load")
        return max(cost_of(load, self.profile.costs, shape, "dram").latency for load in loads)

    def resident(self, shape: Shape) -> int:
        """Blocks of the unspecialised kernel on one SM."""
        live = max(live_registers(loop, shape) for loop in self.captured.loading)
        registers = min(self.device.registers_per_thread, COMPILER_REGISTERS + live)
        by_registers = self.device.registers_per_sm // (THREADS * shape.warps * registers)
        depths = tuple(max(1, self.stages) for _ in self.captured.loading)
        by_memory = self.device.smem_bytes_per_sm // max(1, shared_bytes(self.captured, depths))
        return max(1, min(by_registers, by_memory, MOST_BLOCKS))
