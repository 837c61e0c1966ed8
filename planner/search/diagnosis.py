"""Diagnosis: which limit, relaxed alone, makes a problem feasible that no interval solves, and by how much it is short.

The amounts are those of :mod:`~warpplan.planner.problem.least_needs`, which every schedule needs, and those of a
schedule that was found without the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.runner import Answer
from warpplan.planner.cpsat.work_budget import WorkBudget
from warpplan.planner.packing.ring_layout import layout
from warpplan.planner.problem.assignment import Assignment, registers_needed
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.problem.least_needs import LeastNeed, least_memory, least_registers, least_registers_taken
from warpplan.planner.problem.partition_sizes import registers_taken
from warpplan.planner.problem.terms import REGISTER_COUNTS, WARP_COUNTS, whole_multiple
from warpplan.planner.search.heuristics.list_scheduling import first_schedule
from warpplan.planner.values.deadline import DeadlineReached
from warpplan.planner.values.dependence_graph import Memory

MOST_NAMED = 3
"""Values named in a reason, the largest first. Chosen by hand: a reason is one line."""
PLURAL = ("registers", "pins")
PLENTY = 2**40
"""Bytes of a memory without limit."""
PLENTY_OF_COLUMNS = 2**30

Relaxation = tuple[str, Problem]


def diagnose(problem: Problem, ii: int, budget: WorkBudget) -> str:
    """Which limit, taken away alone, would make ``problem`` solvable at ``ii``, with what needs how much of it; else
    all limits, which are short together."""
    answers: dict[str, tuple[Answer, Assignment | None]] = {}
    relaxed = dict(_relaxations(problem))
    for name, freer in relaxed.items():
        model = IntervalModel(freer, ii, memory="apart", registers=name != "registers", branching="free")
        answers[name] = budget.solve(model, budget.left * problem.options.search.driver.diagnosis_share)

    names = [name for name, (answer, _) in answers.items() if answer == "yes"]
    # What every schedule needs may exceed a limit, whatever the work budget left undecided.
    clauses = [_binding(problem, relaxed[name], name, ii, answers[name][1], budget) for name in names or answers]
    clauses = [clause for clause in clauses if clause]
    if clauses:
        several = "any one of these limits, relaxed, is enough" if names else "each of these limits must be relaxed"
        return clauses[0] if len(clauses) == 1 else f"{several}: {'; '.join(clauses)}"
    unknown = [name for name, (answer, _) in answers.items() if answer == "unknown"]
    limits = [_limit(problem, name) for name in unknown or answers]
    if unknown:
        verb = "bind" if unknown[-1] in PLURAL else "binds"
        return f"{' or '.join(limits)} {verb} (the work limit came before saying more)"
    return f"{' and '.join(limits)} bind together: raise more than one of them"


def _relaxations(problem: Problem) -> Iterator[Relaxation]:
    """Each limit that the problem has, and the problem without it."""
    graph, options, limits = problem.graph, problem.options, problem.graph.limits
    memories = {problem.memory(p) for p in (*problem.rings, *problem.crossings)}
    if "smem" in memories:
        yield "shared memory", Problem(replace(graph, limits=replace(limits, smem_bytes=PLENTY)), options)
    if "tmem" in memories:
        yield "tensor memory", Problem(replace(graph, limits=replace(limits, tmem_columns=PLENTY_OF_COLUMNS)), options)
    yield "registers", problem
    if options.depth is not None:
        yield "depth", Problem(graph, replace(options, depth=None))
    if options.pinned and not options.partitions:
        yield "pins", Problem(graph, replace(options, pinned={}))
    if limits.max_partitions < len(problem.clusters):
        more = replace(
            graph, limits=replace(limits, max_partitions=min(len(problem.clusters), limits.max_partitions + 2))
        )
        yield "the number of partitions", Problem(more, options)


def _binding(
    problem: Problem, relaxed: Problem, name: str, ii: int, found: Assignment | None, budget: WorkBudget
) -> str:
    """What binds, by name and amount, and what to change. ``found`` is a schedule of ``relaxed``, which lacks the limit
    ``name``; without one, empty unless every schedule needs more than the limit."""
    options, limits = problem.options, problem.graph.limits
    if name == "shared memory":
        return _memory_binding(problem, "smem", _enough(problem, relaxed, "smem", ii, found, budget))
    if name == "tensor memory":
        return _memory_binding(problem, "tmem", _enough(problem, relaxed, "tmem", ii, found, budget))
    if name == "registers":
        return _register_binding(problem, ii, found)
    if found is None:
        return ""
    if name == "depth":
        return f"the depth of {options.depth} slots for each ring binds: leave the depth to the planner"
    if name == "pins":
        return f"the pins of {_listed(list(options.pinned))} bind: leave operations unpinned"
    most = len(set(found.partitions))
    return f"limits.max_partitions {limits.max_partitions} binds: raise it to {most}"


def _memory_binding(problem: Problem, memory: Memory, enough: int | None) -> str:
    """``enough`` is an amount with which there is a plan."""
    limits, need = problem.graph.limits, least_memory(problem, memory)
    if memory == "smem":
        word, field, unit, capacity = "shared", "smem_bytes", "bytes", limits.smem_bytes
        size = problem.slot_bytes
    else:
        word, field, unit, capacity = "tensor", "tmem_columns", "columns", limits.tmem_columns
        size = problem.slot_columns
    short = need.amount > capacity
    values = need.values if short else tuple((i, 1) for i in problem.rings if problem.memory(i) == memory)
    if not values:
        values = tuple((i, 1) for i in problem.crossings if problem.memory(i) == memory)
    named = sorted(values, key=lambda v: -v[1] * size(v[0]))
    names = [f"{problem.ops[i].id} ({f'{slots} slots of ' if slots > 1 else ''}{size(i)} {unit})" for i, slots in named]
    if memory == "smem" and problem.extra_bytes:
        names.append(f"the extra buffers ({problem.extra_bytes} bytes)")
    raised = f"raise limits.{field}{'' if enough is None else f' to {enough}'}"
    one = len(names) == 1
    change = f"make {'it' if one else 'them'} smaller, or {raised}"
    if short:
        takes = "is held at once and takes" if one else "are held at once and take"
        least = f"{need.amount} of {capacity} {unit}"
        return f"{word} memory binds: {_listed(names)} {takes} at least {least}: {change}"
    if enough is None:
        return ""
    takes = f"{'needs' if one else 'need'} more than {capacity} {unit} in every schedule within the other limits"
    return f"{word} memory binds: {_listed(names)} {takes}: {change}"


def _enough(
    problem: Problem, relaxed: Problem, memory: Memory, ii: int, found: Assignment | None, budget: WorkBudget
) -> int | None:
    """The smallest capacity of ``memory`` that a schedule known without its limit fits into; None without one. List
    scheduling gives shorter lives than a solution of the model, which asks for none."""
    if found is None:
        return None
    try:
        short_lived = first_schedule(relaxed, ii, budget)
    except DeadlineReached:  # That there is no plan is proven all the same.
        short_lived = None
    known = (found, found if short_lived is None else short_lived)
    return min(_smallest(problem, relaxed, memory, ii, each) for each in known)


def _smallest(problem: Problem, relaxed: Problem, memory: Memory, ii: int, found: Assignment) -> int:
    """By bisection over the capacities at which the rings of ``found`` can be packed."""
    ample = layout(relaxed, ii, found)
    limits = problem.graph.limits
    high = max((b.offset + b.size for b in ample.buffers if b.memory == memory), default=0)
    field = "smem_bytes" if memory == "smem" else "tmem_columns"
    low = getattr(limits, field) + 1
    while low < high:
        middle = (low + high) // 2
        less = Problem(replace(problem.graph, limits=replace(limits, **{field: middle})), problem.options)
        placed = layout(less, ii, found)
        if placed.unknown:
            break
        low, high = (low, middle) if placed.fits else (middle + 1, high)
    return high


def _register_binding(problem: Problem, ii: int, found: Assignment | None) -> str:
    """A thread's registers where these are short in every schedule, else the block's, else what ``found`` takes."""
    limits, specs, needs = problem.graph.limits, problem.options.partitions, least_registers(problem)
    for home, need in sorted(needs.items(), key=lambda item: -item[1].amount):
        most = specs[home].registers if specs else REGISTER_COUNTS[-1]
        if need.amount > most:
            whose = f"partition {specs[home].name!r} has" if specs else "a thread has"
            return (
                f"registers bind: {_values(problem, need.values)} are live at once and take at least {need.amount} "
                f"registers a thread, {whose} {most}: make the values smaller or put one into a buffer"
            )
    if not specs:
        least, values = _least_of_block(problem, needs)
        if least > limits.registers:
            return (
                f"registers bind: {_values(problem, values)} are live at once and take at least {least} of the block's "
                f"{limits.registers} registers: make the values smaller, or raise limits.registers to {least} or more"
            )
    if found is None:
        return ""
    there = f"{REGISTER_COUNTS[-1]} in a thread and {limits.registers} in the block"
    if specs:
        there = ", ".join(f"{spec.registers} in {spec.name}" for spec in specs)
    every = tuple((i, 1) for i, op in enumerate(problem.ops) if op.registers)
    return (
        f"registers bind: in every schedule within the other limits {_values(problem, every)} need more than there are "
        f"({there}), and a schedule without this limit takes {_taken(problem, ii, found)}: make the values smaller or "
        "put one into a buffer"
    )


def _least_of_block(problem: Problem, needs: dict[int, LeastNeed]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """What all given partitions take together, or the largest of what may be in any; with the values that count."""
    taken = {home: least_registers_taken(problem, home, need.amount) for home, need in needs.items()}
    given = [home for home in taken if home >= 0]
    largest = max(taken, key=lambda home: taken[home])
    homes = [largest] if taken[largest] > sum(taken[home] for home in given) else given
    return sum(taken[home] for home in homes), tuple(value for home in homes for value in needs[home].values)


def _taken(problem: Problem, ii: int, found: Assignment) -> str:
    needs = {g: registers_needed(problem, ii, found, g) for g in sorted(set(found.partitions))}
    if problem.options.partitions:
        return ", ".join(f"{need} in {problem.options.partitions[g].name}" for g, need in needs.items())
    total = 0
    for g, need in needs.items():
        warps = max(problem.warps[i] for i, home in enumerate(found.partitions) if home == g)
        allotted = max(REGISTER_COUNTS[0], whole_multiple(need, 8))
        total += registers_taken(next(n for n in WARP_COUNTS if n >= warps), allotted)
    return f"{max(needs.values())} of a thread and {total} of the block"


def _values(problem: Problem, values: tuple[tuple[int, int], ...]) -> str:
    """Register values by name, the largest first, and the base."""
    ops = problem.ops
    names = [
        f"{ops[i].id} ({f'{copies} copies of ' if copies > 1 else ''}{ops[i].registers})"
        for i, copies in sorted(values, key=lambda value: -value[1] * ops[value[0]].registers)
    ]
    base = f"limits.base_registers ({problem.graph.limits.base_registers})"
    return _listed([*names[:MOST_NAMED], *_rest(names), base])


def _limit(problem: Problem, name: str) -> str:
    """A limit and its amount, of which nothing more is known."""
    limits = problem.graph.limits
    amounts = {
        "shared memory": f"{limits.smem_bytes} bytes",
        "tensor memory": f"{limits.tmem_columns} columns",
        "registers": f"{limits.registers} in the block",
        "depth": f"{problem.options.depth} slots",
        "the number of partitions": f"{limits.max_partitions}",
    }
    return f"{name} ({amounts[name]})" if name in amounts else name


def _listed(names: list[str]) -> str:
    """The first few names, and how many there are besides."""
    shown = names if len(names) <= MOST_NAMED + 2 else [*names[:MOST_NAMED], *_rest(names)]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _rest(names: list[str]) -> list[str]:
    return [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
