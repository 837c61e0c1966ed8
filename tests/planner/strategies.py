"""Random loop bodies and values for property tests."""

from __future__ import annotations

import string
from dataclasses import replace

from hypothesis import strategies as st

from warpplan.planner.values.costs import CostEntry, CostTable, OperationCost, Quantiles
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.plan import Buffer, Channel, Outcome, Partition, Placement, Plan, Reuse, Schedule
from warpplan.planner.values.profile import Calibration, Failure, Identity, Profile, Rate
from warpplan.planner.values.timeline import Span, Timeline
from warpplan.planner.values.tuning import TuningConfig

cycles = st.integers(0, 12)
names = st.text(string.ascii_lowercase + "_é", min_size=1, max_size=6)
texts = st.text(max_size=8)
numbers = st.floats(-1e12, 1e12)


@st.composite
def graphs(
    draw: st.DrawFn, most_ops: int = 6, most_partitions: int = 3, buffers: bool = True, rules: bool = True
) -> DependenceGraph:
    """Forward edges of distance 0 and up, backward and self edges of distance 1 and up: never a cycle of distance 0.

    ``rules`` draws what only some machines and kernels have too: spread, hand-offs of an edge's own and per KB,
    barriers, architectures, tensor memory, many base registers, clones.
    """
    count = draw(st.sampled_from([*range(1, most_ops + 1), most_ops, most_ops]) if rules else st.integers(1, most_ops))
    architecture = draw(st.sampled_from(["any", "any", "hopper", "blackwell"])) if rules else "any"
    ops = tuple(draw(_operations(f"op{i}", buffers, rules, architecture)) for i in range(count))
    edges = tuple(draw(_edges(count, rules)) for _ in range(draw(st.integers(0, 2 * count))))
    if rules:  # Loops mostly hand values on.
        edges += tuple(Dependence(f"op{i}", f"op{i + 1}") for i in range(count - 1) if draw(st.integers(0, 2)))
    capacity = draw(st.integers(1, 2))
    limits = Limits(
        draw(st.integers(1, most_partitions)),
        draw(st.sampled_from([1024, 2048, 65536])) if buffers else 65536,
        draw(st.sampled_from([20_000, 65_536])) if buffers else 65_536,
        draw(st.integers(0, 5)),
    )
    if rules:
        limits = replace(
            limits,
            handoff_cycles_per_kb=draw(st.sampled_from([0, 0, 1, 3])),
            barrier_cycles=draw(st.sampled_from([0, 0, 1, 2])),
            tmem_columns=draw(st.sampled_from([2, 4, 512])),
            base_registers=draw(st.sampled_from([24, 24, 200])),
            architecture=architecture,
        )
    graph = DependenceGraph("random", ops, edges, limits, (("TMA", 1), ("TENSOR", 1), ("ALU", capacity)))
    copied = draw(st.integers(0, min(2, most_ops - count))) if rules else 0
    if not copied:
        return graph
    graph = _with_clones(graph, copied)
    # Copies that nobody calls clones: operations alike in all but their names.
    return replace(graph, clones=()) if draw(st.booleans()) else graph


@st.composite
def tiny_graphs(draw: st.DrawFn, most_ops: int = 3, most_partitions: int = 2) -> DependenceGraph:
    """Few operations of few cycles, little memory and few registers: all plans of small intervals can be tried."""
    graph = draw(graphs(most_ops, most_partitions, rules=True))
    ops = tuple(
        replace(
            op,
            latency=op.latency % 5,
            occupancy=op.occupancy % 4,
            spread=op.spread % 3,
            registers=min(op.registers, draw(st.sampled_from([1, 1, 2, 4, 16]))) if not graph.clones else op.registers,
        )
        for op in graph.ops
    )
    base = draw(st.sampled_from([24, 24, 28, 100, 237]))
    limits = replace(
        graph.limits,
        max_partitions=draw(st.sampled_from([1, *[most_partitions] * 3])),
        smem_bytes=draw(st.sampled_from([128, 256, 512, 1024, 1024])),
        registers=128
        * (draw(st.sampled_from([1, 2, 3, 8, 8])) * -(-base // 8) * 8 + draw(st.sampled_from([0, 8, 16]))),
        base_registers=base,
        tmem_columns=draw(st.sampled_from([1, 3, 4, 6])),
        handoff_cycles=graph.limits.handoff_cycles % 4,
    )
    return replace(graph, ops=ops, limits=limits)


@st.composite
def sharing_graphs(draw: st.DrawFn, most_ops: int = 4, most_partitions: int = 2) -> DependenceGraph:
    """Tiny graphs whose operations demand amounts of one or two resources; some demand more than there is."""
    graph = draw(tiny_graphs(most_ops, most_partitions))
    names = ("ports", "power")[: draw(st.integers(1, 2))]
    capacities = tuple((name, draw(st.integers(1, 4))) for name in names)
    amounts = {
        op.id.rstrip("c"): tuple(
            (name, amount)
            for name, capacity in capacities
            if (amount := draw(st.sampled_from([0, 1, 1, 2, capacity, capacity + (not draw(st.integers(0, 9)))])))
        )
        for op in graph.ops
    }
    ops = tuple(replace(op, demands=amounts[op.id.rstrip("c")]) for op in graph.ops)
    return replace(graph, ops=ops, limits=replace(graph.limits, capacities=capacities))


@st.composite
def late_graphs(draw: st.DrawFn) -> DependenceGraph:
    """Results that come many intervals after their operations, and values of few registers: many copies are live."""
    graph = draw(graphs())
    later = {op.id: draw(st.sampled_from([0, 1, 10])) for op in graph.ops if op.id[-1] != "c"}
    few = draw(st.sampled_from([1, 2]))
    ops = tuple(
        replace(
            op,
            latency=op.latency * later[op.id.rstrip("c")],
            occupancy=min(op.occupancy, 1),
            issue=min(op.issue, 1),
            registers=min(op.registers, few),
        )
        for op in graph.ops
    )
    return replace(graph, ops=ops)


@st.composite
def _operations(draw: st.DrawFn, name: str, buffers: bool, rules: bool, architecture: str) -> Operation:
    op = Operation(
        name,
        draw(st.sampled_from(["TMA", "TENSOR", "ALU", None])),
        draw(cycles),
        draw(cycles),
        draw(st.integers(0, 4)),
        draw(st.sampled_from([1, 2, 4])),
        buffer_bytes=draw(st.sampled_from([0, 0, 96, 128])) if buffers else 0,
        alignment=draw(st.sampled_from([8, 64])),
        registers=draw(st.sampled_from([0, 0, 16, 40])) if buffers else 0,
    )
    if not rules:
        return op
    if architecture == "blackwell" and op.unit == "TENSOR":
        op = replace(op, registers=0)
    tmem = bool(op.buffer_bytes) and draw(st.booleans())
    return replace(
        op,
        min_warps=draw(st.sampled_from([op.min_warps] * 3 + [1] * 6 + [8])),
        spread=draw(st.sampled_from([0, 0, 1, 5])),
        memory="tmem" if tmem else "smem",
        lanes=draw(st.sampled_from([64, 128])) if tmem else 128,
        buffer_bytes=draw(st.sampled_from([128, 600, 1024])) if tmem else op.buffer_bytes,
    )


@st.composite
def _edges(draw: st.DrawFn, count: int, rules: bool) -> Dependence:
    a, b = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
    return Dependence(
        f"op{a}",
        f"op{b}",
        draw(st.integers(0 if a < b else 1, 2)),
        draw(st.sampled_from(["data", "data", "token", "anti"])),
        draw(st.sampled_from([None, None, 3])),
        draw(st.sampled_from([None, None, None, 0, 7])) if rules else None,
    )


def _with_clones(graph: DependenceGraph, copied: int) -> DependenceGraph:
    """The graph with a second copy of its last ``copied`` operations, and of every edge that touches one of them."""
    copy = {op.id: f"{op.id}c" for op in graph.ops[-copied:]}
    ops = (*graph.ops, *(replace(op, id=copy[op.id]) for op in graph.ops if op.id in copy))
    touching = [e for e in graph.edges if e.src in copy or e.dst in copy]
    edges = (
        *graph.edges,
        *(replace(e, src=copy.get(e.src, e.src), dst=copy.get(e.dst, e.dst)) for e in touching),
    )
    return replace(graph, ops=ops, edges=edges, clones=(tuple(copy), tuple(copy.values())))


quantiles = st.builds(Quantiles, numbers, numbers, st.integers(0, 10**6))
operation_costs = st.builds(OperationCost, *(st.none() | quantiles,) * 3)
parameters = st.dictionaries(names, st.integers(0, 2**40) | texts, max_size=3).map(lambda d: tuple(sorted(d.items())))


def _lookup(entry: CostEntry) -> object:
    """What a cost is looked up by: kind, text parameters, and the one number."""
    texts = tuple((name, value) for name, value in entry.parameters if isinstance(value, str))
    return entry.kind, texts, next((value for _, value in entry.parameters if isinstance(value, int)), 0)


cost_tables = st.builds(
    CostTable,
    st.lists(st.builds(CostEntry, names, parameters, operation_costs), max_size=3, unique_by=_lookup).map(tuple),
)
rates = st.builds(Rate, numbers, numbers, numbers, st.integers(0, 99))
profiles = st.builds(
    Profile,
    st.builds(Identity, *(texts,) * 8),
    cost_tables,
    st.dictionaries(names, rates, max_size=3).map(lambda d: tuple(sorted(d.items()))),
    st.lists(
        st.builds(
            Calibration,
            names,
            st.dictionaries(names, numbers, max_size=3).map(lambda d: tuple(sorted(d.items()))),
            st.lists(st.lists(st.integers(1, 9), max_size=4).map(tuple), max_size=2).map(tuple),
            texts,
        ),
        max_size=2,
    ).map(tuple),
    st.lists(st.builds(Failure, names, texts), max_size=2).map(tuple),
    st.lists(texts, max_size=2).map(tuple),
)
counts = st.integers(0, 2**40)
whole_tuples = st.lists(st.integers(0, 9), max_size=3).map(tuple)
plans = st.builds(
    Plan,
    texts,
    st.builds(
        Schedule,
        counts,
        st.lists(st.builds(Placement, names, *(counts,) * 4), max_size=4, unique_by=lambda p: p.op).map(tuple),
    ),
    st.lists(st.builds(Partition, names, counts, counts, st.lists(names, max_size=3).map(tuple)), max_size=3).map(
        tuple
    ),
    st.lists(st.builds(Channel, names, counts, whole_tuples, counts, counts, counts), max_size=2).map(tuple),
    st.lists(
        st.builds(Buffer, names, counts, counts, counts, st.none() | names, st.sampled_from(["smem", "tmem"])),
        max_size=2,
    ).map(tuple),
    counts,
    st.lists(st.builds(Reuse, names, names, st.integers(-3, 3)), max_size=2).map(tuple),
)
timelines = st.builds(
    Timeline,
    texts,
    counts,
    st.lists(names, max_size=2).map(tuple),
    st.lists(st.builds(Span, names, counts, counts, st.none() | names, *(counts,) * 5, texts), max_size=3).map(tuple),
    counts,
)
outcomes = st.builds(
    Outcome,
    st.sampled_from(["optimal", "feasible", "infeasible", "unknown"]),
    st.none() | plans,
    counts,
    st.floats(0, 1e6),
    texts,
)
configs = st.builds(
    TuningConfig,
    st.dictionaries(names, st.integers() | texts | st.booleans(), max_size=4).map(lambda d: tuple(sorted(d.items()))),
    counts,
    counts,
    counts,
    st.none() | counts,
)


def two_clones() -> DependenceGraph:
    """A shared load, and two clones of a multiply and what reads it: TENSOR is full at 80 cycles."""
    ops = [Operation("load", "TMA", 50, 10, 2, buffer_bytes=1024, alignment=1024)]
    edges = []
    for i in "01":
        ops += [
            Operation(f"mma{i}", "TENSOR", 60, 40, 5, min_warps=4, registers=32),
            Operation(f"exp{i}", "ALU", 30, 30, 30),
        ]
        edges += [Dependence("load", f"mma{i}"), Dependence(f"mma{i}", f"exp{i}")]
    return DependenceGraph(
        "two", tuple(ops), tuple(edges), Limits(3, handoff_cycles=10), clones=(("mma0", "exp0"), ("mma1", "exp1"))
    )
