"""Where a kernel of training finds its configuration: this process's own ranking, a function, or a service.

>>> from warpplan.kernels.plan_source import configuration, use_source
>>> shape = (4096, 4096, 4096)
>>> config = configuration("gemm", shape, "bfloat16", "NVIDIA H200")
>>> with use_source(lambda kernel, shape, dtype, device: config):     # or "http://planner:8000"
...     configuration("gemm", shape, "bfloat16", "NVIDIA H200") is config
True

The ranking is a pure function of its arguments and of the profile that ships, so every rank of a job finds the same.
A service's answers are alike as long as it answers every rank: ``on_error="raise"`` where ranks must not differ.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cache, lru_cache
from http.client import HTTPException
from importlib import resources
from typing import Literal, get_args

from warpplan.kernels.declaration import Shape
from warpplan.kernels.isolate import within
from warpplan.kernels.registry import kernel
from warpplan.kernels.triton_types import Json
from warpplan.kernels.warn_once import warn_once
from warpplan.planner.errors import InvalidInput, InvalidShape, MalformedFile, StoreError, WarpplanError
from warpplan.planner.values import codec
from warpplan.planner.values.device import DEVICES, H200, Device
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig

AskPlan = Callable[[str, Shape, str, str], TuningConfig | None]
"""(kernel, shape, dtype, device name) → its configuration, or ``None`` where this process should rank."""
OnError = Literal["rank", "raise"]
NEAREST_PROFILE = H200.name
"""The profile that stands for GPUs without one of their own."""
SERVICE_WAIT_S = 3.0
"""Seconds that the first launch of a shape waits for the service's answer. Chosen by hand, as the compiler path's."""
MOST_KEPT = 4096
"""Configurations kept by a process, a kilobyte each. A job whose sequence lengths all differ ranks anew (0.5 ms) beyond
that many shapes."""


class PlanSourceWarning(UserWarning):
    """A source of plans gave no answer: the configurations are ranked in this process."""


@dataclass(frozen=True, eq=False)
class _Source:
    """``ask`` is ``None`` for ranking here. Compared by identity: each has its own answers."""

    ask: AskPlan | None = None
    name: str = ""
    raises: bool = False


_current = _Source()


def configuration(kernel: str, shape: Shape, dtype: str, device_name: str) -> TuningConfig:
    """The configuration that ``kernel`` runs ``shape`` with on the GPU called ``device_name``
    (``torch.cuda.get_device_name()``), asked for once in a process and source.

    A name that is not in the table of devices stands for a Hopper GPU: it has the H200's limits and profile. Raises
    :class:`UnknownName` for a kernel or dtype that there is not, :class:`InvalidShape` for a shape that the kernel
    does not have, :class:`Infeasible` where nothing fits it, and what the source raises with ``on_error="raise"``.
    """
    return _found(_current, kernel, shape, dtype, device_name)


def use_source(source: AskPlan | str | None, *, on_error: OnError = "rank") -> AbstractContextManager[object]:
    """Take configurations from ``source`` from now on, or within a ``with`` block: a function, the URL of a warpplan
    service, or ``None`` for this process's own ranking.

    The setting is the process's, not the thread's, because autograd runs backward passes in threads of its own. Where
    the source fails (no answer within :data:`SERVICE_WAIT_S`, a refusal, nonsense, a function's
    :class:`WarpplanError`) this process ranks and says so in one :class:`PlanSourceWarning`, and a service that cannot
    be reached is not asked again; ``on_error="raise"`` raises the error instead, at each shape. Raises
    :class:`InvalidInput` for a source of another kind.
    """
    if on_error not in get_args(OnError):
        raise InvalidInput(
            f"on_error={on_error!r}: expected {' or '.join(map(repr, get_args(OnError)))}",
            field="on_error", value=on_error, limit=list(get_args(OnError)),
        )  # fmt: skip
    opened = _Source(*_opened(source), raises=on_error == "raise")
    undo = ExitStack()
    undo.callback(_set, _current)
    _set(opened)
    return undo


def _set(source: _Source) -> None:
    global _current
    _current = source


@cache
def default_profile(device: str) -> Json:
    """The shipped profile of ``device``, or of :data:`NEAREST_PROFILE`, as JSON. Recorded profiles belong to the
    profiler, which the kernels must not import; they are read as files of the package."""
    data = resources.files("warpplan.profiler") / "data"
    for name in (device, NEAREST_PROFILE):
        file = data / (name.lower().replace(" ", "_") + ".json")
        if file.is_file():
            return json.loads(file.read_bytes())
    raise InvalidInput(f"no profile for {device}", field="device", value=device)


@lru_cache(maxsize=MOST_KEPT)
def _found(source: _Source, name: str, shape: Shape, dtype: str, device_name: str) -> TuningConfig:
    device = DEVICES.get(device_name, H200)
    shape = _parsed(name, shape)
    try:
        answer = source.ask(name, shape, dtype, device.name) if source.ask is not None else None
    except WarpplanError as error:
        if source.raises:
            raise
        warn_once(
            ("plan source", source),
            f"{source.name}: {str(error).splitlines()[0]}; configurations are ranked in this process",
            PlanSourceWarning,
            stacklevel=3,
        )
        answer = None
    return _ranked(name, shape, dtype, device) if answer is None else answer


def _parsed(name: str, shape: Shape) -> Shape:
    """``shape`` in its one form, or :class:`InvalidShape`."""
    declaration = kernel(name).declaration
    count = sum(not isinstance(word, str) for word in shape)
    if count != len(declaration.dimensions):
        raise InvalidShape(
            f"{name} {shape} has {count} sizes: expected {', '.join(declaration.dimensions)}, then options",
            field="shape", value=count, limit=len(declaration.dimensions),
        )  # fmt: skip
    return declaration.parse_shape(declaration.named(shape))


def _ranked(name: str, shape: Shape, dtype: str, device: Device) -> TuningConfig:
    return kernel(name).rank(shape, dtype, device, _profile(device.name), limit=1)[0].config


@cache
def _profile(device: str) -> Profile:
    return codec.from_json(default_profile(device), Profile)


def _opened(source: AskPlan | str | None) -> tuple[AskPlan | None, str]:
    if source is None:
        return None, ""
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        return _ServiceConfigs(source), "the service of plans"
    if callable(source):
        return source, getattr(source, "__qualname__", type(source).__qualname__)
    raise InvalidInput(
        f"source {source!r}: expected a function, http://host:port or None", field="source", value=source
    )


class _ServiceConfigs:
    """``GET /v1/configs/{kernel}``. Once the service cannot be reached every question fails at once, so that a job with
    a hundred shapes does not wait a hundred times."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._down = ""

    def __call__(self, name: str, shape: Shape, dtype: str, device: str) -> TuningConfig:
        """Raises :class:`StoreError` where the service gives no answer, :class:`MalformedFile` where it is nonsense."""
        query = {**kernel(name).declaration.named(shape), "dtype": dtype, "device": device}
        path = f"/v1/configs/{urllib.parse.quote(name, safe='')}?{urllib.parse.urlencode(query)}"
        where = f"the answer of {self._url}"
        try:
            answer = json.loads(self._get(path))
        except (ValueError, RecursionError):
            raise MalformedFile(where, "not JSON, or nested too deeply") from None
        if not isinstance(answer, dict) or not isinstance(answer.get("config"), dict):
            raise MalformedFile(where, "it has no config: does the URL name a warpplan service?")
        return codec.from_json({"schema": codec.schema(TuningConfig), **answer["config"]}, TuningConfig)

    def _get(self, path: str) -> bytes:
        if self._down:
            raise StoreError(self._down, field="source", value=self._url)
        try:
            return within(SERVICE_WAIT_S, lambda: _reply(self._url + path))
        except urllib.error.HTTPError as error:
            with error:
                message = f"{self._url} answers {error.code} to {path}"
        except (OSError, HTTPException, ValueError) as error:
            message = self._down = f"{self._url} does not answer: {getattr(error, 'reason', error)}"
        raise StoreError(message, field="source", value=self._url)


def _reply(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=SERVICE_WAIT_S) as reply:
        return bytes(reply.read())
