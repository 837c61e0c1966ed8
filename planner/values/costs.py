"""Measured costs of operations, looked up by kind and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from warpplan.planner.errors import InvalidInput, MissingCosts

Parameter = int | str
Parameters = tuple[tuple[str, Parameter], ...]


@dataclass(frozen=True)
class Quantiles:
    """Median and 90th percentile of ``count`` samples, in SM cycles."""

    p50: float
    p90: float
    count: int


@dataclass(frozen=True)
class OperationCost:
    """What one operation costs, in SM cycles; a ``None`` was not measured.

    ``latency`` issue → result usable, ``occupancy`` cycles the hardware unit is held in steady state, ``issue``
    cycles the issuing warps are blocked.
    """

    latency: Quantiles | None = None
    occupancy: Quantiles | None = None
    issue: Quantiles | None = None


@dataclass(frozen=True)
class CostEntry:
    """One measured point; ``parameters`` are sorted (name, value) pairs: ``(("bytes", 16384), ("source", "l2"))``."""

    kind: str
    parameters: Parameters
    cost: OperationCost

    @property
    def label(self) -> str:
        inner = ", ".join(f"{name}={value}" for name, value in self.parameters)
        return f"{self.kind}({inner})"


@dataclass(frozen=True)
class CostTable:
    """All measured points of one GPU.

    Lookup is exact on text parameters and linear between the nearest measured points on the one numeric parameter
    of a kind (``bytes``, ``n`` or ``elements``); outside the measured range it scales the nearest two points'
    line, never below the smallest measured value. Raises :class:`InvalidInput` where two entries answer one lookup.
    """

    entries: tuple[CostEntry, ...]

    def __post_init__(self) -> None:
        _ = self._series

    @cached_property
    def _series(self) -> Mapping[tuple[str, Parameters], tuple[tuple[int, OperationCost], ...]]:
        """By kind and text parameters: the measured points, smallest size first."""
        series: dict[tuple[str, Parameters], dict[int, CostEntry]] = {}
        for entry in self.entries:
            text = tuple((n, v) for n, v in entry.parameters if isinstance(v, str))
            size = next((v for _, v in entry.parameters if isinstance(v, int)), 0)
            known = series.setdefault((entry.kind, text), {}).setdefault(size, entry)
            if known is not entry:
                raise InvalidInput(
                    f"the profile has two cost entries for {entry.label}: keep one of them"
                    if known.label == entry.label
                    else f"the profile has cost entries {known.label} and {entry.label}, which no lookup tells apart: "
                    "a kind has one numeric parameter",
                    field="costs.entries", value=entry.label,
                )  # fmt: skip
        return {
            key: tuple((size, entry.cost) for size, entry in sorted(points.items(), key=lambda point: point[0]))
            for key, points in series.items()
        }

    def lookup(self, kind: str, size: int = 0, **text: str) -> OperationCost:
        """The cost of ``kind`` at ``size`` (bytes, n or elements); :class:`MissingCosts` where never measured."""
        points = self._series.get((kind, tuple(sorted(text.items()))))
        if not points:
            inner = ", ".join(f"{n}={v}" for n, v in sorted(text.items()))
            raise MissingCosts([f"{kind}({inner})" if inner else kind])  # at no size
        return OperationCost(
            *(
                _interpolate([(x, getattr(c, f)) for x, c in points if getattr(c, f) is not None], size)
                for f in ("latency", "occupancy", "issue")
            )
        )

    def kinds(self) -> tuple[str, ...]:
        """The measured kinds, sorted."""
        return tuple(sorted({entry.kind for entry in self.entries}))


def _interpolate(points: Iterable[tuple[int, Quantiles]], size: int) -> Quantiles | None:
    known = list(points)
    if not known:
        return None
    for x, q in known:
        if x == size:
            return q
    if len(known) == 1:
        return known[0][1]
    right = next((i for i, (x, _) in enumerate(known) if x > size), len(known) - 1)
    right = max(right, 1)
    (x0, q0), (x1, q1) = known[right - 1], known[right]
    t = (size - x0) / (x1 - x0)
    low50, low90 = min(q.p50 for _, q in known), min(q.p90 for _, q in known)
    return Quantiles(
        max(low50, q0.p50 + t * (q1.p50 - q0.p50)), max(low90, q0.p90 + t * (q1.p90 - q0.p90)), min(q0.count, q1.count)
    )
