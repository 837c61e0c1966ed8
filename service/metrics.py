"""Counters of a server and the state of its plans, in the text format that Prometheus reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock

Labels = tuple[tuple[str, str], ...]

_HELP = {
    "warpplan_requests_total": "Requests answered, by method, route and status.",
    "warpplan_request_seconds_total": "Seconds spent answering, by route.",
    "warpplan_answers_total": "Configurations given, by kind of match.",
    "warpplan_answers_not_kept_total": "Configurations planned that the store could not keep.",
    "warpplan_lookups_total": "Lookups of decisions on kernels and of tuned kernels, by what was sought and outcome.",
    "warpplan_measurements_total": "Measurements recorded.",
    "warpplan_artifacts_total": "Files of consumers' caches asked for or sent, by consumer and outcome.",
    "warpplan_tunings_total": "Tunings of jobs' own kernels recorded.",
    "warpplan_plans_submitted_total": "Plans asked for, by whether they were new.",
    "warpplan_plans_refused_total": "Plans refused because too many waited.",
    "warpplan_plans_total": "Plans that this server stopped working on, by the outcome's status or why there is none.",
    "warpplan_plan_seconds_total": "Seconds spent solving plans.",
}
_GAUGES = {"warpplan_plans": "Plans in the store, by state."}


class Metrics:
    """Sums that only grow; safe to call from several threads."""

    def __init__(self) -> None:
        self._sums: Counter[tuple[str, Labels]] = Counter()
        self._lock = Lock()

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to counter ``name``, one of those above."""
        with self._lock:
            self._sums[name, tuple(sorted(labels.items()))] += amount  # type: ignore[assignment]

    def text(self, states: Mapping[str, int] | None = None) -> str:
        """All counters, and how many plans are in each state where that is known; source of the format: prometheus.io,
        "Exposition formats"."""
        with self._lock:
            sums = sorted(self._sums.items())
        lines = [line for name in _HELP for line in _family(name, "counter", _HELP[name], sums)]
        for name, explanation in _GAUGES.items():
            values = [((name, (("state", state),)), float(n)) for state, n in sorted((states or {}).items())]
            lines += _family(name, "gauge", explanation, values)
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, explanation: str, sums: Iterable[tuple[tuple[str, Labels], float]]) -> Iterator[str]:
    yield f"# HELP {name} {explanation}"
    yield f"# TYPE {name} {kind}"
    for (found, labels), total in sums:
        if found == name:
            inner = ",".join(f'{label}="{_escape(value)}"' for label, value in labels)
            yield f"{name}{{{inner}}} {total}" if inner else f"{name} {total}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
