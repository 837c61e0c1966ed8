"""The caches that ``warpplan export`` and ``warpplan verify`` know, by name.

A target is a module with three names: ``DESCRIPTION``, one line for people; ``export(request)``, which writes entries
and answers an :class:`~warpplan.service.feeds.feed_report.ExportReport`; and ``verify(request)``, which writes nothing,
asks the consumer's own reader where it can, and answers a
:class:`~warpplan.service.feeds.feed_report.VerifyReport`. Both take the one :class:`FeedRequest` and read of it what
their consumer needs; what is missing or means nothing to them they refuse with
:class:`~warpplan.planner.errors.InvalidInput`. To add a target, write such a module and add its line to
:data:`TARGETS` and to :data:`OPTIONS`. Modules are imported when they are asked for: importing this one needs neither
triton nor torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from warpplan.planner.errors import InvalidInput, UnknownName
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import Scalar
from warpplan.service.feeds.feed_report import ExportReport, ExportRow, VerifyReport

TARGETS: dict[str, str] = {
    "triton": "warpplan.service.feeds.triton_autotune",
    "vllm": "warpplan.service.feeds.vllm_moe",
    "sglang": "warpplan.service.feeds.sglang_moe",
    "inductor": "warpplan.service.feeds.inductor.table_feed",
    "fla": "warpplan.service.feeds.fla.config_feed",
    "helion": "warpplan.service.feeds.helion.best_config_feed",
}
"""Name of a target → its module."""
_OF_MODELS = (
    "--model", "--tp", "--dtype", "--job-triton", "--job-driver", "--consumer", "--profile", "--untested",
)  # fmt: skip
OPTIONS: dict[str, tuple[str, ...]] = {
    "triton": ("SHAPES", "--tuned", "--consumer", "--store", "--profile", "--job-driver", "--untested"),
    "triton --tuned": ("--consumer", "--store", "--profile", "--job-driver", "--untested"),
    "vllm": _OF_MODELS,
    "sglang": _OF_MODELS,
    "inductor": ("SHAPES", "--consumer", "--store", "--kernel", "--set", "--profile", "--untested"),
    "fla": ("--consumer", "--profile", "--untested"),
    "helion": ("--consumer", "--profile", "--untested"),
}  # fmt: skip
"""Name of a target → what it reads of the command line beside ``--out`` and ``--device``; "SHAPES" is the file of
shapes."""

PRICED_THEMSELVES = ("inductor",)
"""Targets that price the consumer's kernel and not ours: of a shape they need what our kernel declares, no more."""


def _no_rows() -> Sequence[ExportRow]:
    return ()


def _untold(done: int, total: int, label: str) -> None:
    """For whoever does not want to hear of it."""


@dataclass(frozen=True)
class FeedRequest:
    """What a user asked of a target.

    ``out`` is the consumer's folder, ``consumer`` where it is (``FILE.py:function``, ``module:function``, or a folder
    with the installed package), "" where the target finds it itself. ``rows`` gives the shapes when called: a target
    that takes none never calls it. ``device`` and ``profile`` are what plans are made for. ``settings`` are words that
    only some targets know: ``model``, ``tp``, ``dtype``, ``triton``, ``driver``. ``untested`` allows a consumer's
    version that was not tested. ``arguments`` are values by name (``--set``).
    ``progress`` is told of an export that takes long: how many entries are ranked, of how many, and the next one.
    """

    out: Path
    device: str
    profile: Profile
    consumer: str = ""
    rows: Callable[[], Sequence[ExportRow]] = _no_rows
    settings: Mapping[str, str] = field(default_factory=dict)
    untested: bool = False
    arguments: Mapping[str, Scalar] = field(default_factory=dict)
    planner: str = ""
    progress: Callable[[int, int, str], None] = _untold


class FeedTarget(Protocol):
    """What a target's module has."""

    DESCRIPTION: str

    def export(self, request: FeedRequest) -> ExportReport: ...

    def verify(self, request: FeedRequest) -> VerifyReport: ...


def target(name: str) -> FeedTarget:
    """The target called ``name``; :class:`UnknownName` lists the known ones."""
    if name not in TARGETS:
        raise UnknownName("target", name, TARGETS)
    return cast("FeedTarget", importlib.import_module(TARGETS[name]))


def require_options(name: str, given: Mapping[str, object]) -> None:
    """Raise :class:`InvalidInput` for the first of ``given``, option → value (a flag's is ``True``), that the target
    ``name`` does not read."""
    known = OPTIONS[name]
    for option, value in given.items():
        if option not in known:
            told = option if value is True else f"{option} {value}"
            raise InvalidInput(
                f"{told}: --target {name} does not read it: leave it out; it reads {', '.join(known)}",
                field=option.lstrip("-").lower(), value=value, limit=list(known),
            )  # fmt: skip
