"""What an answer says, and which of a planned and the measured configurations it serves."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

from warpplan.planner.predict.time_model import Prediction
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.profile import Identity
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.config_request import ConfigRequest, canonical_json
from warpplan.service.store.measured_times import SeriesTime
from warpplan.service.store.stored_values import Environment, config_text, plan_fields, prediction_fields

Kind = Literal["exact", "planned"]


@dataclass(frozen=True)
class Measured:
    """The median of what jobs measured for one configuration, in microseconds, over ``samples`` runs; ``date`` and
    ``environment`` say when and where."""

    config: TuningConfig
    time_us: float
    samples: int
    date: str
    environment: Environment


@dataclass(frozen=True)
class ConfigAnswer:
    """A tuning configuration for a problem, as the service gives it.

    ``prediction`` is ``None`` for a measured configuration that is not among the planner's own candidates. ``kind`` is
    "exact" where the answer was kept before and "planned" where it was planned for this question; ``kept`` says whether
    the store holds it now. ``notice`` says why not. JSON is made here, once, for HTTP and the command line.
    """

    problem: ConfigRequest
    config: TuningConfig
    plan: Outcome | None
    prediction: Prediction | None
    measured: Measured | None
    kind: Kind
    kept: bool
    profile: str
    identity: Identity
    planner: str
    notice: str = ""

    @property
    def time_us(self) -> float | None:
        """Measured where there is a measurement, else predicted."""
        if self.measured is not None:
            return self.measured.time_us
        return self.prediction.time_us if self.prediction else None

    def as_dict(self) -> dict[str, Any]:
        """The fields of the HTTP answer; the same values for the same inputs, so no clock of this machine. To be read
        only: answers of one plan share its part."""
        measured = self.measured
        return {
            "kernel": self.problem.kernel,
            "shape": self.problem.shape,
            "dtype": self.problem.dtype,
            "device": self.problem.device,
            "config": self.config.as_dict(),
            "plan": _plan_fields(self.plan) if self.plan else None,
            "predicted": prediction_fields(self.prediction) if self.prediction else None,
            "measured": {"time_us": measured.time_us, "samples": measured.samples} if measured else None,
            "match": {"kind": self.kind, "kept": self.kept},
            "provenance": {
                "source": "measured" if measured else "predicted",
                "date": measured.date if measured else self.identity.date,
                "profile": self.profile,
                "planner": self.planner,
                **self._machine,
            },
        }

    @property
    def _machine(self) -> dict[str, str]:
        """GPU and versions of what the answer rests on: the measurement's, "unknown" for what its report did not say;
        else the profile's."""
        if self.measured is None:
            found = self.identity
            return {
                "gpu": found.gpu, "driver": found.driver, "cuda": found.cuda, "triton": found.triton,
                "torch": found.torch,
            }  # fmt: skip
        told = {"gpu": self.problem.device, **dict(self.measured.environment)}
        return {name: told.get(name, "unknown") for name in ("gpu", "driver", "cuda", "triton", "torch")}

    @cached_property
    def body(self) -> bytes:
        """The answer's canonical bytes."""
        return canonical_json(self.as_dict())

    @cached_property
    def etag(self) -> str:
        """A strong entity tag: the digest of :attr:`body`."""
        return f'"{hashlib.sha256(self.body).hexdigest()}"'

    @cached_property
    def etags(self) -> frozenset[str]:
        """This answer's tag, and that of the same answer found again or planned anew: a client that holds one of them
        has nothing to fetch."""
        other = replace(self, kind="planned" if self.kind == "exact" else "exact")
        return frozenset((self.etag, other.etag))


_plan_fields = lru_cache(maxsize=4096)(plan_fields)
"""Hundreds of shapes share a plan."""


def fastest(
    planned: TuningConfig, predicted_us: float, times: Sequence[SeriesTime]
) -> tuple[TuningConfig, Measured | None]:
    """The configuration to serve: the planned one, or a measured one that beats it.

    A measurement takes the place of the prediction for its configuration; where the planned one has none, its predicted
    time stands. Times of unlike environments are not compared: those of the newest report's environment count. Ties go
    to the measured, then to the smaller text, so that every rank gets the same answer.
    """
    if not times:
        return planned, None
    environment = max(times, key=lambda t: (t.newest, t.environment)).environment
    current = [t for t in times if t.environment == environment]
    best = min(current, key=lambda t: (t.time_us, config_text(t.config)))
    if predicted_us < best.time_us and all(t.config != planned for t in current):
        return planned, None
    return best.config, Measured(best.config, best.time_us, best.samples, best.newest, environment)
