"""Counters of a server, in the text format that Prometheus reads."""

from __future__ import annotations

from collections import Counter
from threading import Lock

Labels = tuple[tuple[str, str], ...]

_HELP = {
    "warpplan_requests_total": "Requests answered, by method, route and status.",
    "warpplan_request_seconds_total": "Seconds spent answering, by route.",
    "warpplan_answers_total": "Configurations given, by kind of match.",
    "warpplan_answers_not_kept_total": "Configurations planned that the store could not keep.",
    "warpplan_measurements_total": "Measurements recorded.",
}


class Metrics:
    """Sums that only grow; safe to call from several threads."""

    def __init__(self) -> None:
        self._sums: Counter[tuple[str, Labels]] = Counter()
        self._lock = Lock()

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to counter ``name``, one of those above."""
        with self._lock:
            self._sums[name, tuple(sorted(labels.items()))] += amount  # type: ignore[assignment]

    def text(self) -> str:
        """All counters; source of the format: prometheus.io, "Exposition formats"."""
        with self._lock:
            sums = sorted(self._sums.items())
        lines = []
        for name, explanation in _HELP.items():
            lines += [f"# HELP {name} {explanation}", f"# TYPE {name} counter"]
            for (found, labels), total in sums:
                if found == name:
                    inner = ",".join(f'{label}="{_escape(value)}"' for label, value in labels)
                    lines.append(f"{name}{{{inner}}} {total}" if inner else f"{name} {total}")
        return "\n".join(lines) + "\n"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
