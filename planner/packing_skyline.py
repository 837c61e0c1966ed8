"""Exact search for lives on a line: build the packing upwards, section by section, without wasting what is scarce.

Time is cut into *sections*, the maximal sets of pieces live together. Over each section what is placed reaches up to a
*floor*, and its *slack* is what may still be wasted there: capacity less floor less what is left to place. A *valley*
is a run of sections with equal floors between higher ones. Two facts make the search small:

- Only what lies within a valley can rest on its floor; all else there begins above a wall. So either some piece over a
  chosen section rests on the floor, or that section's floor rises to the next place where a piece could rest, at the
  cost of slack. Every packing whose pieces all rest on something is reached once, and where one exists such a one does.
- What lies within a valley must fill it up to the wall, but for the slack, before anything else can follow.

Floors that only rise and slack as inference come from MiniMalloc (Moffitt, ASPLOS 2023), filling the niche with the
fewest choices from perfect rectangle packing; a failure jumps back to the last decision that it depends on (Prosser,
"Hybrid algorithms for the constraint satisfaction problem", 1993), so that far valleys do not multiply.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from warpplan.planner.cpsat import Answer
from warpplan.planner.packing_pieces import Pieces

DONE = 1 << 62
"""The floor of a section with nothing left to place: a wall that nobody reaches."""
RAISE = -1
"""The choice that no piece rests on the floor of the section."""


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
class State:
    """One node. By section: floors, slack, and the decisions (bits) that these depend on. ``todo`` are piece bits."""

    floors: list[int]
    slack: list[int]
    because: list[int]
    todo: int
    valleys: list[Valley]


@dataclass
class Frame:
    """A node on the path: its valley, the choices left (last first), and the decisions that its failures depend on."""

    state: State
    valley: Valley
    choices: list[int]
    conflict: int


class Skyline:
    """Piece i is live in the sections [``first[i]``, ``end[i]``) of ``count``; sizes, steps and tops as in ``Pieces``.

    Pieces with no section are not searched for.
    """

    def __init__(self, problem: Pieces, first: Sequence[int], end: Sequence[int], count: int) -> None:
        self.sizes, self.steps, self.tops = problem.sizes, problem.steps, problem.tops
        self.first, self.end, self.count = first, end, count
        self.offsets = [0] * len(first)
        change = [0] * (count + 1)
        for i, bit in ((i, 1 << i) for i in range(len(first)) if first[i] < end[i]):
            change[first[i]] ^= bit
            change[end[i]] ^= bit
        # One more at the end, empty, so that the last section has a right neighbour.
        self.over = list(accumulate(change, operator.xor))
        self.slack = [problem.capacity - sum(self.sizes[i] for i in bits(mask)) for mask in self.over[:-1]]
        self._within: dict[tuple[int, int], int] = {}

    def width(self, i: int) -> int:
        """Sections that piece i is live in."""
        return self.end[i] - self.first[i]

    def run(self, ranks: Sequence[float], nodes: int) -> tuple[Answer, int]:
        """The answer within so many nodes, and how many it took; "yes" leaves ``offsets``. Low ranks go first."""
        todo = 0
        for mask in self.over:
            todo |= mask
        root = State([0] * self.count, self.slack[:], [0] * self.count, todo, [])
        if min(self.slack, default=0) < 0 or self._settle(root, 0, self.count) is not None:
            return "no", 0
        path = [self._frame(root, ranks)] if root.valleys else []
        taken = 0
        while path:
            frame = path[-1]
            if not frame.choices:
                conflict = frame.conflict
            else:
                if taken == nodes:
                    return "unknown", taken
                taken += 1
                child, failure = self._decide(frame, frame.choices.pop(), len(path) - 1)
                if failure is None:
                    if not child.valleys:
                        return "yes", taken
                    path.append(self._frame(child, ranks))
                    continue
                conflict = failure
            depth = conflict.bit_length()
            if not depth:
                return "no", taken
            del path[depth:]
            path[-1].conflict |= conflict & ~(1 << (depth - 1))
        return ("no" if todo else "yes"), taken

    def _frame(self, state: State, ranks: Sequence[float]) -> Frame:
        valley = min(state.valleys, key=lambda v: (v.choices, v.floor))
        left, right, _, section, resting, raised, _ = valley
        choices: dict[tuple[int, ...], int] = {}
        for i in bits(resting):
            alike = self.first[i], self.end[i], self.sizes[i], self.steps[i], self.tops[i]
            choices.setdefault(alike, i)
        ordered = sorted(choices.values(), key=lambda i: ranks[i], reverse=True)
        because, conflict = state.because, state.because[section]
        if state.slack[section]:
            # Where the floor could rise to depends on the whole valley.
            for s in range(max(left - 1, 0), min(right + 1, self.count)):
                conflict |= because[s]
        else:
            conflict |= self._walls(state, left, right)
        return Frame(state, valley, [RAISE, *ordered] if raised else ordered, conflict)

    def _decide(self, frame: Frame, choice: int, depth: int) -> tuple[State, int | None]:
        """The node after ``choice``, and the decisions that it fails for, if it fails."""
        old, valley, bit = frame.state, frame.valley, 1 << depth
        floors, slack, because, todo = old.floors[:], old.slack[:], old.because[:], old.todo
        if choice == RAISE:
            first, end = valley.section, valley.section + 1
            slack[first] -= valley.raised - valley.floor
            floors[first] = valley.raised
            because[first] |= bit
        else:
            first, end = self.first[choice], self.end[choice]
            self.offsets[choice] = valley.floor
            todo &= ~(1 << choice)
            top = valley.floor + self.sizes[choice]
            for s in range(first, end):
                floors[s] = top if todo & self.over[s] else DONE
                because[s] |= bit
        state = State(floors, slack, because, todo, [v for v in old.valleys if v is not valley])
        return state, self._settle(state, first, end)

    def _settle(self, state: State, first: int, end: int) -> int | None:
        """Find the valleys anew around [first, end), raising floors that nothing can rest on.

        Gives the decisions to blame where a section must waste more than its slack.
        """
        floors, count = state.floors, self.count
        while True:
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
                        walls = self._walls(state, left, right)
                        for s, level in found:
                            state.because[s] |= walls
                            state.slack[s] -= level - floor
                            if state.slack[s] < 0:
                                return state.because[s]
                            floors[s] = level
                        raised = True
                    else:
                        state.valleys.append(found)
                left = right
            if not raised:
                return None

    def _valley(self, state: State, left: int, right: int) -> Valley | list[tuple[int, int]] | int:
        """The valley [left, right), or sections whose floors must rise and to where, or the decisions to blame."""
        over, sizes, slack = self.over, self.sizes, state.slack
        floor, low, high = self._levels(state, left, right)
        inside = state.todo & self._inside(left, right)
        across = state.todo & ~inside
        from_left = across & over[left - 1] if left else 0
        to_right = across & over[right]
        change = [0] * (right - left + 1)
        for i in bits(inside):
            change[self.first[i] - left] += sizes[i]
            change[self.end[i] - left] -= sizes[i]
        filled = 0  # by what lies within the valley, over section s
        rising: list[tuple[int, int]] = []
        best = fewest = 0
        for s in range(left, right):
            filled += change[s - left]
            a, b = over[s] & from_left, over[s] & to_right
            level = DONE if not a | b else max(low, high)
            if a & ~b:
                level = low
            if b & ~a and high < level:
                level = high
            if (a or b) and level - floor - filled > slack[s]:
                return state.because[s] | (state.because[left - 1] if a else 0) | (state.because[right] if b else 0)
            if not filled:
                rising.append((s, level))
            elif not rising:
                choices = (inside & over[s]).bit_count() + (slack[s] > 0)
                if not fewest or choices < fewest:
                    best, fewest, next_level = s, choices, level
        if rising:
            return rising
        resting = misfit = inside & over[best]
        for i in bits(resting):
            if not floor % self.steps[i] and floor <= self.tops[i]:
                misfit ^= 1 << i
        resting ^= misfit
        raised = 0
        if slack[best]:
            # The lowest place above the floor: on an aligned place, on a piece beside the section, beyond a wall.
            beside = ~over[best]
            raised = min(
                next_level,
                min((-(-floor // self.steps[i]) * self.steps[i] for i in bits(misfit)), default=DONE),
                floor + min((sizes[i] for i in bits(inside & beside)), default=DONE),
                low + min((sizes[i] for i in bits(from_left & beside)), default=DONE),
                high + min((sizes[i] for i in bits(to_right & beside)), default=DONE),
            )
            if raised - floor > slack[best]:
                raised = 0
        return Valley(left, right, floor, best, resting, raised, resting.bit_count() + (raised > 0))

    def _levels(self, state: State, left: int, right: int) -> tuple[int, int, int]:
        """The floor of the valley and of its left and right walls."""
        floors = state.floors
        return floors[left], floors[left - 1] if left else DONE, floors[right] if right < self.count else DONE

    def _walls(self, state: State, left: int, right: int) -> int:
        """The decisions that the walls depend on; a wall where nothing is left to cross it is nobody's doing."""
        _, low, high = self._levels(state, left, right)
        return (state.because[left - 1] if low < DONE else 0) | (state.because[right] if high < DONE else 0)

    def _inside(self, left: int, right: int) -> int:
        mask = self._within.get((left, right))
        if mask is None:
            mask = sum(1 << i for i in range(len(self.sizes)) if self.first[i] >= left and self.end[i] <= right)
            self._within[left, right] = mask
        return mask


def bits(mask: int) -> Iterator[int]:
    """The places of the ones in ``mask``, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
