"""Random loop bodies and values for property tests."""

from __future__ import annotations

import string

from hypothesis import strategies as st

from warpplan.planner.costs import CostEntry, CostTable, OperationCost, Quantiles
from warpplan.planner.graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.plan import Buffer, Channel, Outcome, Partition, Placement, Plan, Reuse, Schedule
from warpplan.planner.profile import Calibration, Failure, Identity, Profile, Rate
from warpplan.planner.timeline import Span, Timeline
from warpplan.planner.tuning import TuningConfig

cycles = st.integers(0, 12)
names = st.text(string.ascii_lowercase + "_é", min_size=1, max_size=6)
texts = st.text(max_size=8)
numbers = st.floats(-1e12, 1e12)


@st.composite
def graphs(draw: st.DrawFn, most_ops: int = 6, most_partitions: int = 3, buffers: bool = True) -> DependenceGraph:
    """Forward edges of distance 0 and up, backward and self edges of distance 1 and up: never a cycle of distance 0."""
    count = draw(st.integers(1, most_ops))
    ops = tuple(
        Operation(
            f"op{i}",
            draw(st.sampled_from(["TMA", "TENSOR", "ALU", None])),
            draw(cycles),
            draw(cycles),
            draw(st.integers(0, 4)),
            draw(st.sampled_from([1, 2, 4])),
            buffer_bytes=draw(st.sampled_from([0, 0, 96, 128])) if buffers else 0,
            alignment=draw(st.sampled_from([8, 64])),
            registers=draw(st.sampled_from([0, 0, 16, 40])) if buffers else 0,
        )
        for i in range(count)
    )
    edges = []
    for _ in range(draw(st.integers(0, 2 * count))):
        a, b = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
        edges.append(
            Dependence(
                f"op{a}",
                f"op{b}",
                draw(st.integers(0 if a < b else 1, 2)),
                draw(st.sampled_from(["data", "data", "token", "anti"])),
                draw(st.sampled_from([None, None, 3])),
            )
        )
    capacity = draw(st.integers(1, 2))
    limits = Limits(
        draw(st.integers(1, most_partitions)),
        draw(st.sampled_from([1024, 2048, 65536])) if buffers else 65536,
        draw(st.sampled_from([20_000, 65_536])) if buffers else 65_536,
        draw(st.integers(0, 5)),
    )
    return DependenceGraph("random", ops, tuple(edges), limits, (("TMA", 1), ("TENSOR", 1), ("ALU", capacity)))


quantiles = st.builds(Quantiles, numbers, numbers, st.integers(0, 10**6))
operation_costs = st.builds(OperationCost, *(st.none() | quantiles,) * 3)
parameters = st.dictionaries(names, st.integers(0, 2**40) | texts, max_size=3).map(lambda d: tuple(sorted(d.items())))
cost_tables = st.builds(
    CostTable, st.lists(st.builds(CostEntry, names, parameters, operation_costs), max_size=3).map(tuple)
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
