"""Beam search over the nodes of the skyline search (Lowerre 1976): one decision a level, the best nodes kept.

Where few pieces fit exactly, a depth-first search spends long below an early mistake; a beam drops it. The score
prefers a node whose skyline has few steps, since each must be levelled before a piece can lie across it, and few
valleys, since each must be filled to the byte; and one that has placed the large pieces. Children are ranked by what
the decision alone changes, and only the first of them are worked out. Nodes that have the same pieces left are one.
A beam proves nothing, but the last node of one that fails is a good beginning for a search that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import ne
from typing import NamedTuple

from warpplan.planner.packing.line.skyline import RAISE, Skyline, SkylineFrame
from warpplan.planner.packing.line.skyline_inference import SkylineNode

Trail = tuple["Trail", int, int] | None
"""The decisions that led to a node, last first: piece and offset."""


class BeamNode(NamedTuple):
    """``score`` is what nodes are kept by, the lowest; ``gained`` its part that follows from the decisions."""

    score: float
    gained: float
    state: SkylineNode
    trail: Trail


def beam(
    skyline: Skyline,
    worth: Sequence[float],
    valley: float,
    width: int,
    nodes: float,
    *,
    waste: float = 0.0,
    children: int = 2,
) -> tuple[dict[int, int], bool, int]:
    """Offsets of the pieces that the best node placed, the first placed first; whether these are all pieces, which
    they are unless the beam of ``width`` nodes a level ended before, or took ``nodes`` nodes; how many nodes it took.

    In steps of the skyline: ``worth[i]`` is what placing piece i gains, ``valley`` what a valley costs, ``waste`` what
    a unit of slack costs. ``children`` are worked out for each node kept.
    Raises ``DeadlineReached`` at the skyline's deadline.
    """
    root = skyline.root()
    level = [BeamNode(0.0, 0.0, root, None)] if root is not None and root.valleys else []
    ranks = [0.0] * len(worth)
    best: Trail = None
    taken = 0
    while level and taken < nodes:
        best = level[0].trail
        candidates: list[tuple[float, int, BeamNode, SkylineFrame, int, float]] = []
        for node in level:
            frame = skyline.frame(node.state, 0, ranks, snug=False)
            section, floor, raised = frame.valley.section, frame.valley.floor, frame.valley.raised
            for choice in frame.choices:
                if choice == RAISE:
                    gain, first, end, top = 0.0, section, section + 1, raised
                    cost = waste * (raised - floor)
                else:
                    gain, first, end, cost = worth[choice], skyline.first[choice], skyline.end[choice], 0.0
                    top = floor + skyline.sizes[choice]
                score = node.score + _change(node.state.floors, first, end, floor, top) - gain + cost
                candidates.append((score, len(candidates), node, frame, choice, node.gained + gain))
        candidates.sort(key=lambda child: child[:2])
        found: dict[tuple[int, ...], BeamNode] = {}
        for _, _, node, frame, choice, gained in candidates:
            skyline.deadline.check()
            taken += 1
            state, _, failure = skyline.decide(frame, choice)
            if failure is not None:
                continue
            trail: Trail = (node.trail, choice, frame.valley.floor)
            if not state.valleys:
                return _placed(trail), True, taken
            score = _steps(state.floors) + valley * len(state.valleys) - gained - waste * sum(state.slack)
            key = (state.todo, *state.slack)
            if key not in found or score < found[key].score:
                found[key] = BeamNode(score, gained, state, trail)
            if len(found) == children * width:
                break
        level = sorted(found.values(), key=lambda node: node.score)[:width]
    return _placed(best), False, taken


def _steps(floors: Sequence[int]) -> int:
    return sum(map(ne, floors, islice(floors, 1, None)))


def _change(floors: Sequence[int], first: int, end: int, floor: int, top: int) -> int:
    """Steps more where the sections [``first``, ``end``) go from ``floor`` to ``top``."""
    walls = [floors[s] for s in (first - 1, end) if 0 <= s < len(floors)]
    return sum(other != top for other in walls) - sum(other != floor for other in walls)


def _placed(trail: Trail) -> dict[int, int]:
    placed: list[tuple[int, int]] = []
    while trail is not None:
        trail, piece, offset = trail
        if piece != RAISE:
            placed.append((piece, offset))
    return dict(reversed(placed))
