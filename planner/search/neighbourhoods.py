"""Neighbourhoods of an incumbent: models of a shorter interval in which most of its decisions are kept.

Large-neighbourhood search (Shaw, CP 1998) with kinds drawn by weights that follow their success (Ropke and Pisinger,
"An adaptive large neighborhood search heuristic", Transportation Science 2006). What is kept are partitions, and the
order on units and issue slots as a partial-order schedule (Godard, Laborie and Nuijten, ICAPS 2005); starts, ring
depths and registers are decided anew, so that a neighbour is a whole plan. Every draw comes from one
seeded sequence and every outcome is counted in work, so that the search goes the same way on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Literal, get_args

from warpplan.planner.bounds.min_ii import WeightedArc
from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import Answer, DecisionRule
from warpplan.planner.cpsat.sharing_constraints import keep_layout
from warpplan.planner.packing.ring_layout import layout
from warpplan.planner.problem.assignment import Assignment
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.heuristics.retiming import queue
from warpplan.planner.search.restrictions import stage_window
from warpplan.planner.values.search_params import MemoryModel

Kind = Literal["connected", "moment", "pair", "rings", "order"]
"""Which clusters are decided anew: some that are connected by dependences; those that start within an arc of the
circle; those of two partitions; those at the ends of some rings; with "order", those within an arc of the circle, in
the partitions that they are in."""
RULES: tuple[DecisionRule, ...] = ("fixed_order", "partly_random", "random_order")


@dataclass(frozen=True)
class Neighbourhood:
    """The schedules of interval ``ii`` in which the clusters that are not ``free`` keep the partitions of ``known`` and
    their order on units and issue slots. ``layout_kept``: those in which every ring stays where it lies, too."""

    problem: Problem
    ii: int
    known: Assignment
    known_ii: int
    free: frozenset[int]
    kind: Kind
    seed: int
    rule: DecisionRule
    layout_kept: bool = False

    def build(self, memory: MemoryModel) -> IntervalModel:
        """Its model; the stages of ``known`` are the hint. With ``memory`` "free", rings stay where they lie."""
        problem, known = self.problem, self.known
        pinned = {
            op.id: g
            for op, cluster, g in zip(problem.graph.ops, problem.cluster, known.partitions, strict=True)
            if self.kind == "order" or cluster not in self.free
        }
        kept = replace(problem, options=replace(problem.options, pinned=pinned))
        model = IntervalModel(kept, self.ii, memory=memory, reach=self._reach(), tight=True, symmetric=False)
        if memory == "free":
            placed = layout(problem, self.known_ii, known)
            keep_layout(model, placed.buffers, placed.reuses)
        for src, dst, cycles, distance in self._order():
            model.cp.add(model.start[dst] + self.ii * distance >= model.start[src] + cycles)
        middle = model.stages // 2
        for i in model.ops:
            model.cp.add_hint(model.stage[i], middle + self._stages[i])
        return model

    def _order(self) -> list[WeightedArc]:
        """Arcs that keep the order of what is not free on units of capacity 1 and on issue slots."""
        problem, known = self.problem, self.known
        kept = [i for i in range(len(problem.ops)) if problem.cluster[i] not in self.free]
        start, arcs = known.starts, list[WeightedArc]()
        for g in sorted(set(known.partitions)):
            users = [(i, start[i], start[i] + problem.ops[i].issue) for i in kept if known.partitions[i] == g]
            arcs += queue(known, self.known_ii, users)
        for unit, capacity in problem.graph.units:
            users = [(i, start[i], start[i] + problem.ops[i].occupancy) for i in kept if problem.ops[i].unit == unit]
            arcs += queue(known, self.known_ii, users) if capacity == 1 else ()
        return arcs

    @cached_property
    def _stages(self) -> tuple[int, ...]:
        """Per operation, whole intervals of ``known`` after the model's anchor."""
        anchor = max(range(len(self.problem.ops)), key=lambda i: self.problem.ops[i].occupancy)
        return tuple((t - self.known.starts[anchor]) // self.known_ii for t in self.known.starts)

    def _reach(self) -> int | None:
        window = stage_window(self.problem)
        return None if window is None else max(window, *(abs(k) + 1 for k in self._stages))


class NeighbourhoodChoice:
    """The neighbourhoods to attempt, one after the other: kind, size and interval adapt to what the last came to."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.params = problem, problem.options.search.neighbourhoods
        self.random, self.layouts_kept = Random(self.params.seed), problem.options.search.layouts_kept
        self.free = [c for c in problem.clusters if c not in problem.pins]
        self.weights: dict[Kind, float] = dict.fromkeys(get_args(Kind), 1.0)
        if not self.free:
            self.weights = {"order": 1.0}
        self.share = self.params.first_share
        """Of the free clusters (or of the circle), how much is decided anew."""
        self.gain = self.params.first_gain
        """Of the gap between bound and incumbent, how much is asked for."""
        self.drawn = 0
        """How many there have been."""

    def draw(self, ii: int, known: Assignment, floor: int) -> Neighbourhood:
        """The next one, around ``known`` of interval ``ii``; nothing shorter than ``floor`` is asked for."""
        kinds = list(self.weights)
        kind = self.random.choices(kinds, [self.weights[k] for k in kinds])[0]
        free = self._clusters(kind, ii, known)
        target = max(floor, ii - max(1, int(self.gain * (ii - floor))))
        seed, rule = self.random.randrange(2**20), self.random.choice(RULES)
        self.drawn += 1
        layout_kept = self.layouts_kept and self.drawn % self.params.layout_period != 0
        return Neighbourhood(self.problem, target, known, ii, free, kind, seed, rule, layout_kept)

    def learn(self, drawn: Neighbourhood, answer: Answer) -> None:
        """``answer`` is what the attempt at ``drawn`` came to."""
        params = self.params
        weight = self.weights[drawn.kind]
        self.weights[drawn.kind] = params.decay * weight + (1 - params.decay) * (
            params.reward if answer == "yes" else 0
        )
        self.weights[drawn.kind] = max(params.least_weight, self.weights[drawn.kind])
        if answer == "yes":
            self.gain = min(0.5, params.growth * self.gain)
            return
        self.gain *= params.shrinking
        if self.gain < params.least_gain:
            self.gain = params.first_gain
        self.share = (
            min(1.0, params.growth * self.share)
            if answer == "no"
            else max(params.least_share, self.share / params.growth)
        )

    # Which clusters are free

    def _clusters(self, kind: Kind, ii: int, known: Assignment) -> frozenset[int]:
        count = max(2, round(self.share * len(self.free or self.problem.clusters)))
        if kind == "connected":
            return self._connected(count)
        if kind in ("moment", "order"):
            return self._moment(count, ii, known)
        if kind == "pair":
            used = sorted(set(known.partitions))
            pair = self.random.sample(used, min(2, len(used)))
            return frozenset(self._some([c for c in self.free if known.partitions[c] in pair], 2 * count))
        return self._rings(count)

    def _some(self, clusters: Sequence[int], count: int) -> list[int]:
        return list(clusters) if len(clusters) <= count else self.random.sample(clusters, count)

    @cached_property
    def _neighbours(self) -> dict[int, list[int]]:
        found: dict[int, set[int]] = {c: set() for c in self.problem.clusters}
        for arc in self.problem.dependences:
            a, b = self.problem.cluster[arc.src], self.problem.cluster[arc.dst]
            if a != b:
                found[a].add(b)
                found[b].add(a)
        return {c: sorted(others) for c, others in found.items()}

    def _connected(self, count: int) -> frozenset[int]:
        chosen: list[int] = []
        border = [self.random.choice(self.free)]
        while border and len(chosen) < count:
            here = border.pop(self.random.randrange(len(border)))
            if here not in chosen:
                chosen.append(here)
                border += [c for c in self._neighbours[here] if c not in chosen]
        return frozenset(chosen).intersection(self.free)

    def _moment(self, count: int, ii: int, known: Assignment) -> frozenset[int]:
        clusters = self.free or self.problem.clusters
        begin = known.starts[self.random.choice(clusters)] % ii
        return frozenset(sorted(clusters, key=lambda c: ((known.starts[c] - begin) % ii, c))[:count])

    def _rings(self, count: int) -> frozenset[int]:
        rings = sorted((*self.problem.rings, *self.problem.crossings))
        chosen: set[int] = set()
        for producer in self.random.sample(rings, len(rings)):
            if len(chosen) >= count:
                break
            ends = {producer, *(reader for reader, _ in self.problem.readers[producer])}
            chosen |= {self.problem.cluster[i] for i in ends}
        return frozenset(chosen).intersection(self.free)
