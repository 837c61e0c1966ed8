from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from warpplan.planner.bounds.time_relaxation import connected, longest_paths
from warpplan.planner.problem.assignment import held, issue_spans, rings
from warpplan.planner.problem.circular_intervals import Circle
from warpplan.planner.problem.formulation import Problem
from warpplan.planner.search.heuristics.list_scheduling import first_schedule
from warpplan.planner.search.heuristics.partition_heuristics import candidate_partitions
from warpplan.planner.values.dependence_graph import Dependence, DependenceGraph, Limits, Operation
from warpplan.planner.values.options import SolveOptions

from .. import strategies as given_


def overlaps(spans: list[tuple[int, int]], ii: int) -> int:
    """The most copies at once, cell by cell."""
    cells = [0] * ii
    for start, end in spans:
        for cycle in range(start, end):
            cells[cycle % ii] += 1
    return max(cells)


def broken(problem: Problem, ii: int, found) -> list[str]:
    """What the schedule claims to obey and does not, by the obvious method."""
    graph, t = problem.graph, found.starts
    wrong = [f"{i} starts at {start}" for i, start in enumerate(t) if start < 0]
    for edge in graph.edges:
        i, j = graph.index[edge.src], graph.index[edge.dst]
        latency = problem.latency(edge) + (graph.edge_handoff(edge) if found.apart(i, j) else 0)
        if t[j] + ii * edge.distance < t[i] + latency:
            wrong.append(f"{edge}")
    for unit, capacity in graph.units:
        users = [(t[i], t[i] + op.occupancy) for i, op in enumerate(problem.ops) if op.unit == unit]
        if overlaps(users, ii) > capacity:
            wrong.append(unit)
    spans = issue_spans(problem, found)
    for g in set(found.partitions):
        if overlaps([span for span, home in zip(spans, found.partitions, strict=True) if home == g], ii) > 1:
            wrong.append(f"issue of {g}")
    for i, c in enumerate(problem.cluster):
        if found.partitions[i] != found.partitions[c] or not 0 <= found.partitions[i] < graph.limits.max_partitions:
            wrong.append(f"partition of {i}")
        if problem.pins.get(c, found.partitions[i]) != found.partitions[i]:
            wrong.append(f"pin of {i}")
    if depth := problem.options.depth:
        for i, uses in rings(problem, found).items():
            for use in uses:
                handoff = use.handoff if found.apart(use.consumer, i) else 0
                if t[use.consumer] + ii * use.distance + use.cycles + use.margin + handoff > t[i] + depth * ii:
                    wrong.append(f"ring of {i}")
    return wrong


@given(
    given_.graphs(most_ops=10), st.integers(1, 60), st.sampled_from([None, None, 1, 2, 3]), st.sampled_from([0, 5]),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_whatever_is_found_obeys_what_it_claims(graph, ii, depth, slack, backward):
    problem = Problem(graph, SolveOptions(depth=depth, slack_cycles=slack))
    found = first_schedule(problem, ii, backward=backward)
    assert found == first_schedule(problem, ii, backward=backward)
    assume(found is not None)
    assert broken(problem, ii, found) == []


@given(st.data(), given_.graphs(most_ops=8), st.integers(20, 80))
@settings(max_examples=100, deadline=None)
def test_pins_are_kept(data, graph, ii):
    most = graph.limits.max_partitions
    clusters = Problem(graph, SolveOptions()).cluster
    chosen = {c: data.draw(st.integers(0, most - 1)) for c in clusters}
    pinned = {op.id: chosen[clusters[i]] for i, op in enumerate(graph.ops)}
    found = first_schedule(problem := Problem(graph, SolveOptions(pinned=pinned)), ii)
    assume(found is not None)
    assert broken(problem, ii, found) == []
    assert found.partitions == tuple(pinned.values())


@given(st.data(), given_.graphs(most_ops=10, most_partitions=4), st.integers(1, 60))
@settings(max_examples=50, deadline=None)
def test_choices_keep_clusters_and_pins_and_differ(data, graph, ii):
    most = graph.limits.max_partitions
    clusters = Problem(graph, SolveOptions()).cluster
    held = data.draw(st.sets(st.sampled_from(clusters)))
    chosen = {c: data.draw(st.integers(0, most - 1)) for c in sorted(held)}
    pinned = {op.id: chosen[c] for op, c in zip(graph.ops, clusters, strict=True) if c in chosen}
    problem = Problem(graph, SolveOptions(pinned=pinned))
    choices = list(candidate_partitions(problem, ii))
    assert len(set(choices)) == len(choices) >= 1
    for partitions in choices:
        assert all(0 <= g < most for g in partitions)
        assert all(partitions[i] == partitions[c] for i, c in enumerate(clusters))
        assert all(partitions[c] == g for c, g in problem.pins.items())


def test_balanced_choices_share_the_issue_and_hand_over_little():
    """Two chains of three that fill an issue slot each: apart from one another, each chain whole."""
    ops = tuple(Operation(f"{chain}{k}", None, 5, 0, 10) for chain in "ab" for k in range(3))
    edges = tuple(Dependence(f"{chain}{k}", f"{chain}{k + 1}", kind="token") for chain in "ab" for k in range(2))
    problem = Problem(DependenceGraph("two", ops, edges, Limits(2, handoff_cycles=20)), SolveOptions())
    assert (0, 0, 0, 1, 1, 1) in set(candidate_partitions(problem, 30))
    found = first_schedule(problem, 30)
    assert found is not None
    assert found.partitions == (0, 0, 0, 1, 1, 1)


def test_a_long_cycle_of_a_nanosecond_clock():
    """Costs up to 10⁹ need no scaling, and three holds that fill the unit to the last cycle are found."""
    long = 10**9
    ops = tuple(Operation(name, "TENSOR", long, cycles, 0) for name, cycles in (("a", long), ("b", 7), ("c", long - 9)))
    edges = (Dependence("a", "b"), Dependence("b", "c"), Dependence("c", "a", 3))
    problem = Problem(DependenceGraph("long", ops, edges, Limits(1)), SolveOptions())
    assert first_schedule(problem, 2 * long - 3) is None
    found = first_schedule(problem, 2 * long - 2)
    assert found is not None
    a, b, c = found.starts
    assert (b - a) % (2 * long - 2) >= long
    assert c >= b + long >= a + 2 * long


def test_an_eviction_frees_the_unit():
    """First fit puts the short hold where the long one must go: only moving it again gives the schedule."""
    ops = (Operation("s", "ALU", 1, 1, 0), Operation("x", "ALU", 2, 4, 0), Operation("y", "ALU", 2, 4, 0))
    edges = (Dependence("x", "y", latency=4), Dependence("y", "x", 1, latency=5))
    problem = Problem(DependenceGraph("evict", ops, edges, Limits(1)), SolveOptions())
    found = first_schedule(problem, 9)
    assert found is not None
    assert broken(problem, 9, found) == []


@given(
    st.integers(1, 12),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), max_size=5),
    st.integers(-20, 20),
    st.integers(1, 20),
)
@settings(deadline=None)
def test_the_next_free_cycle_is_the_first_that_fits(ii, capacity, held, begin, cycles):
    circle = Circle(ii, capacity)
    for op, (at, length) in enumerate(held):
        circle.add(op, at, length)
    spans = [(at, at + length) for at, length in held]
    fits = [at for at in range(begin, begin + ii) if overlaps([*spans, (at, at + cycles)], ii) <= capacity]
    if overlaps(spans, ii) <= capacity:
        assert circle.next_free(begin, cycles) == (fits[0] if fits else None)
    touched = {
        op
        for op, (a, b) in enumerate(spans)
        if overlaps([(begin, begin + cycles)], ii) and _meet(a, b, begin, begin + cycles, ii)
    }
    assert set(circle.overlapping(begin, cycles)) == touched


def _meet(a: int, b: int, c: int, d: int, ii: int) -> bool:
    return bool({x % ii for x in range(a, b)} & {x % ii for x in range(c, d)})


@given(given_.graphs(most_ops=24, buffers=False))
@settings(max_examples=50, deadline=None)
def test_components_are_those_that_reach_each_other(graph):
    arcs = Problem(graph, SolveOptions()).dependences
    arcs = [(a.src, a.dst, a.cycles, a.distance) for a in arcs]
    count = len(graph.ops)
    path = longest_paths(range(count), [(a, b, 0, 0) for a, b, _, _ in arcs], 1)
    for component in connected(count, arcs):
        for i in component:
            assert [j for j in range(count) if path[i][j] == 0 == path[j][i]] == component


def test_schedules_placed_backwards_hold_what_is_loaded_for_less_long():
    """The loads of a chain of products: forwards all are begun at once, backwards each when its product comes."""
    ops, edges = [], []
    for i in range(4):
        ops += [Operation(f"load{i}", "TMA", 40, 10, 5, buffer_bytes=1_000), Operation(f"mma{i}", "TENSOR", 60, 50, 5)]
        edges += [Dependence(f"load{i}", f"mma{i}")] + ([Dependence(f"mma{i - 1}", f"mma{i}")] if i else [])
    problem = Problem(DependenceGraph("chain", tuple(ops), tuple(edges), Limits(1, smem_bytes=9_000)), SolveOptions())
    lives = []
    for backward in (False, True):
        found = first_schedule(problem, 300, backward=backward)
        assert found is not None
        lives.append(sum(held(problem, 300, found, p, margin=True) for p in problem.rings))
    assert lives[1] < lives[0]
