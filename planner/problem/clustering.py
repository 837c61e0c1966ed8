"""Which operations must share a partition, which partitions are given, and which operations are interchangeable.

A *cluster* is a set of operations that must share a partition (rule 4); its name is its smallest operation's index.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from warpplan.planner.errors import Infeasible
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Operation
from warpplan.planner.values.options import SolveOptions


@dataclass(frozen=True)
class Clustering:
    """A graph's clusters, the partitions that the options give them, and its symmetries. RULES.md numbers the rules."""

    graph: DependenceGraph
    options: SolveOptions

    @cached_property
    def readers(self) -> dict[int, tuple[tuple[int, Dependence], ...]]:
        """Per operation, who reads its value, and along which edge."""
        index = self.graph.index
        found: dict[int, list[tuple[int, Dependence]]] = {i: [] for i in range(len(self.graph.ops))}
        for edge in self.graph.edges:
            if edge.kind == "data":
                found[index[edge.src]].append((index[edge.dst], edge))
        return {i: tuple(edges) for i, edges in found.items()}

    @cached_property
    def cluster(self) -> tuple[int, ...]:
        """Per operation, the smallest index of the operations that must share its partition (rule 4).

        A value without a buffer stays in its partition where it is carried to a later iteration; a wgmma accumulator
        stays with all its readers.
        """
        root = list(range(len(self.graph.ops)))

        def find(i: int) -> int:
            while root[i] != i:
                root[i] = root[root[i]]
                i = root[i]
            return i

        hopper = self.graph.limits.architecture == "hopper"
        for source, edges in self.readers.items():
            op = self.graph.ops[source]
            for reader, edge in edges:
                if op.buffer_bytes == 0 and (edge.distance > 0 or (hopper and op.unit == "TENSOR")):
                    a, b = find(source), find(reader)
                    root[max(a, b)] = min(a, b)
        return tuple(find(i) for i in range(len(root)))

    @cached_property
    def clusters(self) -> tuple[int, ...]:
        """The clusters' names, ascending."""
        return tuple(sorted(set(self.cluster)))

    @cached_property
    def pins(self) -> dict[int, int]:
        """Cluster → partition, where the caller (or a single partition) decides it."""
        if self.graph.limits.max_partitions == 1:
            return dict.fromkeys(self.clusters, 0)
        pins: dict[int, int] = {}
        for op, partition in sorted(self.options.pinned.items()):
            cluster = self.cluster[self.graph.index[op]]
            if pins.setdefault(cluster, partition) != partition:
                raise Infeasible(
                    f"operation {op!r} is pinned to partition {partition}, but a register value ties it to operations "
                    f"pinned to {pins[cluster]}: pin them alike",
                    field="pinned", value=op, limit="assignment",
                )  # fmt: skip
        return pins

    @cached_property
    def most_partitions(self) -> int:
        """As many as there may be, and as there is something to put into."""
        pinned = max(1 + max(self.pins.values(), default=-1), len(self.options.partitions))
        if len(self.pins) == len(self.clusters):
            return pinned
        return max(min(self.graph.limits.max_partitions, len(self.clusters)), pinned)

    @cached_property
    def told(self) -> frozenset[str]:
        """Operations that the options name, and so tell from others."""
        options = self.options
        spilled = {name for spill in options.spills for name in spill.ops}
        sharing = {extra.shares_with for extra in options.extra_buffers if extra.shares_with is not None}
        return frozenset({*options.pinned, *spilled, *sharing})

    @cached_property
    def clone_order(self) -> tuple[tuple[int, int], ...]:
        """Pairs of operations of which the first may be taken to start no later: clones have no order of their own,
        unless the options tell one from another."""
        index = self.graph.index
        alike = [clone for clone in self.graph.clones if clone and not self.told.intersection(clone)]
        return tuple((index[a[0]], index[b[0]]) for a, b in pairwise(alike))

    @cached_property
    def twin_order(self) -> tuple[tuple[int, int], ...]:
        """Likewise for operations that differ in nothing but their names: same costs, same neighbours."""
        if self.clone_order:
            # Both orders at once could exclude every schedule.
            return ()
        ends: dict[str, list[tuple[str, bool, Dependence]]] = {op.id: [] for op in self.graph.ops}
        for e in self.graph.edges:
            ends[e.src].append((e.dst, True, replace(e, src="", dst="")))
            ends[e.dst].append((e.src, False, replace(e, src="", dst="")))
        alike: dict[tuple[Operation, str], list[int]] = {}
        for i, op in enumerate(self.graph.ops):
            if op.id not in self.told:
                alike.setdefault((replace(op, id=""), repr(sorted(ends[op.id], key=repr))), []).append(i)
        return tuple(pair for group in alike.values() for pair in pairwise(group))

    def partition_of(self, op: int) -> int | None:
        return self.pins.get(self.cluster[op])

    def surely_cross(self, a: int, b: int) -> bool:
        """Whether both operations are pinned, apart."""
        here, there = self.partition_of(a), self.partition_of(b)
        return here is not None and there is not None and here != there

    def may_cross(self, a: int, b: int) -> bool:
        """Whether some assignment has them in different partitions."""
        here, there = self.partition_of(a), self.partition_of(b)
        return self.cluster[a] != self.cluster[b] and (here is None or there is None or here != there)
