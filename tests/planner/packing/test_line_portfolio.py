"""The searches behind ``pack``, each on its own, against trying everything and on cuts of a known packing."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from itertools import combinations, islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import packing_instances
from packing_instances import KINDS, Kind

from warpplan.planner.packing.line.beam_completion import CompletionTrials
from warpplan.planner.packing.line.beam_search import beam
from warpplan.planner.packing.line.joining import joined
from warpplan.planner.packing.line.line_packing import pack, sections
from warpplan.planner.packing.line.order_model import OrderModel
from warpplan.planner.packing.line.skyline import Skyline
from warpplan.planner.packing.offsets import DEFAULTS, PackingBlock
from warpplan.planner.packing.pieces import Pieces, pieces
from warpplan.planner.values.deadline import NO_DEADLINE

Lives = tuple[list[int], list[int]]


@st.composite
def tight(draw: st.DrawFn) -> tuple[Pieces, Lives]:
    """Up to six pieces in a memory that is full in some section, or nearly."""
    found = []
    for i in range(draw(st.integers(2, 6))):
        lower = draw(st.integers(0, 3))
        upper, size = draw(st.integers(lower + 1, 4)), draw(st.integers(1, 5))
        found.append(PackingBlock(f"b{i}", lower, upper, size, draw(st.sampled_from([1, 1, 1, 2, 4]))))
    first, end, peak, _ = sections(found)
    capacity = peak + draw(st.integers(0, 1))
    return pieces([b.size for b in found], [b.alignment for b in found], capacity), (first, end)


def apart(problem: Pieces, lives: Lives, offsets: tuple[int, ...]) -> bool:
    first, end = lives
    placed = zip(offsets, problem.steps, problem.tops, strict=True)
    return all(offset % step == 0 and offset <= top for offset, step, top in placed) and all(
        first[i] >= end[j]
        or first[j] >= end[i]
        or offsets[i] >= offsets[j] + problem.sizes[j]
        or offsets[j] >= offsets[i] + problem.sizes[i]
        for i in range(len(offsets))
        for j in range(i)
    )


def fits(problem: Pieces, lives: Lives, placed: tuple[int, ...] = ()) -> bool:
    """Every offset of every piece."""
    i = len(placed)
    if i == len(problem.sizes):
        return True
    some = problem.some(range(i + 1))
    so_far = lives[0][: i + 1], lives[1][: i + 1]
    return any(
        apart(some, so_far, (*placed, offset)) and fits(problem, lives, (*placed, offset))
        for offset in range(0, problem.tops[i] + 1, problem.steps[i])
    )


@given(tight(), st.booleans(), st.integers(-1, 1))
@settings(max_examples=150, deadline=None)
def test_the_skyline_search_is_exact(question, snug, order):
    problem, lives = question
    skyline = Skyline(problem, *lives, max(lives[1]), NO_DEADLINE, DEFAULTS)
    ranks = [float(order * size) for size in problem.sizes]
    answer, taken = skyline.run(ranks, 10**6, snug)
    assert answer == ("yes" if fits(problem, lives) else "no")
    if answer == "yes":
        assert apart(problem, lives, tuple(skyline.offsets))
    # What it has learnt shortens another run and changes no answer.
    again, less = skyline.run(ranks, 10**6, snug)
    assert again == answer
    assert less <= taken or answer == "yes"


@given(tight())
@settings(max_examples=100, deadline=None)
def test_the_search_by_orders_is_exact(question):
    problem, lives = question
    answer, offsets, _ = OrderModel(problem, *lives, NO_DEADLINE, DEFAULTS).run(10.0)
    assert answer == ("yes" if fits(problem, lives) else "no")
    if answer == "yes":
        assert apart(problem, lives, offsets)


@given(tight(), st.data())
@settings(max_examples=100, deadline=None)
def test_orders_above_what_is_placed(question, data):
    problem, lives = question
    offsets = OrderModel(problem, *lives, NO_DEADLINE, DEFAULTS).run(10.0)[1]
    if offsets:
        # What lies lowest stays: what is left fits above it, as it did.
        upwards = sorted(range(len(offsets)), key=lambda i: offsets[i])
        placed = {i: offsets[i] for i in upwards[: data.draw(st.integers(0, len(offsets)))]}
        answer, again, _ = OrderModel(problem, *lives, NO_DEADLINE, DEFAULTS).run(10.0, placed)
        assert answer == "yes"
        assert apart(problem, lives, again)
        assert all(again[i] == offset for i, offset in placed.items())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_small_cuts_are_packed_by_orders_alone(kind: Kind):
    made = packing_instances.instance(f"test {kind.name}", 40, kind)
    first, end, _, _ = sections(made.blocks)
    problem = pieces([block.size for block in made.blocks], [1] * len(made.blocks), made.capacity)
    answer, offsets, _ = OrderModel(problem, first, end, NO_DEADLINE, DEFAULTS).run(10.0)
    assert answer == "yes"
    assert valid(made.blocks, tuple(problem.unit * offset for offset in offsets), made.capacity)


@given(tight())
@settings(max_examples=60, deadline=None)
def test_pieces_are_joined_only_where_they_must_be(question):
    problem, lives = question
    fewer, first, end, place = joined(problem, *lives)
    assert len(fewer.sizes) <= len(problem.sizes)
    assert fits(fewer, (list(first), list(end))) == fits(problem, lives)
    skyline = Skyline(fewer, first, end, max(end), NO_DEADLINE, DEFAULTS)
    if skyline.run([0.0] * len(first), 10**6, True)[0] == "yes":
        assert apart(problem, lives, tuple(skyline.offsets[i] for i in place))


@given(tight(), st.integers(1, 4), st.sampled_from([0.0, 1.0]))
@settings(max_examples=100, deadline=None)
def test_a_beam_finds_only_packings(question, width, waste):
    problem, lives = question
    skyline, count = Skyline(problem, *lives, max(lives[1]), NO_DEADLINE, DEFAULTS), len(problem.sizes)
    placed, complete, _ = beam(skyline, [1.0] * count, 1.0, width, 10**4, waste=waste)
    some = sorted(placed)
    part = [lives[0][i] for i in some], [lives[1][i] for i in some]
    assert apart(problem.some(some), part, tuple(placed[i] for i in some))
    assert not complete or len(some) == count


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_narrow_beam_packs_small_cuts(kind: Kind):
    made = packing_instances.instance(f"test {kind.name}", 40, kind)
    first, end, _, _ = sections(made.blocks)
    problem = pieces([block.size for block in made.blocks], [1] * len(made.blocks), made.capacity)
    fewer, first, end, place = joined(problem, first, end)
    areas = [size * (b - a) for size, a, b in zip(fewer.sizes, first, end, strict=True)]
    worth = [area * len(areas) / sum(areas) for area in areas]
    offsets, complete, taken = beam(Skyline(fewer, first, end, max(end), NO_DEADLINE, DEFAULTS), worth, 1.0, 10, 10**5)
    assert complete
    assert taken < 10**5
    assert valid(made.blocks, tuple(problem.unit * offsets[i] for i in place), made.capacity)


def completed(kind: Kind, numbers: int) -> list[tuple[str, tuple[int, ...], float]]:
    """What the first trials of beam and completion answer on a small cut, with narrow beams."""
    made = packing_instances.instance(f"test {kind.name}", 40, kind)
    first, end, _, _ = sections(made.blocks)
    problem = pieces([block.size for block in made.blocks], [1] * len(made.blocks), made.capacity)
    skyline = partial(Skyline, problem, first, end, max(end), NO_DEADLINE, DEFAULTS)
    orders = OrderModel(problem, first, end, NO_DEADLINE, DEFAULTS)
    trials = CompletionTrials(skyline, orders, 1_000.0, replace(DEFAULTS, completion_beam_width=1))
    found = [attempt(30.0) for attempt in islice(trials.attempts(), numbers)]
    for answer, offsets, _ in found:
        if answer == "yes":
            assert valid(made.blocks, tuple(problem.unit * offset for offset in offsets), made.capacity)
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_completed_beams_pack_small_cuts_and_answer_alike_again(kind: Kind):
    found = completed(kind, 4)
    assert "yes" in {answer for answer, _, _ in found}
    assert "no" not in {answer for answer, _, _ in found}, "what a beam has placed proves nothing about the rest"
    assert all(seconds > 0 for _, _, seconds in found)
    assert completed(kind, 4) == found


def test_one_piece_takes_the_place_of_another_in_fullsections():
    # Piece 0 ends where piece 2 begins, and piece 1 is live beside both: offsets of 0 and 2 are one.
    fewer, first, end, place = joined(pieces([2, 3, 2], [1, 1, 1], 5), [0, 0, 1], [1, 2, 2])
    assert (fewer.sizes, first, end, place) == ((2, 3), (0, 0), (1, 1), (0, 1, 0))


def test_memories_that_are_too_small_are_proven_so():
    # Three of four sections full; the pieces over the middle cannot all be level with both sides.
    lives_and_sizes = [(0, 2, 3), (0, 1, 2), (1, 3, 2), (2, 4, 3), (3, 4, 2), (0, 4, 1), (1, 2, 1), (2, 3, 1)]
    found = [PackingBlock(f"b{i}", *block) for i, block in enumerate(lives_and_sizes)]
    capacities = {c: pack(found, c).status for c in (6, 7, 8)}
    for capacity, status in capacities.items():
        sizes = [block.size for block in found]
        problem = pieces(sizes, [1] * len(found), capacity)
        lives = [block.lower for block in found], [block.upper for block in found]
        assert status == ("packed" if max(problem.tops) >= 0 and fits(problem, lives) else "infeasible")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_small_cuts_of_every_kind_are_packed(kind: Kind):
    made = packing_instances.instance(f"test {kind.name}", 40, kind)
    answer = pack(made.blocks, made.capacity)
    assert (answer.status, answer.peak_bytes) == ("packed", made.capacity)
    assert valid(made.blocks, answer.offsets, made.capacity)
    assert pack(made.blocks, made.capacity) == answer


def test_the_instances_are_what_they_say():
    first, second = list(packing_instances.instances()), list(packing_instances.instances())
    assert first == second
    assert len({made.name for made in first}) == len(first) >= 36
    assert max(len(made.blocks) for made in first) >= 450
    for made in first:
        ids = {block.id for block in made.blocks}
        assert 150 <= len(made.blocks) == len(ids) <= 460
        loads = {
            time: sum(b.size for b in made.blocks if b.lower <= time < b.upper)
            for time in {block.lower for block in made.blocks}
        }
        assert max(loads.values()) == made.capacity
        assert valid(made.blocks, made.packed, made.capacity)


def valid(blocks: tuple[PackingBlock, ...], offsets: tuple[int, ...], capacity: int) -> bool:
    placed = list(zip(blocks, offsets, strict=True))
    return all(0 <= at <= capacity - block.size for block, at in placed) and all(
        a.upper <= b.lower or b.upper <= a.lower or p >= q + b.size or q >= p + a.size
        for (a, p), (b, q) in combinations(placed, 2)
    )


def performed(blocks: tuple[PackingBlock, ...], capacity: int, limit_s: float, monkeypatch: pytest.MonkeyPatch):
    """The answer within ``limit_s`` work seconds, and each CP-SAT run's budget in the order in which they were made."""
    budgets: list[float] = []
    run = OrderModel.run

    def told(self: OrderModel, seconds: float, *placed: dict[int, int]):
        budgets.append(seconds)
        return run(self, seconds, *placed)

    with monkeypatch.context() as patched:
        patched.setattr(OrderModel, "run", told)
        return pack(blocks, capacity, work_limit_s=limit_s, params=FAST), budgets


FAST = replace(
    DEFAULTS, runs_first_s=0.02, order_first_s=0.02, first_run_nodes=5, restart_nodes=20, first_beam_width=2,
    completion_beam_width=2, completion_attempt_s=0.02,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_a_longer_limit_does_all_that_a_shorter_one_does(seed: int, monkeypatch: pytest.MonkeyPatch):
    """The schedule of budgets is a prefix of the longer limit's, but for the run that the limit cuts short; so what a
    limit suffices for, every longer one does."""
    made = packing_instances.instance(f"limits {seed}", 24, KINDS[seed % len(KINDS)])
    answers = [performed(made.blocks, made.capacity, 0.05 * 2**k, monkeypatch) for k in range(7)]
    for (short, few), (long, more) in pairwise(answers):
        assert few[:-1] == more[: len(few[:-1])]
        assert few[-1:] <= more[len(few) - 1 : len(few)]
        if short.status != "unknown":
            assert (long.status, long.offsets) == (short.status, short.offsets)
