"""Configurations ranked by predicted time, those that rank first as ptxas makes them: it alone knows what spills,
how many registers are used, and whether it serialises wgmma."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from warpplan.kernels.compiler.costing.pipelined.launch_time import LaunchFacts

if TYPE_CHECKING:
    from warpplan.kernels.compile import CompiledReport

Candidate = TypeVar("Candidate")

ASSEMBLED = 8
"""Configurations at the head of a ranking that are assembled, for one to three seconds each. In
``benchmarks/results/launch_replay_h200.json`` the best of the first four is within 1 % of the best in the mean."""


def as_assembled(launch: LaunchFacts, report: CompiledReport) -> LaunchFacts:
    """``launch`` with what was estimated of it as it was compiled."""
    return replace(
        launch, registers=report.registers, spill_bytes=report.spill_bytes, shared_bytes=report.shared_bytes,
        serialized=report.wgmma_serialized,
    )  # fmt: skip


def assembled_first(
    candidates: list[Candidate], place: Callable[[Candidate], Any], assemble: Callable[[Candidate], Candidate | str]
) -> tuple[list[Candidate], list[tuple[Candidate, str]]]:
    """``candidates`` by ``place``, which may change once one is assembled, until the first :data:`ASSEMBLED` all are;
    of equals the one that was given first. ``assemble`` answers why a candidate cannot run: such come second, each with
    its reason."""
    estimated = dict(enumerate(candidates))
    assembled: dict[int, Candidate] = {}
    refused: list[tuple[Candidate, str]] = []
    while True:
        known = {**estimated, **assembled}
        order = sorted(known, key=lambda position: (place(known[position]), position))
        first = next((position for position in order[:ASSEMBLED] if position not in assembled), None)
        if first is None:
            return [known[position] for position in order], refused
        candidate = estimated.pop(first)
        found = assemble(candidate)
        if isinstance(found, str):
            refused.append((candidate, found))
        else:
            assembled[first] = found
