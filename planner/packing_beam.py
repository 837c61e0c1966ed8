"""Beam search over the nodes of the skyline search: many orders side by side, each a piece further, the best kept.

Where few pieces fit exactly, a depth-first search digs for long below an early mistake; a beam drops it. A node is good
where its skyline has few steps, since each must be levelled before a piece can lie across it, and where the large
pieces are behind it. Nodes that have the same pieces left are one. It proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from warpplan.planner.packing_skyline import RAISE, Skyline, State

Trail = tuple["Trail", int, int] | None
"""The decisions that led to a node, last first: piece and offset."""


def beam(skyline: Skyline, worth: Sequence[float], width: int, nodes: int) -> tuple[tuple[int, ...] | None, int]:
    """Offsets, or None where the beam of ``width`` nodes ended or took so many; and how many it took.

    ``worth[i]`` is how many steps of the skyline piece i is worth once it is placed.
    """
    root = skyline.root()
    level: list[tuple[State, float, Trail]] = [(root, 0.0, None)] if root is not None and root.valleys else []
    ranks = [0.0] * len(worth)
    taken = 0
    while level and taken < nodes:
        best: dict[tuple[int, ...], tuple[float, int, State, float, Trail]] = {}
        for state, gained, trail in level:
            frame = skyline.frame(state, 0, ranks, snug=False)
            for choice in frame.choices:
                taken += 1
                child, _, failure = skyline.decide(frame, choice)
                if failure is not None:
                    continue
                after: Trail = (trail, choice, frame.valley.floor)
                if not child.valleys:
                    return _offsets(after, len(worth)), taken
                gain = gained + (worth[choice] if choice != RAISE else -1.0)
                score = _steps(child.floors) - gain
                key = (child.todo, *child.slack)
                if key not in best or score < best[key][0]:
                    best[key] = score, len(best), child, gain, after
        kept = sorted(best.values(), key=lambda node: node[:2])[:width]
        level = [(child, gain, trail) for _, _, child, gain, trail in kept]
    return None, taken


def _steps(floors: Sequence[int]) -> int:
    return sum(a != b for a, b in pairwise(floors))


def _offsets(trail: Trail, count: int) -> tuple[int, ...]:
    offsets = [0] * count
    while trail is not None:
        trail, piece, offset = trail
        if piece != RAISE:
            offsets[piece] = offset
    return tuple(offsets)
