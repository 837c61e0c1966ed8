"""Loops that were solved beforehand for the embedded profiles, found by content: the first answer of a process needs no
solver.

A loop is found under the SHA-256 of its graph and its options. Changed costs, changed graphs and
profiles of one's own have other keys and are solved when they are met. ``make solved-loops`` records the file anew; a
test solves its loops afresh and compares, so that a changed solver cannot keep old answers.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from warpplan.planner.values import codec
from warpplan.planner.values.dependence_graph import DependenceGraph
from warpplan.planner.values.plan import Optimality, Outcome
from warpplan.planner.values.search_params import SearchParams

if TYPE_CHECKING:
    from warpplan.planner.values.options import SolveOptions

DEFAULT_SEARCH = SearchParams()
FREE_SECONDS = 2.0
"""Work budget of a free joint problem that its bound does not decide, in seconds of a slow core. The free problems of
the embedded profile's loops are all proven within it; doubled, an open one of a profile of one's own delays its first
answer by twice as much."""
FILE_NAME = "solved_loops.txt.gz"
"""Lines of key and entry as JSON: a process reads the entries that it needs, of thousands."""
Entry = dict[str, Any]
"""``{"outcome": …}`` of schema warpplan/outcome-1 without its seconds; ``{"number": n}``, derived from several solves;
or the fields of an :class:`Optimality`."""

_recorded: dict[str, Entry] | None = None
"""Where :func:`recording` collects; ``None`` outside of it."""


def solved(graph: DependenceGraph, options: SolveOptions) -> Outcome:
    """``planner.solve.solve(graph, options)``, from the shipped loops where they hold it. ``seconds`` is then 0."""
    name = key(graph, options, "solve")
    entry = _known(name)
    if entry is not None:
        return codec.from_json({**entry["outcome"], "solve_seconds": 0.0}, Outcome)
    # The solver takes longer to import than most answers take: only a loop that is not at hand needs it.
    from warpplan.planner.solve import solve

    outcome = solve(graph, options)
    if _recorded is not None:
        body = codec.to_json(outcome)
        del body["solve_seconds"]
        _recorded[name] = {"outcome": body}
        return replace(outcome, seconds=0.0)
    return outcome


def certified(
    outcome: Outcome, graph: DependenceGraph, options: SolveOptions, free: DependenceGraph, depth: int | None = None
) -> Outcome:
    """``outcome``, the plan of ``graph`` under ``options`` with rings of ``depth`` slots, with its certificate against
    ``free``, the graph's free joint problem (:mod:`warpplan.planner.predict.certificate`); from the shipped ones where
    they hold it. What has no plan stays as it is."""
    if outcome.plan is None:
        return outcome
    name = key(graph, options, f"optimality {free!r}")
    entry = _known(name)
    if entry is not None:
        return replace(outcome, optimality=Optimality(**{**entry, "free_partitions": _tuples(entry)}))
    from warpplan.planner.predict.certificate import certify
    from warpplan.planner.solve import effective_ii

    unpinned = replace(options, pinned={}, partitions=(), depth=None, work_limit_s=FREE_SECONDS)
    found = certify(free, unpinned, effective_ii(outcome.plan, depth))
    if _recorded is not None:
        _recorded[name] = asdict(found)
    return replace(outcome, optimality=found)


def derived(graph: DependenceGraph, options: SolveOptions, purpose: str, compute: Callable[[], int]) -> int:
    """The number that ``compute`` derives by solving ``graph`` under ``options``, from the shipped ones where they hold
    it. ``purpose`` tells numbers of one loop apart."""
    name = key(graph, options, purpose)
    entry = _known(name)
    if entry is not None:
        return int(entry["number"])
    number = compute()
    if _recorded is not None:
        _recorded[name] = {"number": number}
    return number


def key(graph: DependenceGraph, options: SolveOptions, purpose: str) -> str:
    """SHA-256 of everything that the answer depends on but the solver."""
    # repr of frozen values of numbers, text and tuples: every field by name, and five times as fast as their JSON.
    search = "" if options.search == DEFAULT_SEARCH else repr(options.search)
    return hashlib.sha256(repr((purpose, graph, options, search)).encode()).hexdigest()


@contextmanager
def recording() -> Iterator[dict[str, Entry]]:
    """Solve everything afresh within, and collect it: nothing of the shipped file is used. For one thread."""
    global _recorded
    _recorded = {}
    try:
        yield _recorded
    finally:
        _recorded = None


@cache
def shipped() -> dict[str, str]:
    """What the package holds, each entry as JSON; empty where the file was left out."""
    file = resources.files("warpplan.kernels") / "data" / FILE_NAME
    try:
        text = gzip.decompress(file.read_bytes()).decode()
    except FileNotFoundError:
        return {}
    return dict(line.split(" ", 1) for line in text.splitlines())


def packed(entries: dict[str, Entry]) -> bytes:
    """The file that holds ``entries``: equal entries give equal bytes."""
    lines = [f"{name} {json.dumps(entries[name], sort_keys=True, separators=(',', ':'))}" for name in sorted(entries)]
    return gzip.compress("\n".join(lines).encode(), 9, mtime=0)


def _tuples(entry: Entry) -> tuple[tuple[str, ...], ...]:
    return tuple(map(tuple, entry["free_partitions"]))


def _known(name: str) -> Entry | None:
    if _recorded is not None:
        return _recorded.get(name)
    text = shipped().get(name)
    return None if text is None else json.loads(text)
