"""One solution of a loop: when each operation starts and where it runs, before it becomes a plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Assignment:
    """Per operation, in the graph's order, its start cycle and the index of its partition."""

    starts: tuple[int, ...]
    partitions: tuple[int, ...]
