"""Memory in the constraint model when rings may lie in one another's place (rule 7).

A relaxation: rings that are in conflict, every two, lie side by side. Two are not in conflict if they have one slot
each and one's life ends before the other's begins, all around the circle. (That they are never all held at one moment
is not enough: three arcs of a circle may meet two by two and have no common point.) Which rings are in conflict is for
the model to decide, so it takes them in an order, and keeps those that are apart from none kept before: these have to
fit. Whether a solution has a layout is for exact packing to find; where there is none, the rings that do not fit are
taken first in a further such order, or, where their sizes alone do not say why, come back as a no-good cut.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, get_args

from warpplan.planner.cpsat.literals import Truth, always, given, negated, never
from warpplan.planner.cpsat.variables import ModelVariables
from warpplan.planner.problem.assignment import Assignment, slots
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.ring_sharing import least_hold, may_share, reuse_distance
from warpplan.planner.problem.terms import Arc, Use, whole_multiple
from warpplan.planner.values.dependence_graph import Memory
from warpplan.planner.values.plan import Buffer, Reuse


@dataclass(frozen=True)
class NoGoodCut:
    """These rings, with these numbers of slots, do not fit together; of ``pairs`` none was apart in time. Sizes and
    conflicts alone say so: it holds at every interval. ``clique``: already their sizes exceed the memory, all of them
    being in conflict, and no ``pairs`` are listed."""

    slots: tuple[tuple[int, int], ...]
    pairs: tuple[tuple[int, int], ...]
    clique: bool = False


def no_good_cut(problem: Problem, ii: int, found: Assignment, refused: tuple[int, ...]) -> NoGoodCut:
    """A no-good cut that excludes this ring layout: ``refused`` rings as they are in ``found``, or of these as few as
    are in conflict pairwise and too large together."""
    depth = {p: slots(problem, ii, found, p) for p in refused}
    conflicts = {
        (a, b)
        for a, b in combinations(refused, 2)
        if not (may_share(problem, a) and may_share(problem, b))
        or max(depth[a], depth[b]) > 1
        or reuse_distance(problem, ii, found, a, b) is None
    }
    clique = _overfull_clique(problem, depth, conflicts)
    if clique is not None:
        return NoGoodCut(tuple((p, depth[p]) for p in clique), (), clique=True)
    sharing = [p for p in refused if may_share(problem, p)]
    pairs = [pair for pair in combinations(sharing, 2) if pair in conflicts]
    return NoGoodCut(tuple(depth.items()), tuple(pairs))


def _overfull_clique(
    problem: Problem, depth: dict[int, int], conflicts: set[tuple[int, int]]
) -> tuple[int, ...] | None:
    """Few rings that are all in conflict, and together larger than the memory, as a greedy search finds them."""
    weight = {p: _size(problem, p) * count for p, count in depth.items()}
    order, best = sorted(depth, key=lambda p: (-weight[p], p)), None
    capacity = _capacity(problem, problem.memory(order[0]))
    for first in order:
        inside = [first]
        for p in order:
            if p != first and all(tuple(sorted((p, q))) in conflicts for q in inside):
                inside.append(p)
            if sum(weight[q] for q in inside) > capacity:
                break
        if sum(weight[q] for q in inside) <= capacity:
            continue
        for p in reversed(order):
            if p in inside and sum(weight[q] for q in inside) - weight[p] > capacity:
                inside.remove(p)
        if best is None or len(inside) < len(best):
            best = inside
    return None if best is None else tuple(sorted(best))


def _size(problem: Problem, ring: int) -> int:
    """Bytes of a slot, or lanes times columns."""
    return problem.slot_bytes(ring) if problem.memory(ring) == "smem" else problem.slot_area(ring)


def _capacity(problem: Problem, memory: Memory) -> int:
    limits = problem.graph.limits
    return max(0, limits.smem_bytes - problem.extra_bytes) if memory == "smem" else 128 * limits.tmem_columns


class SharedMemory:
    """The rule in one model, to which cuts may be added later."""

    def __init__(self, model: ModelVariables) -> None:
        self.model = model
        self._single = {p: _single(model, p) for p in model.depth}
        self._pairs: dict[tuple[int, int], Truth] = {}
        self._holds: dict[int, Any] = {}
        for memory in get_args(Memory):
            self._add_clique(memory)

    def _add_clique(self, memory: Memory, first: Collection[int] = ()) -> None:
        """Taken in order, ``first`` and large ones before others, the rings of ``memory`` that are apart from none kept
        before them are kept: these are in conflict, every two, and lie side by side."""
        model, problem = self.model, self.model.problem
        rings = [p for p in model.depth if problem.memory(p) == memory]
        taken, kept = list[Any](), dict[int, Truth]()
        for p in sorted(rings, key=lambda p: (p not in first, -_size(problem, p), p)):
            escapes = [self._both(self._apart(q, p), kept[q]) for q in kept]
            escapes = [escape for escape in escapes if not never(escape)]
            kept[p] = model.cp.new_bool_var("") if escapes else 1
            if escapes:
                model.cp.add_bool_or([*escapes, kept[p]])
            taken.append(_size(problem, p) * (model.depth[p] - negated(kept[p])))
        if taken:
            model.cp.add(sum(taken) <= _capacity(problem, memory))

    def _both(self, a: Truth, b: Truth) -> Truth:
        """A literal under which both hold."""
        if never(a) or always(b):
            return a
        both = self.model.cp.new_bool_var("")
        self.model.cp.add_implication(both, a)
        self.model.cp.add_implication(both, b)
        return both

    def _apart(self, a: int, b: int) -> Truth:
        """A literal under which there are both rings, of one slot each, and one's life ends before the other's begins,
        all around the circle."""
        a, b = min(a, b), max(a, b)
        if (a, b) not in self._pairs:
            model, problem = self.model, self.model.problem
            fits = may_share(problem, a) and may_share(problem, b)
            fits = fits and least_hold(problem, a) + least_hold(problem, b) <= model.ii
            literal = _disjoint(model, a, b, self._single) if fits else 0
            if not never(literal):
                # Follows from the two lives' order, whichever it is: mostly they are too long together.
                given(model.cp.add(self._hold(a) + self._hold(b) <= model.ii), literal)
                for p in (a, b):
                    if not always(model.exists[p]):
                        model.cp.add_implication(literal, model.exists[p])
            self._pairs[a, b] = literal
        return self._pairs[a, b]

    def _hold(self, ring: int) -> Any:
        """At least the cycles for which a slot is held, hand-offs left out."""
        if ring not in self._holds:
            model, problem = self.model, self.model.problem
            crossing = ring in problem.crossings
            uses = _uses(problem, ring)
            longest = max(u.cycles + u.margin + model.ii * (model.stages + 1 + u.distance) for u in uses)
            hold = model.cp.new_int_var(0 if crossing else least_hold(problem, ring), longest, "")
            for use in uses:
                released = model.start[use.consumer] + use.cycles + use.margin + model.ii * use.distance
                reads = model.crosses(ring, use.consumer) if crossing else 1
                if not never(reads):
                    given(model.cp.add(hold >= released - model.start[ring]), reads)
            self._holds[ring] = hold
        return self._holds[ring]

    def forbid(self, cut: NoGoodCut) -> None:
        if any(p not in self.model.depth for p, _ in cut.slots):
            return  # A value that stays in its partition here: it needs no ring.
        if cut.clique:
            first = [p for p, _ in cut.slots]
            self._add_clique(self.model.problem.memory(first[0]), first)
            return
        escapes = [self._apart(*pair) for pair in cut.pairs]
        for p, count in cut.slots:
            shorter = self.model.cp.new_bool_var("")
            given(self.model.cp.add(self.model.depth[p] <= count - 1), shorter)
            escapes.append(shorter)
        self.model.cp.add_bool_or(escapes)


def _uses(problem: Problem, ring: int) -> tuple[Use, ...]:
    return problem.crossings[ring] if ring in problem.crossings else problem.rings[ring]


def _single(model: ModelVariables, ring: int) -> Truth:
    problem = model.problem
    if not may_share(problem, ring) or problem.least_slots(ring) > 1 or problem.options.depth not in (None, 1):
        return 0
    if problem.options.depth == 1:
        return 1
    literal = model.cp.new_bool_var("")
    given(model.cp.add(model.depth[ring] <= 1), literal)
    return literal


def _disjoint(model: ModelVariables, a: int, b: int, single: dict[int, Truth]) -> Truth:
    """A literal under which both have one slot and their lives are disjoint on the circle."""
    if never(single[a]) or never(single[b]):
        return 0
    free = model.cp.new_bool_var("")
    for p in (a, b):
        if not always(single[p]):
            model.cp.add_implication(free, single[p])
    copies = model.cp.new_int_var(-model.stages - 1, model.stages + 1, "")
    for ring, refiller, iterations in ((a, b, copies), (b, a, 1 - copies)):
        crossing = ring in model.problem.crossings
        for use in _uses(model.problem, ring):
            arc = Arc(use.consumer, refiller, use.cycles + use.margin, use.handoff, 0)
            handoff = arc.handoff * model.crosses(arc.src, arc.dst) if arc.handoff else 0
            released = model.start[use.consumer] + arc.cycles + handoff + model.ii * use.distance
            conditions = [free, model.crosses(ring, use.consumer) if crossing else 1]
            if not any(never(x) for x in conditions):
                _where(model, model.start[refiller] + model.ii * iterations >= released, conditions)
    return free


def _where(model: ModelVariables, rule: Any, conditions: list[Truth]) -> None:
    literals = [x for x in conditions if not always(x)]
    added = model.cp.add(rule)
    if literals:
        added.only_enforce_if(literals)


def keep_layout(model: ModelVariables, buffers: Sequence[Buffer], reuses: Sequence[Reuse]) -> None:
    """Every ring stays in its place among ``buffers``, with no more slots; those of ``reuses``, which overlap there,
    alternate; rings that have no place yet lie side by side in what is left of shared memory. With this, the model's
    memory is "free": it has no other limit."""
    problem, index = model.problem, model.problem.graph.index
    end = max((b.offset + b.size for b in buffers if b.memory == "smem"), default=0)
    placed = {index[b.name]: b for b in buffers if b.name in index}
    for p, buffer in placed.items():
        if p in model.depth:
            slot = problem.slot_bytes(p) if buffer.memory == "smem" else problem.slot_columns(p)
            model.cp.add(model.depth[p] <= buffer.size // slot)
    others = [p for p in model.depth if p not in placed]
    if others:
        begin = whole_multiple(end, max(problem.ring_alignment(p) for p in others))
        taken = sum(problem.slot_bytes(p) * model.depth[p] for p in others)
        model.cp.add(taken <= max(0, problem.graph.limits.smem_bytes - begin))
    single = {p: _single(model, p) for p in model.depth}
    # Each pair is listed both ways round.
    pairs = [(index[reuse.before], index[reuse.after]) for reuse in reuses]
    for a, b in pairs:
        if a < b and a in model.depth and b in model.depth:
            model.cp.add(_disjoint(model, a, b, single) == 1)
