from __future__ import annotations

import csv
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.planner.errors import InvalidInput
from warpplan.planner.packing.offsets import Block, pack


def valid(blocks: list[Block], offsets: tuple[int, ...], capacity: int) -> bool:
    placed = list(zip(blocks, offsets, strict=True))
    inside = all(o >= 0 and o % b.alignment == 0 and o + b.size <= capacity for b, o in placed)
    return inside and not any(
        a.lower < b.upper and b.lower < a.upper and p < q + b.size and q < p + a.size
        for i, (a, p) in enumerate(placed)
        for b, q in placed[i + 1 :]
    )


def fits(blocks: list[Block], capacity: int) -> bool:
    """Some order of lowest-place-first reaches every packing that cannot be pushed down, and so some packing if any."""
    for order in permutations(range(len(blocks))):
        offsets: dict[int, int] = {}
        for i in order:
            b = blocks[i]
            others = [(offsets[j], offsets[j] + blocks[j].size) for j in offsets]
            lives = [blocks[j].lower < b.upper and b.lower < blocks[j].upper for j in offsets]
            clash = [o for o, together in zip(others, lives, strict=True) if together]
            offsets[i] = next(
                o
                for o in range(0, 10_000, b.alignment)
                if all(o + b.size <= low or high <= o for low, high in clash) and all(low <= o for low, _ in clash)
            )
        if valid(blocks, tuple(offsets[i] for i in range(len(blocks))), capacity):
            return True
    return False


@st.composite
def blocks(draw: st.DrawFn) -> list[Block]:
    found = []
    for i in range(draw(st.integers(0, 5))):
        lower = draw(st.integers(0, 4))
        upper = lower + draw(st.integers(1, 4))
        found.append(Block(f"b{i}", lower, upper, draw(st.integers(1, 8)), draw(st.sampled_from([1, 1, 2, 4]))))
    return found


@given(blocks(), st.integers(8, 20))
@settings(deadline=None)
def test_packing_is_exact(found, capacity):
    answer = pack(found, capacity)
    assert answer.status == ("packed" if fits(found, capacity) else "infeasible")
    if answer.status == "packed":
        assert valid(found, answer.offsets, capacity)
        assert answer.peak_bytes <= capacity
    else:
        assert answer.reason
    assert pack(found, capacity) == answer


def test_lives_that_only_touch_share_bytes():
    touching = [Block("a", 0, 5, 100), Block("b", 5, 9, 100)]
    assert pack(touching, 100).offsets == (0, 0)


def test_the_peak_says_what_binds():
    answer = pack([Block("a", 0, 5, 60), Block("b", 4, 9, 50), Block("c", 6, 9, 10)], 100)
    assert (answer.status, answer.peak_bytes) == ("infeasible", 110)
    assert answer.reason == "at time 4 a, b need 110 of 100 bytes"


def test_a_puzzle_that_largest_first_cannot_do():
    puzzle = [
        Block("a", 0, 2, 4), Block("b", 0, 4, 3), Block("c", 2, 6, 3), Block("d", 4, 8, 4), Block("e", 1, 7, 3),
        Block("f", 6, 9, 3),
    ]  # fmt: skip
    answer = pack(puzzle, 10)
    assert answer.status == "packed"
    assert valid(puzzle, answer.offsets, 10)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([Block("a", 0, 1, 8), Block("a", 1, 2, 8)], "buffer 'a' appears twice"),
        ([Block("a", 0, 1, 101)], "buffer 'a' has 101 bytes, more than the whole capacity of 100"),
        ([Block("a", 2, 1, 1)], "life [2, 1)"),
        ([Block("a", 0, 1, -1)], "size -1"),
        ([Block("a", 0, 1, 1, 0)], "alignment 0"),
    ],
)
def test_bad_buffers_are_named(found, message):
    with pytest.raises(InvalidInput) as caught:
        pack(found, 100)
    assert message in str(caught.value)


def test_the_time_limit_is_an_answer():
    path = Path(__file__).parents[4] / "shared" / "data" / "minimalloc" / "A.1048576.csv"
    if not path.exists():
        pytest.skip("MiniMalloc's instances are not beside this checkout")
    with path.open() as lines:
        found = [Block(r["id"], int(r["lower"]), int(r["upper"]), int(r["size"])) for r in csv.DictReader(lines)]
    answer = pack(found, 1_048_576, time_limit_s=0.01)
    assert answer.status == "unknown"
    assert "time limit of 0.01 s" in answer.reason
