"""Captured loops for Blackwell to ranked ways to steer Triton's own specialisation.

Loads and products in workers of their own, or in one, each loop planned with its partitions pinned and its tensor
memory laid out; or partitions as Triton finds them, where control flow inside of the loop leaves no other. No profile
of a Blackwell GPU has been recorded: costs are those of the profile that is given, tcgen05 and tensor memory estimated,
and nothing here has run on one. What is predicted orders the trials; they decide.
"""

from __future__ import annotations

from dataclasses import replace

from warpplan.kernels.compiler.analysis.capture import Body, Captured, producer_slice
from warpplan.kernels.compiler.costing.blackwell.blackwell_graph import blackwell_loop, tensor_columns
from warpplan.kernels.compiler.costing.fusing import fuse, steady
from warpplan.kernels.compiler.costing.kernel_model import (
    LEAST_DEPTH,
    MORE_SECONDS,
    SOLVE_SECONDS,
    WORTH_TRYING,
    KernelModel,
    RankedStrategy,
    excess_warps,
)
from warpplan.kernels.compiler.costing.loop_graph import Shape
from warpplan.kernels.compiler.costing.pressure import shared_bytes
from warpplan.kernels.compiler.exceptions import CannotPlan
from warpplan.kernels.compiler.lowering.blackwell.annotate import Roles, annotate
from warpplan.kernels.compiler.strategy.blackwell import APART, FOUND, TOGETHER, BlackwellStrategy
from warpplan.kernels.compiler.strategy.protocol import MOST_DEPTH
from warpplan.planner.errors import InvalidInput
from warpplan.planner.solve import effective_ii, solve
from warpplan.planner.values.device import Device
from warpplan.planner.values.options import SolveOptions
from warpplan.planner.values.plan import Outcome, Plan
from warpplan.planner.values.profile import Profile


def rank(
    captured: Captured, text: str, profile: Profile, device: Device, *, stages: int = 3
) -> tuple[RankedStrategy, ...]:
    """Every way that the cut ``text``, which ``captured`` was read from, can be steered, best first, and leaving the
    kernel alone among them, with the obstacle where there is no other.

    ``stages`` is the ``num_stages`` of the unspecialised compile. Deterministic. Raises :class:`InvalidInput` for a
    device without tensor memory.
    """
    if not device.tmem_columns:
        raise InvalidInput(
            f"steering for {device.name}: expected a GPU with tensor memory", field="device", value=device.name
        )
    try:
        annotate(text)
    except CannotPlan as error:
        return (RankedStrategy(None, (), (), 0.0, 1.0, str(error)),)
    if (obstacle := excess_warps(captured)) is not None:
        return (RankedStrategy(None, (), (), 0.0, 1.0, str(obstacle)),)
    model = BlackwellModel(captured, profile, device, stages)
    alone = model.alone()
    found, refused = [], ""
    try:
        annotate(text, Roles())
        found = [r for workers in (APART, TOGETHER) for r in model.specialized_with(workers)]
    except CannotPlan as error:
        refused = str(error)
    own = model.found_by_triton(found, refused)
    ranked = [replace(r, gain=alone.predicted_cycles / r.predicted_cycles) for r in (*found, own)]
    return tuple(sorted((*ranked, alone), key=lambda r: round(r.predicted_cycles)))


def schemes(
    captured: Captured, text: str, profile: Profile, device: Device, *, stages: int = 3
) -> tuple[RankedStrategy, ...]:
    """As :func:`rank`, without what is predicted to be clearly slower than leaving the kernel alone. Raises
    :class:`CannotPlan` where nothing is left."""
    ranked = rank(captured, text, profile, device, stages=stages)
    found = tuple(r for r in ranked if r.gain >= WORTH_TRYING)
    if all(r.scheme is None for r in found):
        alone = next(r for r in ranked if r.scheme is None)
        raise CannotPlan(alone.reason if len(ranked) == 1 else f"no partition pays: {alone.reason}")
    return found


def stages_of(plan: Plan, loop: Body) -> dict[str, int]:
    """The stages of ``loop``'s products in ``plan``, by source line, the first 0; empty where all are alike: a worker
    goes its own pace, so only stages within it say something."""
    lines = {work.id: work.line for work in loop.of_kind("dot")}
    found: dict[str, int] = {}
    for placement in plan.schedule.placements:
        if placement.op in lines:
            found[lines[placement.op]] = max(placement.stage, found.get(lines[placement.op], 0))
    first = min(found.values(), default=0)
    return {line: stage - first for line, stage in found.items()} if len(set(found.values())) > 1 else {}


class BlackwellModel(KernelModel):
    """Loops planned by Blackwell's rules; the rest of the kernel, and the kernel left alone, as in
    :class:`KernelModel`."""

    def specialized_with(self, workers: str) -> list[RankedStrategy]:
        """The plan with its stages, where it has some, and with the schedule left to Triton; none where it does not
        fit."""
        loops = self.captured.loading
        outcomes = [self._solved(loop, workers) for loop in loops]
        plans = tuple(outcome.plan for outcome in outcomes if outcome.plan is not None)
        if len(plans) < len(loops):
            return []
        depth = self._depth(plans)
        if depth is None:
            return []
        intervals = tuple(effective_ii(_loads_only(p, b), depth) for p, b in zip(plans, loops, strict=True))
        why = "; ".join(dict.fromkeys(outcome.reason for outcome in outcomes))
        terms = [self.interval(loop, ii, depth - 1) for loop, ii in zip(loops, intervals, strict=True)]
        cycles = self.tile(terms, Shape(1, max(4, self.captured.warps)))
        stages: dict[str, int] = {}
        if workers == APART:
            for plan, loop in zip(plans, loops, strict=True):
                stages |= stages_of(plan, loop)
        double = int(workers != APART or _wants_two(plans, loops))
        schemes = [BlackwellStrategy(workers, depth, tuple(sorted(stages.items())), double)] if stages else []
        schemes.append(BlackwellStrategy(workers, depth, double=double))
        return [RankedStrategy(scheme, plans, intervals, cycles, 1.0, why) for scheme in schemes]

    def found_by_triton(self, known: list[RankedStrategy], refused: str) -> RankedStrategy:
        """Triton's own partitions, predicted as the best of ``known``: what it finds is not known before."""
        best = min(known, key=lambda r: r.predicted_cycles, default=None)
        why = refused or "Triton finds partitions and schedule itself; predicted as ours"
        if best is None or best.scheme is None:
            alone = self.alone()
            return replace(alone, scheme=BlackwellStrategy(FOUND, max(LEAST_DEPTH, self.stages)), plans=(), reason=why)
        return replace(best, scheme=BlackwellStrategy(FOUND, best.scheme.ring_depths(1)[0]), plans=(), reason=why)

    def _solved(self, loop: Body, workers: str) -> Outcome:
        often = steady(loop)
        fused, _ = fuse(often, producer_slice(often))
        capacity = self.device.smem_bytes_per_block - shared_bytes(self.captured, (0,) * len(self.captured.loading))
        warps = max(4, self.captured.warps)
        made = blackwell_loop(fused, workers, warps, self.profile.costs, self.device, smem_bytes=capacity)
        options = SolveOptions(SOLVE_SECONDS, pinned=made.pins, partitions=made.partitions)
        outcome = solve(made.graph, options)
        if outcome.status == "unknown":
            outcome = solve(made.graph, replace(options, work_limit_s=MORE_SECONDS))
        if outcome.plan is None:
            # ptxas decides about registers, by spilling; the time that takes is not counted.
            bare = replace(made.graph, ops=tuple(replace(op, registers=0) for op in made.graph.ops))
            outcome = solve(bare, replace(options, work_limit_s=MORE_SECONDS))
        return outcome

    def _depth(self, plans: tuple[Plan, ...]) -> int | None:
        """Slots that fit for all rings of loads, at most what one of them wants."""
        loops = self.captured.loading
        wanted = max(c.depth for plan, loop in zip(plans, loops, strict=True) for c in _loads_only(plan, loop).channels)
        for depth in range(min(MOST_DEPTH, max(LEAST_DEPTH, wanted)), LEAST_DEPTH - 1, -1):
            if shared_bytes(self.captured, (depth,) * len(loops)) <= self.device.smem_bytes_per_block:
                return depth
        return None

    def resident(self, shape: Shape) -> int:
        """Blocks of the unspecialised kernel on one SM, tensor memory counted, too."""
        columns = max(tensor_columns(loop) for loop in self.captured.loading)
        return max(1, min(super().resident(shape), self.device.tmem_columns // max(1, columns)))


def _wants_two(plans: tuple[Plan, ...], loops: tuple[Body, ...]) -> bool:
    """Whether the result of some product has more than one slot in its plan."""
    products = {work.id for loop in loops for work in loop.of_kind("dot")}
    return any(channel.depth > 1 for plan in plans for channel in plan.channels if channel.name in products)


def _loads_only(plan: Plan, loop: Body) -> Plan:
    """``plan`` with the rings of TMA loads alone: how deep the others are is Triton's."""
    loads = {work.id for work in loop.of_kind("tma_load")}
    return replace(plan, channels=tuple(c for c in plan.channels if c.name in loads))
