"""The dependence graph of a loop body: operations, dependences, limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

from warpplan.planner.errors import InvalidGraph
from warpplan.planner.later_fields import LATER, shows_later_fields
from warpplan.planner.values.device import UNITS

EdgeKind = Literal["data", "token", "anti"]
Memory = Literal["smem", "tmem"]
Architecture = Literal["any", "hopper", "blackwell"]

TMEM_LANES = (64, 128)
"""Heights of a value in tensor memory: a 64-row accumulator takes half of the 128 lanes (PTX ISA, "Tensor Memory")."""

MOST_OF = {"ops": 10_000, "edges": 100_000, "units": 256, "clones": 16}
"""Elements of a graph: beyond them, no time limit could be kept. Chosen by hand, above published graphs."""
MOST_RESOURCES = 64
"""Names in ``Limits.capacities``."""

Amounts = tuple[tuple[str, int], ...]
"""(resource, whole amount) pairs, by name; an object in JSON."""


@shows_later_fields
@dataclass(frozen=True)
class Operation:
    """One operation of the loop body. Cycles are whole numbers ≥ 0.

    ``unit`` is one of ``device.UNITS`` or ``None`` (no unit held). ``buffer_bytes`` is the size of the value it
    writes into ``memory``; 0 where the value stays in registers. ``registers`` are the 32-bit registers per thread
    that its value occupies. ``min_warps`` 4 marks a warp-group operation (wgmma). ``spread`` is by how many cycles the
    latency's upper quantile (p90) exceeds its median. ``lanes`` is the height of a value in tensor memory. ``demands``
    is what it takes, for as long as it holds its unit, of resources that several operations share at once (memory
    ports, power): names are those of ``Limits.capacities``, amounts 1 or more.
    """

    id: str
    unit: str | None
    latency: int
    occupancy: int
    issue: int
    min_warps: int = 1
    buffer_bytes: int = 0
    memory: Memory = "smem"
    alignment: int = 8
    registers: int = 0
    spread: int = 0
    lanes: int = 128
    demands: Amounts = field(default=(), repr=False, metadata=LATER)

    @property
    def register_bytes(self) -> int:
        """Bytes of the value while it is in registers only: what crosses when another partition reads it."""
        return 0 if self.buffer_bytes else 4 * 32 * self.registers * self.min_warps


@dataclass(frozen=True)
class Dependence:
    """``dst`` of iteration i needs ``src`` of iteration i − ``distance``. ``latency`` overrides the source's own, and
    ``handoff`` the limits' ``handoff_cycles``."""

    src: str
    dst: str
    distance: int = 0
    kind: EdgeKind = "data"
    latency: int | None = None
    handoff: int | None = None


@shows_later_fields
@dataclass(frozen=True)
class Limits:
    """What the device leaves to one block, and what crossing costs.

    ``handoff_cycles`` is charged where an edge crosses partitions, ``handoff_cycles_per_kb`` on top for each KB (begun)
    of a value that has to leave registers for it, ``barrier_cycles`` is the issue time of one barrier wait or arrive.
    ``base_registers`` a thread belong to no value of the graph: addresses, phases, counters. ``architecture`` adds the
    assignment rules of Hopper (wgmma) or Blackwell (tcgen05, tensor memory); RULES.md has them all. ``capacities`` is
    how much of each resource there is for the ``demands`` of operations.
    """

    max_partitions: int = 4
    smem_bytes: int = 232_448
    registers: int = 65_536
    handoff_cycles: int = 0
    handoff_cycles_per_kb: int = 0
    barrier_cycles: int = 0
    tmem_columns: int = 512
    base_registers: int = 24
    architecture: Architecture = "any"
    capacities: Amounts = field(default=(), repr=False, metadata=LATER)


@dataclass(frozen=True)
class DependenceGraph:
    """A loop body. Raises :class:`InvalidGraph`, naming the element, for duplicate ids, dangling edges, unknown units,
    negative costs and distance-0 cycles.

    ``clones`` lists interchangeable copies of one subgraph (the data partitions of a tile): one tuple of ids a copy, in
    like order. Swapping two of them must give the same graph.
    """

    name: str
    ops: tuple[Operation, ...]
    edges: tuple[Dependence, ...]
    limits: Limits = Limits()
    units: tuple[tuple[str, int], ...] = tuple((u, 1) for u in UNITS)
    clones: tuple[tuple[str, ...], ...] = ()

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

    def edge_handoff(self, edge: Dependence) -> int:
        """Cycles that ``edge`` costs on top where its ends are in different partitions."""
        source = self.by_id[edge.src]
        fixed = self.limits.handoff_cycles if edge.handoff is None else edge.handoff
        kilobytes = -(-source.register_bytes // 1024) if edge.kind == "data" else 0
        return fixed + kilobytes * self.limits.handoff_cycles_per_kb


def is_whole(value: object) -> bool:
    """Whether ``value`` is a whole number, not a truth value: nothing else may be counted in."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_few(graph: str, name: str, count: int) -> None:
    """Raises :class:`InvalidGraph` for more elements than :data:`MOST_OF`: also before a graph is built of them."""
    if count > MOST_OF[name]:
        raise InvalidGraph(
            f"graph {graph[:60]!r} has {count} {name}: at most {MOST_OF[name]} can be planned",
            field=name, value=count, limit=MOST_OF[name],
        )  # fmt: skip


def _validate(graph: DependenceGraph) -> None:
    seen: set[str] = set()
    capacity = dict(graph.units)
    for op in graph.ops:
        if op.id in seen:
            raise InvalidGraph(f"operation {op.id!r} appears twice: ids must be unique", field="ops.id", value=op.id)
        seen.add(op.id)
        if op.unit is not None and op.unit not in capacity:
            raise InvalidGraph(
                f"operation {op.id!r} uses unknown unit {op.unit!r}: expected one of {', '.join(capacity) or '(none)'} "
                "or null",
                field="ops.unit", value=op.unit, limit=list(capacity),
            )  # fmt: skip
        for name in ("latency", "occupancy", "issue", "buffer_bytes", "registers", "spread"):
            value = getattr(op, name)
            if not is_whole(value) or value < 0:
                raise InvalidGraph(
                    f"operation {op.id!r} has {name} {value!r}: expected a whole number of 0 or more",
                    field=f"ops.{name}", value=value, limit=0,
                )  # fmt: skip
        _require_one_of(op.memory, get_args(Memory), f"operation {op.id!r} has memory", "ops.memory")
        if not is_whole(op.lanes) or op.lanes not in TMEM_LANES:
            raise InvalidGraph(
                f"operation {op.id!r} has lanes {op.lanes}: expected one of {', '.join(map(str, TMEM_LANES))}",
                field="ops.lanes", value=op.lanes, limit=list(TMEM_LANES),
            )  # fmt: skip
    for unit, units in graph.units:
        if not is_whole(units) or units < 1:
            raise InvalidGraph(
                f"unit {unit!r} has capacity {units}: expected a whole number of 1 or more", field="units",
                value=units, limit=1,
            )  # fmt: skip
    if len(capacity) < len(graph.units):
        twice = next(unit for i, (unit, _) in enumerate(graph.units) if unit in dict(graph.units[:i]))
        raise InvalidGraph(f"unit {twice!r} is given twice: give it once", field="units", value=twice)
    _require_one_of(graph.limits.architecture, get_args(Architecture), "limits.architecture is", "limits.architecture")
    _check_demands(graph)
    for edge in graph.edges:
        for end in (edge.src, edge.dst):
            if end not in seen:
                raise InvalidGraph(
                    f"edge {edge.src} -> {edge.dst} names operation {end!r}, which does not exist",
                    field="edges", value=end,
                )  # fmt: skip
        _require_one_of(edge.kind, get_args(EdgeKind), f"edge {edge.src} -> {edge.dst} has kind", "edges.kind")
        if not is_whole(edge.distance) or edge.distance < 0:
            raise InvalidGraph(
                f"edge {edge.src} -> {edge.dst} has distance {edge.distance!r}: expected a whole number of 0 or more",
                field="edges.distance", value=edge.distance, limit=0,
            )  # fmt: skip
    _reject_zero_cycles(graph)
    _check_clones(graph)


def _require_one_of(value: str, known: Sequence[str], what: str, path: str) -> None:
    if value not in known:
        raise InvalidGraph(
            f"{what} {value!r}: expected one of {', '.join(known)}", field=path, value=value, limit=list(known)
        )


def _check_demands(graph: DependenceGraph) -> None:
    """Demands and capacities are whole numbers of 1 or more, and every resource is known and named once."""
    capacities = dict(graph.limits.capacities)
    _check_amounts(graph.limits.capacities, "limits", "limits.capacities", "capacity")
    if len(capacities) > MOST_RESOURCES:
        raise InvalidGraph(
            f"graph {graph.name[:60]!r} has {len(capacities)} resources: at most {MOST_RESOURCES} can be planned",
            field="limits.capacities", value=len(capacities), limit=MOST_RESOURCES,
        )  # fmt: skip
    for op in graph.ops:
        _check_amounts(op.demands, f"operation {op.id!r}", "ops.demands", "demand")
        for name, _ in op.demands:
            if name not in capacities:
                raise InvalidGraph(
                    f"operation {op.id!r} demands unknown resource {name!r}: expected one of "
                    f"{', '.join(capacities) or '(none)'}, the names in limits.capacities",
                    field="ops.demands", value=name, limit=list(capacities),
                )  # fmt: skip


def _check_amounts(amounts: Amounts, whose: str, path: str, what: str) -> None:
    names = [name for name, _ in amounts]
    for name, amount in amounts:
        if not is_whole(amount) or amount < 1:
            raise InvalidGraph(
                f"{whose} has {what} {amount!r} of resource {name!r}: expected a whole number of 1 or more",
                field=path, value=amount, limit=1,
            )  # fmt: skip
        if names.count(name) > 1:
            raise InvalidGraph(f"{whose} names resource {name!r} twice: give it once", field=path, value=name)


def _check_clones(graph: DependenceGraph) -> None:
    """Swapping the first clone with each other one must map operations and edges onto themselves."""
    named = [name for clone in graph.clones for name in clone]
    for name in named:
        if name not in graph.by_id or named.count(name) > 1:
            raise InvalidGraph(
                f"clones name operation {name!r}, which "
                f"{'is in two places' if name in graph.by_id else 'does not exist'}",
                field="clones", value=name,
            )  # fmt: skip
    edges = Counter(graph.edges)
    for clone in graph.clones[1:]:
        first = graph.clones[0]
        if len(clone) != len(first):
            raise InvalidGraph(
                f"clones of {len(first)} and {len(clone)} operations: expected equally many", field="clones",
                value=len(clone), limit=len(first),
            )  # fmt: skip
        swap = dict(zip((*first, *clone), (*clone, *first), strict=True))
        for a, b in zip(first, clone, strict=True):
            if replace(graph.by_id[a], id=b) != graph.by_id[b]:
                raise InvalidGraph(f"clones {a!r} and {b!r} differ: expected equal costs", field="clones", value=b)
        swapped = Counter(replace(e, src=swap.get(e.src, e.src), dst=swap.get(e.dst, e.dst)) for e in graph.edges)
        if swapped != edges:
            odd = next(iter((swapped - edges) or (edges - swapped)))
            raise InvalidGraph(
                f"clones of {first[0]!r} and {clone[0]!r} are not interchangeable: see edge {odd.src} -> {odd.dst}",
                field="clones", value=clone[0],
            )  # fmt: skip


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
    stuck = {op for op, n in waiting.items() if n > 0}
    if stuck:
        cycle = _cycle(graph, stuck)
        raise InvalidGraph(
            f"operations {', '.join(cycle[:6])} form a cycle of distance 0: give one of its edges a distance of 1",
            field="edges.distance", value=cycle,
        )  # fmt: skip


def _cycle(graph: DependenceGraph, stuck: set[str]) -> list[str]:
    """One cycle of distance-0 edges, in sorted order. Each operation of ``stuck`` waits for another one of them, but
    many only wait for what the cycle would give them."""
    before = {e.dst: e.src for e in graph.edges if e.distance == 0 and e.src in stuck}
    walked: dict[str, None] = {}
    at = min(stuck)
    while at not in walked:
        walked[at] = None
        at = before[at]
    names = list(walked)
    return sorted(names[names.index(at) :])
