"""Diagnosis: which limit, relaxed alone, makes a problem feasible that no interval solves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from warpplan.planner.cpsat.interval_model import IntervalModel
from warpplan.planner.cpsat.work_budget import WorkBudget
from warpplan.planner.problem.formulation import Problem


def diagnose(problem: Problem, ii: int, budget: WorkBudget) -> str:
    """Which limit, taken away alone, would make ``problem`` solvable at ``ii``; else which two."""
    answers = {}
    for name, relaxed in _relaxations(problem):
        model = IntervalModel(relaxed, ii, memory="apart", registers=name != "registers", branching="free")
        answers[name] = budget.solve(model, budget.left * problem.options.search.driver.diagnosis_share)[0]
    found = [name for name, answer in answers.items() if answer == "yes"]
    if found:
        return f"{' or '.join(found)} binds"
    if "unknown" in answers.values():
        unknown = [name for name, answer in answers.items() if answer == "unknown"]
        return f"{' or '.join(unknown)} binds (the time limit came before saying which)"
    return f"{' and '.join(answers)} bind together"


def _relaxations(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Each limit that the problem has, and the problem without it."""
    graph, options, limits = problem.graph, problem.options, problem.graph.limits
    memories = {problem.memory(p) for p in (*problem.rings, *problem.crossings)}
    plenty = 2**40
    if "smem" in memories:
        yield "shared memory", Problem(replace(graph, limits=replace(limits, smem_bytes=plenty)), options)
    if "tmem" in memories:
        yield "tensor memory", Problem(replace(graph, limits=replace(limits, tmem_columns=2**30)), options)
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
