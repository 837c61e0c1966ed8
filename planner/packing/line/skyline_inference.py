"""Inference of the skyline search: valleys, floors that must be raised, and failures explained by sections.

Time is cut into *sections*, the maximal sets of pieces live together. Over each section what is placed reaches up to a
*floor*, and its *slack* is what may still be wasted there: capacity less floor less what is left to place. A *valley*
is a run of sections with equal floors between higher ones. Two facts make the search small:

- Only what lies within a valley can rest on its floor; all else there begins above a wall. So either some piece over a
  chosen section rests on the floor, or that section's floor is raised to the next place where a piece could rest, at
  the cost of slack. Every packing whose pieces all rest on something is reached once, and where one exists such a one
  does.
- What lies between two higher sections must fill all between them up to the lower one, but for the slack, before
  anything else can follow.

Floors that are only ever raised and slack as inference come from MiniMalloc (Moffitt, ASPLOS 2023), filling the niche
with the fewest choices from perfect rectangle packing (Huang and Korf 2013).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from warpplan.planner.packing.pieces import Pieces, bits
from warpplan.planner.values.deadline import Deadline

DONE = 1 << 62
"""The floor of a section with nothing left to place: a wall that nobody reaches."""


class Valley(NamedTuple):
    """Sections [``left``, ``right``) at one floor; ``resting`` are the pieces (bits) that can lie on it over
    ``section``, ``raised`` is the floor if none does (0: the slack forbids it), ``choices`` how many ways that makes.
    """

    left: int
    right: int
    floor: int
    section: int
    resting: int
    raised: int
    choices: int


@dataclass
class SkylineNode:
    """One node of the search. By section: ``floors`` and ``slack``, in units. ``todo`` are the pieces left (bits),
    ``raises`` what followed from the decision: each section raised, and the sections of the walls that it was raised
    for (bits)."""

    floors: list[int]
    slack: list[int]
    todo: int
    valleys: list[Valley]
    raises: list[tuple[int, int]]


class SkylineInference:
    """Piece i is live in the sections [``first[i]``, ``end[i]``) of ``count``; sizes, steps and tops as in ``Pieces``.

    Pieces with no section are not searched for.
    """

    def __init__(
        self, problem: Pieces, first: Sequence[int], end: Sequence[int], count: int, deadline: Deadline
    ) -> None:
        self.sizes, self.steps, self.tops, self.capacity = problem.sizes, problem.steps, problem.tops, problem.capacity
        self.first, self.end, self.count = first, end, count
        self.deadline = deadline
        change, loads = [0] * (count + 1), [0] * (count + 1)
        for i, bit in ((i, 1 << i) for i in range(len(first)) if first[i] < end[i]):
            change[first[i]] ^= bit
            change[end[i]] ^= bit
            loads[first[i]] += self.sizes[i]
            loads[end[i]] -= self.sizes[i]
        # One more at the end, empty, so that the last section has a right neighbour.
        self.over = list(accumulate(change, operator.xor))
        self.slack = [problem.capacity - load for load in accumulate(loads[:-1])]
        # Pieces that begin before section s, and that end no later.
        self._begun, self._ended = [0] * (count + 2), [0] * (count + 2)
        for i, bit in ((i, 1 << i) for i in range(len(first)) if first[i] < end[i]):
            self._begun[first[i] + 1] |= bit
            self._ended[end[i]] |= bit
        for s in range(1, count + 1):
            self._begun[s] |= self._begun[s - 1]
            self._ended[s] |= self._ended[s - 1]

    def width(self, i: int) -> int:
        """Sections that piece i is live in."""
        return self.end[i] - self.first[i]

    def root(self) -> SkylineNode | None:
        """Nothing placed; None where that fails already."""
        todo = 0
        for mask in self.over:
            todo |= mask
        root = SkylineNode([0] * self.count, self.slack[:], todo, [], [])
        failed = min(self.slack, default=0) < 0 or self.settle(root, 0, self.count) is not None
        return None if failed else root

    def stairs(self, state: SkylineNode, first: int, end: int) -> int | None:
        """The sections to blame where [first, end), now higher, is a wall that no piece next to it can reach."""
        floors, todo, over, count = state.floors, state.todo, self.over, self.count
        for wall, step, last in ((first, -1, -1), (end - 1, 1, count)):
            s, highest, other, top = wall + step, -1, wall, floors[wall]
            here = todo & over[wall]
            there = 0
            while s != last and (floor := floors[s]) < top:
                if floor >= highest:
                    if floor > highest:  # Otherwise the wall on the other side is the same.
                        highest, other = floor, s
                        while 0 <= other < count and floors[other] <= floor:
                            other += step
                        there = todo & over[other]  # nothing where `other` is -1 or `count`
                    # What reaches one of the walls alone fits above it here, as it does over the wall itself.
                    a, b = here & over[s], there & over[s]
                    if a & ~b and b & ~a and self._too_much(a | b, min(top, floors[other])):
                        return 1 << s | 1 << wall | 1 << other
                s += step
        return None

    def _too_much(self, pieces: int, level: int) -> bool:
        """Whether ``pieces`` (bits), of which none can lie below ``level``, do not fit above it."""
        room = self.capacity - level
        while pieces and room >= 0:
            i = pieces.bit_length() - 1
            room -= self.sizes[i]
            pieces ^= 1 << i
        return room < 0

    def settle(self, state: SkylineNode, first: int, end: int) -> int | None:
        """Find the valleys anew around [first, end), raising floors that nothing can rest on.

        Gives the sections to blame where one must waste more than its slack.
        """
        floors, count = state.floors, self.count
        while True:
            self.deadline.check()
            first, end = max(first - 1, 0), min(end + 1, count)  # a neighbour may have become a valley
            while first > 0 and floors[first - 1] == floors[first]:
                first -= 1
            while end < count and floors[end] == floors[end - 1]:
                end += 1
            state.valleys = [v for v in state.valleys if v.right <= first or v.left >= end]
            left, raised = first, False
            while left < end and not raised:
                floor, right = floors[left], left + 1
                while right < end and floors[right] == floor:
                    right += 1
                if (
                    floor < DONE
                    and (left == 0 or floors[left - 1] > floor)
                    and (right == count or floors[right] > floor)
                ):
                    found = self._valley(state, left, right)
                    if isinstance(found, int):
                        return found
                    if isinstance(found, list):
                        walls = self.walls(state, left, right)
                        for s, level in found:
                            state.raises.append((s, walls))
                            state.slack[s] -= level - floor
                            if state.slack[s] < 0:
                                return 1 << s
                            floors[s] = level
                        for s, _ in found:
                            failure = self.stairs(state, s, s + 1)
                            if failure is not None:
                                return failure
                        raised = True
                    else:
                        state.valleys.append(found)
                left = right
            if not raised:
                return None

    def _valley(self, state: SkylineNode, left: int, right: int) -> Valley | list[tuple[int, int]] | int:
        """The valley [left, right), or sections whose floors must be raised and to where, or the sections to blame."""
        over, sizes, slack = self.over, self.sizes, state.slack
        floor, low, high = self.levels(state, left, right)
        inside = state.todo & self._inside(left, right)
        across = state.todo & ~inside
        from_left = across & over[left - 1] if left else 0
        to_right = across & over[right]
        lower, higher = min(low, high), max(low, high)
        raises: list[tuple[int, int]] = []
        best = fewest = 0
        for s in range(left, right):
            here = over[s]
            a, b, resting = here & from_left, here & to_right, here & inside
            if a & ~b:
                level = low
                if b & ~a:
                    level = lower
                    if self._too_much(a | b, lower):
                        return 1 << s | 1 << left - 1 | 1 << right
            elif b:
                level = high if b & ~a else higher
            else:
                level = DONE
            if not resting:
                raises.append((s, level))
            elif not raises:
                choices = resting.bit_count() + (slack[s] > 0)
                if not fewest or choices < fewest:
                    best, fewest, next_level = s, choices, level
        if raises:
            return raises
        resting = misfit = inside & over[best]
        for i in bits(resting):
            if not floor % self.steps[i] and floor <= self.tops[i]:
                misfit ^= 1 << i
        resting ^= misfit
        raised = 0
        if slack[best]:
            # The lowest place above the floor: on an aligned place, on a piece next to the section, beyond a wall.
            first, end = self.reach(state, left, right, best)
            neighbours = ~over[best] & self._begun[end] & ~self._ended[first]
            raised = min(
                next_level,
                min((-(-floor // self.steps[i]) * self.steps[i] for i in bits(misfit)), default=DONE),
                floor + min((sizes[i] for i in bits(inside & neighbours)), default=DONE),
                low + min((sizes[i] for i in bits(from_left & neighbours)), default=DONE),
                high + min((sizes[i] for i in bits(to_right & neighbours)), default=DONE),
            )
            if raised - floor > slack[best]:
                raised = 0
        return Valley(left, right, floor, best, resting, raised, resting.bit_count() + (raised > 0))

    def levels(self, state: SkylineNode, left: int, right: int) -> tuple[int, int, int]:
        """The floor of the valley and of its left and right walls."""
        floors = state.floors
        return floors[left], floors[left - 1] if left else DONE, floors[right] if right < self.count else DONE

    def reach(self, state: SkylineNode, left: int, right: int, section: int) -> tuple[int, int]:
        """The sections [first, end) of what can rest over ``section`` in the valley [left, right)."""
        pieces = state.todo & self.over[section] & self._inside(left, right)
        first, end = section, section + 1
        for i in bits(pieces):
            if self.first[i] < first:
                first = self.first[i]
            if self.end[i] > end:
                end = self.end[i]
        return first, end

    def walls(self, state: SkylineNode, left: int, right: int) -> int:
        """The sections of the walls (bits); one where nothing is left to place matters to nobody."""
        _, low, high = self.levels(state, left, right)
        return (1 << left - 1 if low < DONE else 0) | (1 << right if high < DONE else 0)

    def _inside(self, left: int, right: int) -> int:
        """Pieces that begin and end within [left, right)."""
        return self._ended[right] & ~self._begun[left]
