"""The dependence graph of a loop body: operations, dependences, limits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from warpplan.planner.device import UNITS
from warpplan.planner.errors import InvalidGraph

EdgeKind = Literal["data", "token", "anti"]


@dataclass(frozen=True)
class Operation:
    """One operation of the loop body. Cycles are whole numbers ≥ 0.

    ``unit`` is one of ``device.UNITS`` or ``None`` (no unit held). ``buffer_bytes`` is the size of the value it
    writes into ``memory``; 0 where the value stays in registers. ``registers`` are the 32-bit registers per thread
    that its value occupies. ``min_warps`` 4 marks a warp-group operation (wgmma).
    """

    id: str
    unit: str | None
    latency: int
    occupancy: int
    issue: int
    min_warps: int = 1
    buffer_bytes: int = 0
    memory: Literal["smem", "tmem"] = "smem"
    alignment: int = 8
    registers: int = 0


@dataclass(frozen=True)
class Dependence:
    """``dst`` of iteration i needs ``src`` of iteration i − ``distance``. ``latency`` overrides the source's own."""

    src: str
    dst: str
    distance: int = 0
    kind: EdgeKind = "data"
    latency: int | None = None


@dataclass(frozen=True)
class Limits:
    """What the device leaves to one block. ``handoff_cycles`` is charged where an edge crosses partitions."""

    max_partitions: int = 4
    smem_bytes: int = 232_448
    registers: int = 65_536
    handoff_cycles: int = 0


@dataclass(frozen=True)
class DependenceGraph:
    """A loop body. Raises :class:`InvalidGraph`, naming the element, for duplicate ids, dangling edges, unknown units,
    negative costs and distance-0 cycles."""

    name: str
    ops: tuple[Operation, ...]
    edges: tuple[Dependence, ...]
    limits: Limits = Limits()
    units: tuple[tuple[str, int], ...] = tuple((u, 1) for u in UNITS)

    def __post_init__(self) -> None:
        _validate(self)

    @cached_property
    def by_id(self) -> dict[str, Operation]:
        return {op.id: op for op in self.ops}

    @cached_property
    def index(self) -> dict[str, int]:
        return {op.id: i for i, op in enumerate(self.ops)}

    def edge_latency(self, edge: Dependence) -> int:
        """Cycles from the source's issue to the earliest issue of the destination, hand-off not counted."""
        return self.by_id[edge.src].latency if edge.latency is None else edge.latency


def _validate(graph: DependenceGraph) -> None:
    seen: set[str] = set()
    capacity = dict(graph.units)
    for op in graph.ops:
        if op.id in seen:
            raise InvalidGraph(f"operation {op.id!r} appears twice: ids must be unique", field="ops.id", value=op.id)
        seen.add(op.id)
        if op.unit is not None and op.unit not in capacity:
            raise InvalidGraph(
                f"operation {op.id!r} uses unknown unit {op.unit!r}: expected one of {', '.join(capacity)} or null",
                field="ops.unit", value=op.unit, limit=list(capacity),
            )  # fmt: skip
        for name in ("latency", "occupancy", "issue", "buffer_bytes", "registers"):
            value = getattr(op, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidGraph(
                    f"operation {op.id!r} has {name} {value!r}: expected a whole number of 0 or more",
                    field=f"ops.{name}", value=value, limit=0,
                )  # fmt: skip
    for unit, units in graph.units:
        if units < 1:
            raise InvalidGraph(f"unit {unit!r} has capacity {units}: expected 1 or more", field="units", value=units)
    for edge in graph.edges:
        for end in (edge.src, edge.dst):
            if end not in seen:
                raise InvalidGraph(
                    f"edge {edge.src} -> {edge.dst} names operation {end!r}, which does not exist",
                    field="edges", value=end,
                )  # fmt: skip
        if isinstance(edge.distance, bool) or not isinstance(edge.distance, int) or edge.distance < 0:
            raise InvalidGraph(
                f"edge {edge.src} -> {edge.dst} has distance {edge.distance!r}: expected a whole number of 0 or more",
                field="edges.distance", value=edge.distance, limit=0,
            )  # fmt: skip
    _reject_zero_cycles(graph)


def _reject_zero_cycles(graph: DependenceGraph) -> None:
    """A cycle whose distances sum to 0 asks an operation to wait for itself (Kahn's algorithm on distance-0 edges)."""
    successors: dict[str, list[str]] = {op.id: [] for op in graph.ops}
    waiting = dict.fromkeys(successors, 0)
    for edge in graph.edges:
        if edge.distance == 0:
            successors[edge.src].append(edge.dst)
            waiting[edge.dst] += 1
    ready = [op for op, n in waiting.items() if n == 0]
    while ready:
        for successor in successors[ready.pop()]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                ready.append(successor)
    stuck = sorted(op for op, n in waiting.items() if n > 0)
    if stuck:
        raise InvalidGraph(
            f"operations {', '.join(stuck[:6])} form a cycle of distance 0: give one of its edges a distance of 1",
            field="edges.distance", value=stuck,
        )  # fmt: skip
