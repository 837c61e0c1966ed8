"""Data partitions: a tile split between equal copies of the operations that work on it.

Each copy works on its own rows; what is not copied (the loads that all of them read) stays one. How the copies
alternate is the schedule's to find: in lockstep, or half an interval apart, which is ping-pong.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from warpplan.planner.errors import InvalidInput
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph

MARK = "@"


def data_partition(graph: DependenceGraph, ops: Collection[str], ways: int) -> DependenceGraph:
    """``graph`` with ``ways`` copies of each of ``ops``, named ``mma@0``, ``mma@1`` …; the rest is shared.

    Costs stay what they are: ``graph`` is stated for one copy. An edge between two copied operations becomes one within
    each copy, an edge to or from a shared one becomes one for each copy. The copies are listed as ``clones``, which the
    solver need not tell apart. Raises :class:`InvalidInput` for a graph that has clones already, unknown operations,
    none at all, and fewer ways than one.
    """
    if ways < 1:
        raise InvalidInput(f"{ways} data partitions: expected 1 or more", field="ways", value=ways, limit=1)
    if graph.clones:
        raise InvalidInput(
            f"graph {graph.name!r} has {len(graph.clones)} clones already: partition the graph of one of them",
            field="clones", value=len(graph.clones),
        )  # fmt: skip
    unknown = [name for name in ops if name not in graph.by_id]
    if unknown or not ops:
        raise InvalidInput(
            f"operation {unknown[0]!r} is not in the graph" if unknown else "no operations to copy", field="ops",
            value=unknown[0] if unknown else None,
        )  # fmt: skip
    if ways == 1:
        return graph
    copied = set(ops)

    def copies(name: str) -> list[str]:
        return [f"{name}{MARK}{i}" for i in range(ways)] if name in copied else [name]

    return DependenceGraph(
        graph.name,
        tuple(replace(op, id=name) for op in graph.ops for name in copies(op.id)),
        tuple(copy for edge in graph.edges for copy in _copies(edge, copied, ways)),
        graph.limits,
        graph.units,
        tuple(tuple(copies(op.id)[i] for op in graph.ops if op.id in copied) for i in range(ways)),
    )


def _copies(edge: Dependence, copied: Collection[str], ways: int) -> list[Dependence]:
    if edge.src not in copied and edge.dst not in copied:
        return [edge]
    return [
        replace(
            edge,
            src=f"{edge.src}{MARK}{i}" if edge.src in copied else edge.src,
            dst=f"{edge.dst}{MARK}{i}" if edge.dst in copied else edge.dst,
        )
        for i in range(ways)
    ]
