"""The bodies of reported tunings, checked, and of what is kept of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt

from warpplan.service.http.config_schemas import Config, EnvironmentText, WholeText
from warpplan.service.listening import LEAST_US, MOST_US

Name = Annotated[WholeText, Field(min_length=1, max_length=500)]
Part = StrictBool | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)] | WholeText | None


class TimedConfig(BaseModel):
    """A configuration's median in microseconds; ``null`` where it could not run."""

    model_config = ConfigDict(extra="forbid")

    config: Config
    time_us: Annotated[float, Field(strict=True, ge=LEAST_US, le=MOST_US, allow_inf_nan=False)] | None


class Tuning(BaseModel):
    """One tuning of a kernel: ``source`` is Triton's hash of it, ``key`` the autotuner's key; ``hit`` says that the
    times came out of a cache: they are not kept."""

    model_config = ConfigDict(extra="forbid")

    kernel: Name
    source: Name
    key: Annotated[list[Part], Field(max_length=200)]
    configs: Annotated[list[TimedConfig], Field(min_length=1, max_length=2000)]
    best: Config | None = None
    hit: StrictBool = False


class TuningReport(BaseModel):
    """What one machine tuned. ``environment`` names its versions; a ``gpu`` there is the device."""

    model_config = ConfigDict(extra="forbid")

    device: Name
    environment: Annotated[dict[EnvironmentText, EnvironmentText], Field(max_length=16)] = {}
    tunings: Annotated[list[Tuning], Field(min_length=1, max_length=1000)]


class TuningsRecorded(BaseModel):
    """Configurations that were taken."""

    recorded: int


class KeptTuning(BaseModel):
    """The least time of one configuration under one key on one machine."""

    source: str
    key: list[Part]
    config: Config
    device: str
    environment: dict[str, str]
    time_us: float | None
    reports: int
    newest: str


class KeptTunings(BaseModel):
    tunings: list[KeptTuning]
