"""A captured kernel under an assignment, and the assignment that is nearest to what the solver chose freely.

Converted operands become loads into rings to the consumers: of a kind of their own, which the arithmetic before them
belongs to as a load's addresses do. The graph of such a loop then has one more partition, pinned like the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from warpplan.kernels.compiler.analysis.capture import Body, Captured
from warpplan.kernels.compiler.analysis.loop_work import LoopWork
from warpplan.kernels.compiler.analysis.operation_kinds import LOAD_KINDS
from warpplan.planner.problem.clones import MARK
from warpplan.planner.values.plan import Plan

_CONVERTS = frozenset({"elementwise", "sfu", "shared_load", "convert_layout"})
"""Kinds of work that a converter may do, as :func:`~...lowering.assigned.anchors.refusal` has it."""
Anchors = tuple[tuple[str, str], ...]


def anchors(captured: Captured) -> Anchors:
    """(loop, operation) of each anchor, in the order of :func:`~...lowering.assigned.anchors.anchors`."""
    return tuple((loop.id, work.id) for loop in captured.loops for work in loop.work if _is_anchor(loop, work))


def chains(loop: Body) -> dict[str, frozenset[str]]:
    """The operands of products that another partition can compute, each with the operations between the loads and
    it."""
    found = {}
    by_id = {work.id: work for work in loop.work}
    for work in loop.work:
        if work.kind in LOAD_KINDS or not _is_anchor(loop, work):
            continue
        seen, waiting, loads = set[str](), [work.id], False
        while waiting:
            at = waiting.pop()
            for source in {flow.src for flow in loop.flows if flow.dst == at} - seen:
                loads |= by_id[source].kind in LOAD_KINDS
                if by_id[source].kind not in LOAD_KINDS:
                    seen.add(source)
                    waiting.append(source)
        if loads and all(by_id[one].kind in _CONVERTS for one in seen):
            found[work.id] = frozenset(seen)
    return found


def shared_work(loop: Body) -> frozenset[str]:
    """What converts operands that have no rows, so that all consumers read the same: done once, not by each."""
    by_id = {work.id: work for work in loop.work}
    return frozenset(
        one for operand, chain in chains(loop).items() if not by_id[operand].rows for one in (operand, *chain)
    )  # fmt: skip


def assigned(captured: Captured, assignment: Sequence[int]) -> Captured:
    """``captured`` with the anchors in the partitions of ``assignment``."""
    where = dict(zip(anchors(captured), assignment, strict=True))
    return replace(captured, loops=tuple(_assigned(loop, where) for loop in captured.loops))


def _assigned(loop: Body, where: dict[tuple[str, str], int]) -> Body:
    found, chained = chains(loop), dict[str, int]()
    moved = {operand: n for operand in found if (n := where.get((loop.id, operand), 0))}
    for operand, number in moved.items():
        chained |= dict.fromkeys(found[operand], number)
    inside = chained.keys() | moved.keys()
    works = []
    for work in loop.work:
        if work.id in moved:
            slot = replace(work, kind="converted", buffer_bytes=work.parts[0].size, partition=moved[work.id])
            works.append(replace(slot, register_bits=0, results=()))
        elif work.id in chained:
            own = all(flow.dst in inside for flow in loop.flows if flow.src == work.id)
            kept = replace(work, register_bits=0, results=()) if own else work
            works.append(replace(kept, rows=work.rows and not own, partition=chained[work.id]))
        else:
            works.append(replace(work, partition=where.get((loop.id, work.id), 0)))
    return replace(loop, work=tuple(works))


def nearest(captured: Captured, plans: dict[str, Plan]) -> tuple[int, ...]:
    """The assignment of ``captured`` nearest to ``plans`` of its loops' free problems, by the loops' ids; () where it
    is the one without. An operand is converted apart where some of what computes it is in no product's partition; loads
    are in a producer of their own where they share a partition with other loads only."""
    numbers: dict[tuple[str, str, int], int] = {}
    found = []
    for loop_id, work_id in anchors(captured):
        loop = next(loop for loop in captured.loops if loop.id == loop_id)
        number = 0
        if loop_id in plans:
            homes = _homes(plans[loop_id])
            products = set().union(*(homes.get(work.id, set()) for work in loop.of_kind("dot")))
            chain = chains(loop).get(work_id, frozenset())
            own = set().union(*(homes.get(one, set()) for one in (work_id, *chain)))
            loads = {work.id for work in loop.of_kind(*LOAD_KINDS)}
            first = next((homes[work.id] for work in loop.work if work.id in loads and work.id in homes), set())
            others = {work for work, places in homes.items() if places & own} - loads
            if chain:
                own -= products
            elif work_id not in loads or others or own == first:
                own = set()
            if own:
                kind = "operand" if chain else "load"
                number = numbers.setdefault((loop_id, kind, min(own)), len(numbers) + 1)
        found.append(number)
    return tuple(found) if any(found) else ()


def _homes(plan: Plan) -> dict[str, set[int]]:
    """The partitions of each operation, of all of its clones."""
    found: dict[str, set[int]] = {}
    for placement in plan.schedule.placements:
        name, _, clone = placement.op.rpartition(MARK)
        found.setdefault(name if clone.isdigit() else placement.op, set()).add(placement.partition)
    return found


def _is_anchor(loop: Body, work: LoopWork) -> bool:
    if work.kind in LOAD_KINDS:
        return True
    products = {dot.id for dot in loop.of_kind("dot")}
    feeds = any(flow.src == work.id and flow.dst in products and flow.distance == 0 for flow in loop.flows)
    return work.kind in ("shared_store", "converted") and "ttg.local_alloc" in work.names and feeds
