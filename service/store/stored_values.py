"""Values ↔ the canonical JSON text that rows hold: the store's edge. Beyond it there are values only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from warpplan.planner.predict.time_model import Prediction
from warpplan.planner.values import codec
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.config_request import canonical_json

Environment = tuple[tuple[str, str], ...]
"""Sorted (name, value) pairs that must be equal for times to be compared: driver, cuda, triton, torch."""


class Unreadable(ValueError):
    """A text that is not what is written here."""


@lru_cache(maxsize=4096)
def config_text(config: TuningConfig) -> str:
    return canonical_json(config.as_dict()).decode()


@lru_cache(maxsize=4096)
def read_config(text: str) -> TuningConfig:
    """The inverse of :func:`config_text`; raises :class:`Unreadable`."""
    fields = _object(text)
    try:
        return TuningConfig.of(fields.pop("kwargs"), **fields)
    except (TypeError, KeyError, AttributeError) as error:
        raise Unreadable(str(error)) from None


def plan_fields(outcome: Outcome) -> dict[str, Any]:
    """``outcome`` as schema warpplan/outcome-1 without the seconds that solving took somewhere."""
    fields = codec.to_json(outcome)
    del fields["solve_seconds"]
    return fields


@lru_cache(maxsize=4096)
def plan_text(outcome: Outcome) -> str:
    return canonical_json(plan_fields(outcome)).decode()


@lru_cache(maxsize=4096)
def read_plan(text: str) -> Outcome:
    """The inverse of :func:`plan_text`; raises :class:`Unreadable`."""
    try:
        return codec.from_json({**_object(text), "solve_seconds": 0.0}, Outcome)
    except Exception as error:
        raise Unreadable(str(error)) from None


def prediction_fields(prediction: Prediction) -> dict[str, Any]:
    """What is kept of a prediction: its parts are the planner's to explain."""
    return {"time_us": prediction.time_us, "tflops": prediction.tflops, "bound_by": prediction.bound_by}


def prediction_text(prediction: Prediction) -> str:
    return canonical_json(prediction_fields(prediction)).decode()


def read_prediction(text: str) -> Prediction:
    """The inverse of :func:`prediction_text`; raises :class:`Unreadable`."""
    fields = _object(text)
    try:
        return Prediction(float(fields["time_us"]), float(fields["tflops"]), str(fields["bound_by"]), ())
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(str(error)) from None


@lru_cache(maxsize=4096)
def environment_text(environment: Environment) -> str:
    return canonical_json(dict(environment)).decode()


@lru_cache(maxsize=4096)
def read_environment(text: str) -> Environment:
    """The inverse of :func:`environment_text`; raises :class:`Unreadable`."""
    return environment_of(_object(text))


def environment_of(fields: Mapping[str, str]) -> Environment:
    return tuple(sorted(fields.items()))


def _object(text: object) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from None
    if not isinstance(found, dict):
        raise Unreadable("no JSON object")
    return found
