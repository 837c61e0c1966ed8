"""Caches that training jobs already read, one module per format.

Importing it needs neither triton nor torch; a target that needs one says so when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from warpplan.planner.errors import UnknownName
from warpplan.service.feeds.feed_report import ExportReport, ExportRow, VerifyReport
from warpplan.service.feeds.triton_autotune import Options, export_triton, verify_triton

__all__ = [
    "TARGETS",
    "ExportReport",
    "ExportRow",
    "Options",
    "Target",
    "VerifyReport",
    "export_triton",
    "target",
    "verify_triton",
]


@dataclass(frozen=True)
class Target:
    """A cache format. ``export`` writes entries, ``verify`` says whether the consumer will hit them."""

    name: str
    description: str
    export: Callable[[str, Iterable[ExportRow], Path, Options | None], ExportReport]
    verify: Callable[[str, Iterable[ExportRow], Path, Options | None], VerifyReport]


TARGETS = {
    t.name: t
    for t in (Target("triton", "disk cache of @triton.autotune(cache_results=True)", export_triton, verify_triton),)
}


def target(name: str) -> Target:
    """The target called ``name``; :class:`UnknownName` lists the known ones."""
    try:
        return TARGETS[name]
    except KeyError:
        raise UnknownName("target", name, TARGETS) from None


EXPORTS = {
    "consumer_kernel": ("find",),
}
