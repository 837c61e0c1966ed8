"""Units, shared resources and issue slots (rules 2 and 3) in the model: intervals on a circle of II cycles."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any

from warpplan.planner.cpsat.literals import Truth, always, given, never
from warpplan.planner.cpsat.variables import ModelVariables

PAIR = 2
"""Users of a unit up to which the order literal alone implies the constraints of :func:`_queue`."""


def add_units(model: ModelVariables) -> None:
    for unit, capacity in model.problem.graph.units:
        users = [(i, op.occupancy) for i, op in enumerate(model.problem.ops) if op.unit == unit and op.occupancy]
        if capacity == 1:
            first = _exclude(model, [(model.phase[i], cycles, 1) for i, cycles in users])
            _queue(model, users, first)
        else:
            _share(model, [(i, cycles, 1) for i, cycles in users], capacity)


def add_shared_resources(model: ModelVariables) -> None:
    """The cumulative constraint modulo II: what operations demand at once stays within each resource's capacity."""
    for resource in model.problem.shared:
        if resource.users:
            _share(model, resource.users, resource.capacity)


def _queue(model: ModelVariables, users: list[tuple[int, int]], first: Any) -> None:
    """Follows from the intervals, but not from their edges: all that comes before a user has to fit before it, and
    all that comes after it, after. Saturated units are filled, or proven infeasible, much sooner by it."""
    for i, cycles in users if len(users) > PAIR else ():
        before = sum(held * model.earlier(j, i) for j, held in users if j != i)
        after = sum(held * model.earlier(i, j) for j, held in users if j != i)
        model.cp.add(model.phase[i] >= first + before)
        model.cp.add(model.phase[i] + cycles + after <= first + model.ii)


def add_issue(model: ModelVariables) -> None:
    spans = [_issue_span(model, i) for i in model.ops]
    for g in range(model.count):
        users = []
        for i, (begin, length, busy) in enumerate(spans):
            present = model.inside(i, g)
            if not never(busy) and not never(present):
                users.append((begin, length, _both(model, present, busy)))
        _exclude(model, users)
        # Follows from the intervals, but only where all of them are known to be there.
        model.cp.add(sum(_load(model, i, g, spans[i][1]) for i in model.ops) <= model.ii)
    model.cp.add(sum(length for _, length, _ in spans) <= model.ii * model.count)
    if model.tight:
        issuing = [i for i in model.ops if model.problem.ops[i].issue]
        for a, b in combinations(issuing, 2):
            if not always(model.crosses(a, b)):
                model.earlier(a, b)


def _load(model: ModelVariables, i: int, g: int, length: Any) -> Any:
    """At least the cycles for which operation ``i`` takes the issue slot of partition ``g``."""
    inside = model.inside(i, g)
    if never(inside) or isinstance(length, int) or not model.tight:
        return (length if isinstance(length, int) else model.problem.ops[i].issue) * inside
    load = model.cp.new_int_var(0, model.ii, "")
    given(model.cp.add(load >= length), inside)
    return load


def _issue_span(model: ModelVariables, i: int) -> tuple[Any, Any, Truth]:
    """Where on the circle the operation's issue begins, how long it is with its barriers, and whether it is any."""
    issue, cost = model.problem.ops[i].issue, model.problem.graph.limits.barrier_cycles
    before, after = model.barriers(i)
    if not before and not after:
        return model.phase[i], issue, int(issue > 0)
    begin, length = model.cp.new_int_var(0, model.ii - 1, ""), issue + cost * sum(before) + cost * sum(after)
    turned = model.cp.new_bool_var("") if before else 0
    model.cp.add(begin == model.phase[i] - cost * sum(before) + model.ii * turned)
    if isinstance(length, int):
        return begin, length, 1
    size = model.cp.new_int_var(issue, issue + cost * (len(before) + len(after)), "")
    model.cp.add(size == length)
    return begin, size, 1 if issue else model.either([*before, *after])


def _both(model: ModelVariables, a: Truth, b: Truth) -> Truth:
    if always(a) or always(b):
        return b if always(a) else a
    result = model.cp.new_bool_var("")
    model.cp.add_bool_or([a.Not(), b.Not(), result])
    return result


def _exclude(model: ModelVariables, users: list[tuple[Any, Any, Truth]]) -> Any:
    """No two (begin, length, present) overlap; all lie within one interval from the first one's start,
    which comes back."""
    first = model.cp.new_int_var(0, model.ii - 1, "")
    intervals = []
    for begin, length, present in users:
        given(model.cp.add(begin >= first), present)
        given(model.cp.add(begin + length <= first + model.ii), present)
        if isinstance(length, int):
            intervals.append(model.cp.new_optional_fixed_size_interval_var(begin, length, present, ""))
        else:
            end = model.cp.new_int_var(0, 2 * model.ii, "")
            intervals.append(model.cp.new_optional_interval_var(begin, length, end, present, ""))
    if len(intervals) > 1:
        model.cp.add_no_overlap(intervals)
    return first


def _share(model: ModelVariables, users: Iterable[tuple[int, int, int]], capacity: int) -> None:
    """Amounts of at most ``capacity`` at a time of (operation, cycles, amount): whole intervals take theirs for good,
    the rest is counted over two of them."""
    intervals, amounts, whole = [], [], 0
    for i, cycles, amount in users:
        whole += amount * (cycles // model.ii)
        if rest := cycles % model.ii:
            intervals.append(model.cp.new_fixed_size_interval_var(model.phase[i], rest, ""))
            intervals.append(model.cp.new_fixed_size_interval_var(model.phase[i] + model.ii, rest, ""))
            amounts += [amount, amount]
    model.cp.add_cumulative(intervals, amounts, capacity - whole)
