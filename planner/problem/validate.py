"""What a graph and the options of a solve must be before anything is planned.

``DependenceGraph`` refuses what contradicts itself; here is what cannot be *planned*: absurd sizes, rules of an
architecture that no schedule can repair, options that name what is not there.
"""

from __future__ import annotations

from collections.abc import Iterator

from warpplan.planner.errors import InvalidGraph, InvalidInput, UnknownName
from warpplan.planner.values.dependence_graph import MOST_OF, DependenceGraph, Operation, is_whole, require_few
from warpplan.planner.values.options import SolveOptions

MOST_WARPS = 8
"""Of one partition: the most in :data:`~warpplan.planner.problem.terms.WARP_COUNTS`."""
MAX_PARTITIONS = 32
"""A block has at most 1,024 threads (CUDA C++ Programming Guide, "Technical Specifications"): 32 warps."""
MAX_CYCLES = 10**9
"""Half a second on one operation: beyond it, something else is meant, and sums would leave 64 bits."""
MAX_SUM = 2**61
"""Sums of the solver's constraints stay below this many cycles; CP-SAT's own limit is 2**63 for all terms of one."""
MAX_DISTANCE = 10_000
"""Iterations between the ends of a dependence: loops carry values over one or two, unrolled ones over more."""
MAX_AMOUNT = 2**40
"""The most bytes, columns or registers: as good as no limit, and sums of them stay within 64 bits."""
MAX_CAPACITY = 1_000
"""Of one unit. A unit of which there is always one free is no unit: ``null``."""
MAX_SHARED = 10**6
"""Capacity of a resource that operations demand amounts of: with cycles, products of both stay within 64 bits."""
LEAST_LIMITS = {
    "max_partitions": 1, "smem_bytes": 0, "registers": 0, "handoff_cycles": 0, "handoff_cycles_per_kb": 0,
    "barrier_cycles": 0, "tmem_columns": 0, "base_registers": 0,
}  # fmt: skip
MOST_CHARACTERS = 1_000
"""Of an operation's id, and of a unit's or resource's name, which tables and pictures show."""


def validate(graph: DependenceGraph, options: SolveOptions) -> None:
    """Raises :class:`InvalidGraph` or :class:`InvalidInput`, naming the element, its value and its limit."""
    if not graph.ops:
        raise InvalidGraph(f"graph {graph.name!r} has no operations: give it at least one", field="ops")
    for name in MOST_OF:
        require_few(graph.name, name, len(getattr(graph, name)))
    _validate_limits(graph)
    _validate_operations(graph)
    _validate_edges(graph)
    _validate_options(graph, options)
    _validate_sums(graph, options)


def _require_printable(name: str, what: str, expected: str, path: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MOST_CHARACTERS or not name.isprintable():
        shown = name[:40] if isinstance(name, str) else name
        raise InvalidGraph(
            f"{what} {shown!r}: expected {expected} of 1 to {MOST_CHARACTERS} printable characters",
            field=path, value=shown, limit=MOST_CHARACTERS,
        )  # fmt: skip


def require_slot_capacity(graph: DependenceGraph) -> None:
    """Raises :class:`InvalidGraph` for a value that is larger than the whole memory it is to lie in.

    For graphs that people give: to them it is a mistake in an element. ``solve`` itself answers "infeasible", because
    among candidates it is just one that cannot be.
    """
    limits = graph.limits
    for op in graph.ops:
        most = limits.smem_bytes if op.memory == "smem" else limits.tmem_columns * 4 * op.lanes
        if op.buffer_bytes > most:
            where = "shared memory" if op.memory == "smem" else f"{op.lanes} lanes of tensor memory"
            raise InvalidGraph(
                f"operation {op.id!r} writes {op.buffer_bytes} bytes, more than the {most} bytes of {where}",
                field="ops.buffer_bytes", value=op.buffer_bytes, limit=most,
            )  # fmt: skip


def _validate_sums(graph: DependenceGraph, options: SolveOptions) -> None:
    """Raises :class:`InvalidGraph` where a sum of the solver could leave CP-SAT's 64-bit integers.

    ``serial`` is an interval that is long enough for everything in series, so no longer one is ever asked for. A start,
    a release or a window's end is at most that many cycles for each operation on a path, each iteration that a
    dependence spans and each slot that memory has capacity for; a partition's register area is such a time for each
    register. CP-SAT requires the sum of a constraint's absolute terms to stay below 2**63.
    """
    limits, ops = graph.limits, graph.ops
    slow = 4  # rule 0: one warp in place of four
    serial = sum(op.latency + slow * (op.occupancy + op.issue) + 2 * op.spread + options.slack_cycles + 1 for op in ops)
    serial += sum(
        (edge.latency or 0) + graph.edge_handoff(edge) + 2 * limits.barrier_cycles + options.slack_cycles
        for edge in graph.edges
    )
    distance = max((edge.distance for edge in graph.edges), default=0)
    intervals = 2 * (len(ops) + distance + 4)
    slots = max((_most_slots(graph, op) for op in ops if op.buffer_bytes or op.registers), default=0)
    registers = limits.base_registers + sum(op.registers for op in ops)
    shared = max((capacity for _, capacity in limits.capacities), default=0)
    deep = f"{slots} slots of one ring in memory"
    if options.depth is not None and options.depth > slots:
        slots, deep = options.depth, f"a depth of {options.depth} slots"
    for amount, what in (
        (serial * (intervals + slots), deep),
        (serial * intervals * max(1, registers), f"{registers} registers"),
        (4 * serial * shared, f"a capacity of {shared}"),
    ):
        if amount >= MAX_SUM:
            value, name, field = max(_cycles(graph, options))
            least = -(-amount // MAX_SUM)
            raise InvalidGraph(
                f"{name} is {value} cycles: with {what} the solver's sums would leave 64 bits; scale all cycles down "
                f"{least}-fold or more, or give limits nearer to the device's",
                field=field, value=value, limit=value // least,
            )  # fmt: skip


def _cycles(graph: DependenceGraph, options: SolveOptions) -> Iterator[tuple[int, str, str]]:
    """Every cost in cycles: value, what it is of, field."""
    yield options.slack_cycles, "slack", "slack_cycles"
    for op in graph.ops:
        for name in ("latency", "occupancy", "issue", "spread"):
            yield getattr(op, name), f"{name} of operation {op.id!r}", f"ops.{name}"
    for edge in graph.edges:
        for name in ("latency", "handoff"):
            yield getattr(edge, name) or 0, f"{name} of edge {edge.src} -> {edge.dst}", f"edges.{name}"
    for name in ("handoff_cycles", "handoff_cycles_per_kb", "barrier_cycles"):
        yield getattr(graph.limits, name), f"limits.{name}", f"limits.{name}"


def _most_slots(graph: DependenceGraph, op: Operation) -> int:
    """Slots of the operation's ring that its memory has capacity for."""
    if op.buffer_bytes and op.memory == "tmem":
        return graph.limits.tmem_columns * 4 * op.lanes // op.buffer_bytes
    return graph.limits.smem_bytes // (op.buffer_bytes or op.register_bytes)


def _validate_limits(graph: DependenceGraph) -> None:
    for name, least in LEAST_LIMITS.items():
        value = getattr(graph.limits, name)
        if not is_whole(value) or value < least:
            raise InvalidGraph(
                f"limits.{name} is {value}: expected a whole number of {least} or more", field=f"limits.{name}",
                value=value, limit=least,
            )  # fmt: skip
        most, of = (MAX_CYCLES, " cycles") if name.endswith(("cycles", "_kb")) else (MAX_AMOUNT, "")
        most = MAX_PARTITIONS if name == "max_partitions" else most
        if value > most:
            raise InvalidGraph(
                f"limits.{name} is {value}: expected at most {most}{of}",
                field=f"limits.{name}",
                value=value,
                limit=most,
            )
    for name, capacity in graph.limits.capacities:
        _require_printable(name, "resource", "a name", "limits.capacities")
        if capacity > MAX_SHARED:
            raise InvalidGraph(
                f"resource {name!r} has capacity {capacity}: expected at most {MAX_SHARED}; count in larger units",
                field="limits.capacities", value=capacity, limit=MAX_SHARED,
            )  # fmt: skip
    for unit, capacity in graph.units:
        _require_printable(unit, "unit", "a name", "units")
        if capacity > MAX_CAPACITY:
            raise InvalidGraph(
                f"unit {unit!r} has capacity {capacity}: expected at most {MAX_CAPACITY}", field="units",
                value=capacity, limit=MAX_CAPACITY,
            )  # fmt: skip


def _validate_operations(graph: DependenceGraph) -> None:
    for op in graph.ops:
        _require_printable(op.id, "operation", "an id", "ops.id")
        if not is_whole(op.min_warps) or not 1 <= op.min_warps <= MOST_WARPS:
            raise InvalidGraph(
                f"operation {op.id!r} has min_warps {op.min_warps}: expected 1 to {MOST_WARPS}",
                field="ops.min_warps", value=op.min_warps, limit=MOST_WARPS,
            )  # fmt: skip
        for name in ("latency", "occupancy", "issue", "spread"):
            if getattr(op, name) > MAX_CYCLES:
                raise InvalidGraph(
                    f"operation {op.id!r} has {name} {getattr(op, name)}: expected at most {MAX_CYCLES} cycles",
                    field=f"ops.{name}", value=getattr(op, name), limit=MAX_CYCLES,
                )  # fmt: skip
        for name in ("registers", "alignment"):
            if getattr(op, name) > MAX_AMOUNT:
                raise InvalidGraph(
                    f"operation {op.id!r} has {name} {getattr(op, name)}: expected at most {MAX_AMOUNT}",
                    field=f"ops.{name}", value=getattr(op, name), limit=MAX_AMOUNT,
                )  # fmt: skip
        if not is_whole(op.alignment) or op.alignment < 1 or op.alignment & (op.alignment - 1):
            raise InvalidGraph(
                f"operation {op.id!r} has alignment {op.alignment}: expected a power of two",
                field="ops.alignment", value=op.alignment,
            )  # fmt: skip
        if graph.limits.architecture == "blackwell" and op.unit == "TENSOR" and op.registers:
            raise InvalidGraph(
                f"operation {op.id!r} runs on TENSOR and takes {op.registers} registers: "
                "on Blackwell its result is in tensor memory (a buffer) or shared memory, not in registers",
                field="ops.registers", value=op.registers, limit=0,
            )  # fmt: skip


def _validate_edges(graph: DependenceGraph) -> None:
    for edge in graph.edges:
        for name in ("latency", "handoff"):
            cycles = getattr(edge, name)
            if cycles is not None and not (is_whole(cycles) and 0 <= cycles <= MAX_CYCLES):
                raise InvalidGraph(
                    f"edge {edge.src} -> {edge.dst} has {name} {cycles}: expected 0 to {MAX_CYCLES} cycles",
                    field=f"edges.{name}", value=cycles, limit=MAX_CYCLES,
                )  # fmt: skip
        if edge.distance > MAX_DISTANCE:
            raise InvalidGraph(
                f"edge {edge.src} -> {edge.dst} has distance {edge.distance}: expected at most {MAX_DISTANCE}",
                field="edges.distance", value=edge.distance, limit=MAX_DISTANCE,
            )  # fmt: skip


def _validate_options(graph: DependenceGraph, options: SolveOptions) -> None:
    if options.depth is not None and not (is_whole(options.depth) and options.depth >= 1):
        raise InvalidInput(
            f"depth is {options.depth}: expected a whole number of 1 or more", field="depth", value=options.depth,
            limit=1,
        )  # fmt: skip
    if not options.work_limit_s > 0:
        raise InvalidInput(
            f"work limit is {options.work_limit_s} s: expected more than 0", field="work_limit_s",
            value=options.work_limit_s, limit=0,
        )  # fmt: skip
    if options.among_equals not in ("lives", "makespan"):
        raise UnknownName("among_equals", options.among_equals, ("lives", "makespan"))
    if not is_whole(options.slack_cycles) or not 0 <= options.slack_cycles <= MAX_CYCLES:
        raise InvalidInput(
            f"slack is {options.slack_cycles} cycles: expected 0 to {MAX_CYCLES}", field="slack_cycles",
            value=options.slack_cycles, limit=MAX_CYCLES,
        )  # fmt: skip
    most = graph.limits.max_partitions - 1
    for op_id, partition in options.pinned.items():
        if op_id not in graph.index:
            raise InvalidInput(f"pinned operation {op_id!r} is not in the graph", field="pinned", value=op_id)
        if not is_whole(partition) or not 0 <= partition <= most:
            raise InvalidInput(
                f"operation {op_id!r} is pinned to partition {partition!r}: expected 0 to {most}",
                field="pinned", value=partition, limit=most,
            )  # fmt: skip
    _validate_extra_buffers(graph, options)
    for spill in options.spills:
        for name in spill.ops:
            if name not in graph.index:
                raise InvalidInput(f"spill names operation {name!r}, which is not in the graph", field="spills",
                                   value=name)  # fmt: skip
        if not spill.ops or not is_whole(spill.registers) or not 0 <= spill.registers <= MAX_AMOUNT:
            raise InvalidInput(
                f"spill of {len(spill.ops)} operations at {spill.registers} registers: expected at least one "
                f"operation and 0 to {MAX_AMOUNT} registers", field="spills", value=spill.registers,
            )  # fmt: skip


def _validate_extra_buffers(graph: DependenceGraph, options: SolveOptions) -> None:
    rings = {op.id for op in graph.ops if op.buffer_bytes}
    names = set(graph.index)
    for extra in options.extra_buffers:
        if extra.name in names:
            raise InvalidInput(
                f"buffer {extra.name!r} has the name of an operation or of another buffer: give it its own",
                field="extra_buffers", value=extra.name,
            )  # fmt: skip
        names.add(extra.name)
        for name, least in (("size", 0), ("alignment", 1), ("slot", 0)):
            value = getattr(extra, name)
            if not is_whole(value) or value < least:
                raise InvalidInput(
                    f"buffer {extra.name!r} has {name} {value}: expected a whole number of {least} or more",
                    field="extra_buffers", value=value, limit=least,
                )  # fmt: skip
        if extra.shares_with is not None and extra.shares_with not in rings:
            raise InvalidInput(
                f"buffer {extra.name!r} shares with {extra.shares_with!r}, which has no ring",
                field="extra_buffers", value=extra.shares_with, limit=sorted(rings),
            )  # fmt: skip
