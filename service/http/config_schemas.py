"""The bodies of requests, checked, and of answers, described for ``/docs``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, WithJsonSchema

from warpplan.kernels import registry
from warpplan.kernels.declaration import MAX_LIST_CHARACTERS, Declaration, ShapeOption
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.workflow.request import DEFAULT_DEVICE, DEFAULT_DTYPE, Item


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a character (a lone surrogate)") from None
    return text


WholeText = Annotated[StrictStr, AfterValidator(_whole)]
"""Text that can be printed and kept: pydantic takes lone surrogates."""


def _without_null(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a null character: leave it out")
    return text


StoredText = Annotated[WholeText, AfterValidator(_without_null)]
"""Text that is a column of the store: PostgreSQL keeps no null character."""
MOST_ENVIRONMENT_CHARACTERS = 200
"""Of a name or a version in an environment, which error messages and ``warpplan calibrate`` print whole."""
EnvironmentText = Annotated[StrictStr, Field(max_length=MOST_ENVIRONMENT_CHARACTERS), AfterValidator(_whole)]
PositiveInt = Annotated[int, Field(strict=True, ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


def query_parameters(declared: Declaration) -> list[dict[str, Any]]:
    """The query of a kernel's operation as OpenAPI parameters: its sizes and options, the dtype, the device."""

    def query(name: str, description: str, required: bool, schema: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "in": "query", "required": required, "description": description, "schema": schema}

    sizes = [
        query(
            field.name, field.meaning, True,
            {"type": "integer", "minimum": field.least, "maximum": field.greatest, "example": size},
        )
        for field, size in zip(declared.fields, declared.sizes(declared.examples[0]), strict=True)
    ]  # fmt: skip
    options = [query(option.name, option.meaning, False, _option_schema(option)) for option in declared.options]
    dtypes = {"type": "string", "default": DEFAULT_DTYPE, "enum": list(declared.dtypes)}
    return [
        *sizes,
        *options,
        query("dtype", "torch's name of the dtype", False, dtypes),
        query("device", "the GPU's full name", False, {"type": "string", "default": DEFAULT_DEVICE}),
    ]


def _option_schema(option: ShapeOption) -> dict[str, Any]:
    named = {"type": "string", "enum": list(option.choices)}
    if not option.whole_numbers:
        return {**named, "default": option.default}
    numbers = {"type": "string", "pattern": "^[0-9]+(,[0-9]+)*$", "maxLength": MAX_LIST_CHARACTERS}
    return {"anyOf": [named, numbers], "default": option.default}


def _batch_example() -> list[dict[str, Any]]:
    """An item of each kernel."""
    return [{"kernel": d.name, "shape": d.named(d.examples[0])} for d in registry.declarations()]


class Config(_Strict):
    """A tuning configuration: exactly the fields of ``triton.Config``."""

    kwargs: dict[WholeText, StrictBool | StrictInt | WholeText]
    num_warps: PositiveInt
    num_stages: Annotated[int, Field(strict=True, ge=0)]
    num_ctas: PositiveInt = 1
    maxnreg: PositiveInt | None = None

    def tuning(self) -> TuningConfig:
        return TuningConfig.of(
            self.kwargs,
            num_warps=self.num_warps,
            num_stages=self.num_stages,
            num_ctas=self.num_ctas,
            maxnreg=self.maxnreg,
        )


class Predicted(BaseModel):
    time_us: float
    tflops: float
    bound_by: str


class MeasuredTime(BaseModel):
    time_us: float
    samples: int


class Match(BaseModel):
    """``exact``: kept before; ``planned``: planned for this request. ``kept``: the store holds it now."""

    kind: Literal["exact", "planned"]
    kept: bool


class Provenance(BaseModel):
    """Where the answer comes from. ``date``, ``gpu`` and versions say when and where its costs, or its time where it
    was measured, were measured: "unknown" is what the report did not say. ``profile`` is the key under
    ``/v1/profiles``."""

    source: Literal["predicted", "measured"]
    date: str
    profile: str
    planner: str
    gpu: str
    driver: str
    cuda: str
    triton: str
    torch: str


class Answer(BaseModel):
    kernel: str
    shape: dict[str, int | str]
    dtype: str
    device: str
    config: Config
    plan: dict[str, Any] | None
    predicted: Predicted | None
    measured: MeasuredTime | None
    match: Match
    provenance: Provenance


class ProblemDetails(BaseModel):
    """RFC 9457 problem details, with what was at fault."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None
    value: Any
    limit: Any


BatchItem = Annotated[Any, WithJsonSchema({"type": "object", "additionalProperties": True})]
"""Checked one by one: what is no object costs no other item its answer."""


class BatchRequest(_Strict):
    """``items``: each ``{"kernel", "shape", "dtype", "device"}``, the shape an object of the sizes and options that the
    kernel declares; they may stand beside the other fields, too."""

    items: Annotated[list[BatchItem], Field(min_length=1, examples=[_batch_example()])]


class BatchEntry(BaseModel):
    """``answer`` where ``status`` is 200, else ``error``."""

    status: int
    answer: Answer | None = None
    error: ProblemDetails | None = None


class BatchAnswer(BaseModel):
    results: list[BatchEntry]


class MeasurementRequest(_Strict):
    """The median of ``samples`` runs. Times are compared within one ``environment`` only (such as driver, cuda, triton,
    torch; a ``gpu`` there is the device); ``run`` tells equal reports of different jobs apart: a repeated one is kept
    once. A time counts for its shape alone, options included."""

    kernel: WholeText
    shape: dict[str, Any]
    dtype: WholeText = DEFAULT_DTYPE
    device: WholeText | None = None
    config: Config
    time_us: Annotated[float, Field(strict=True, gt=0, le=1e9, allow_inf_nan=False)]
    samples: Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)] = 1
    environment: Annotated[dict[EnvironmentText, EnvironmentText], Field(max_length=16)] = {}
    run: Annotated[StoredText, Field(max_length=200)] = ""
    measured_at: Annotated[WholeText, Field(max_length=40, description="ISO 8601; now if empty.")] = ""

    def item(self) -> Item:
        return Item(self.kernel, tuple(self.shape.items()), self.dtype, self.device)


class Recorded(BaseModel):
    """``recorded`` is false where the same report was kept before; ``id`` is that of the measurement."""

    recorded: bool
    id: str


class KeptMeasurement(BaseModel):
    """One report of a job, as it is kept."""

    id: str
    config: Config
    time_us: float
    samples: int
    environment: dict[str, str]
    run: str
    created_at: str


class KeptMeasurements(BaseModel):
    """The reports of one problem, oldest first."""

    measurements: list[KeptMeasurement]
