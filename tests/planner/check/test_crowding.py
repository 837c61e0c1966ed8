"""What is held together where a span begins, found by a sweep over phases, is what counting each span says."""

from hypothesis import given
from hypothesis import strategies as st

from warpplan.planner.check.schedule_rules import _crowded, copies

SPANS = st.lists(st.tuples(st.integers(-20, 30), st.integers(0, 40)), max_size=7)


@given(SPANS, st.integers(0, 4), st.integers(1, 12))
def test_a_sweep_counts_what_each_span_holds(drawn, capacity, ii):
    spans = [(f"op{i}", start, start + length) for i, (start, length) in enumerate(drawn)]
    expected = []
    for phase in sorted({start % ii for _, start, end in spans if start < end}):
        held = {name: copies(start, end, phase, ii) for name, start, end in spans}
        if sum(held.values()) > capacity:
            names = ", ".join(name for name, count in held.items() if count)
            expected.append(f"unit U: {names} hold {sum(held.values())} of {capacity} at phase {phase}")
    assert list(_crowded("unit U", spans, capacity, ii)) == expected
