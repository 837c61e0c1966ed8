"""Rankings whose head is assembled: what assembling finds moves a configuration, and nothing ahead stays estimated."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from warpplan.kernels.compiler.costing.pipelined.assembled_first import ASSEMBLED, assembled_first


@dataclass(frozen=True)
class Estimated:
    """``time`` is the estimate until it is assembled, then ``true_time``; without one it cannot run."""

    name: int
    time: int
    true_time: int | None
    assembled: bool = False


TIMES = st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 20)), max_size=30)


def ranked(times: list[tuple[int, int | None]]) -> tuple[list[Estimated], list[tuple[Estimated, str]], list[int]]:
    """The ranking, what was refused, and the names of those that were assembled."""
    asked: list[int] = []

    def assemble(candidate: Estimated) -> Estimated | str:
        asked.append(candidate.name)
        if candidate.true_time is None:
            return f"{candidate.name} does not run"
        return Estimated(candidate.name, candidate.true_time, candidate.true_time, True)

    given = [Estimated(name, *pair) for name, pair in enumerate(times)]
    return *assembled_first(given, lambda candidate: candidate.time, assemble), asked


@given(TIMES)
def test_the_head_is_assembled_and_all_that_runs_is_in_order(times: list[tuple[int, int | None]]) -> None:
    order, refused, _ = ranked(times)
    assert all(candidate.assembled for candidate in order[:ASSEMBLED])
    assert order == sorted(order, key=lambda candidate: (candidate.time, candidate.name))
    assert sorted(c.name for c in (*order, *(c for c, _ in refused))) == list(range(len(times)))


@given(TIMES)
def test_each_is_assembled_once_and_refused_with_its_own_reason(times: list[tuple[int, int | None]]) -> None:
    order, refused, asked = ranked(times)
    assert len(asked) == len(set(asked))
    assert all(reason == f"{candidate.name} does not run" for candidate, reason in refused)
    assert all(candidate.true_time is None for candidate, _ in refused)
    assert {c.name for c in order if c.assembled} | {c.name for c, _ in refused} == set(asked)


def test_one_that_looks_fast_and_spills_falls_behind_those_that_were_not_assembled() -> None:
    order, _, asked = ranked([(1, 100), *((10 + i, 10 + i) for i in range(ASSEMBLED + 1))])
    assert asked == list(range(ASSEMBLED + 1))
    assert (order[0].name, order[-2].name, order[-1].name) == (1, ASSEMBLED + 1, 0)
