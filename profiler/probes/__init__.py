"""Microbenchmarks, one module a family. Importing this package needs neither torch nor triton; measuring needs both."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from warpplan.planner.errors import UnknownName
from warpplan.profiler.probes.points import FAMILIES, Point
from warpplan.profiler.records import Record

if TYPE_CHECKING:
    from warpplan.profiler.probes.harness.cases import Case

_MODULES = {
    "tma": "tma",
    "wgmma": "wgmma",
    "mma": "mma",
    "handoff": "handoff",
    "fix_up": "handoff",
    "cluster": "cluster",
    "shared": "tiles",
    "registers": "arithmetic",
    "widening": "widening",
    "loads": "loads",
    "gather": "gather",
    "ceilings": "ceilings",
}


def points(family: str) -> tuple[Point, ...]:
    """What ``family`` measures; :class:`UnknownName` lists the families."""
    try:
        return FAMILIES[family]
    except KeyError:
        raise UnknownName("probe", family, FAMILIES) from None


def kernels(point: Point, family: str) -> tuple[Case, ...]:
    """What ``point`` launches, as :class:`~warpplan.profiler.probes.harness.cases.Case`; needs triton, no GPU."""
    found: tuple[Case, ...] = _module(family).cases(point)
    return found


def measure(family: str, skip: Sequence[str] = ()) -> Iterator[Record]:
    """Measure ``family`` on the current GPU, point by point, but for the labels in ``skip``.

    Yields ``{"start": label}``, the records of the point, ``{"done": label}`` or ``{"failed": label, "reason": …}``. A
    point that raises is one failure, unless the GPU's context is lost with it: every later launch would fail, so it is
    raised.
    """
    module = _module(family)
    for point in points(family):
        if point.label in skip:
            continue
        yield {"start": point.label}
        try:
            yield from module.measure(point)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            _require_alive(reason)
            yield {"failed": point.label, "reason": reason}
        else:
            yield {"done": point.label}


def _module(family: str) -> ModuleType:
    points(family)
    return importlib.import_module(f"{__name__}.{_MODULES[family]}")


def _require_alive(reason: str) -> None:
    import torch

    try:
        torch.cuda.synchronize()
    except Exception as error:
        raise RuntimeError(f"the GPU's context was lost: {reason}") from error


EXPORTS = {
    "points": ("*",),
}
