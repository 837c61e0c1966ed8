"""Export and verification of routed layers' tables, for any consumer that reads them by file name.

What differs from one consumer to the next is in a :class:`MoeConsumer`; :mod:`~warpplan.service.feeds.vllm_moe` and
:mod:`~warpplan.service.feeds.sglang_moe` have theirs.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from warpplan.planner.errors import InvalidInput
from warpplan.planner.values import codec
from warpplan.planner.values.device import Device, device
from warpplan.planner.values.profile import Profile
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.feeds.feed_report import ExportedEntry, ExportReport, VerifiedEntry, VerifyReport
from warpplan.service.feeds.machine_here import driver_for, job_machine
from warpplan.service.feeds.moe.exported_layers import layer_difference, layers_of, title_of
from warpplan.service.feeds.moe.model_shapes import MoeLayer, MoeModel, is_whole, layer_of, model_named
from warpplan.service.feeds.moe.moe_choice import MoeChooser
from warpplan.service.feeds.moe.table_files import (
    TableKey,
    WrittenTable,
    difference,
    keep_foreign,
    record,
    recorded,
    write_table,
)
from warpplan.service.feeds.moe_facts.installed_consumer import InstalledConsumer, find_consumer, require_tested
from warpplan.service.feeds.moe_facts.moe_kernels import MoeKernel
from warpplan.service.feeds.moe_facts.moe_schemes import MoeScheme, scheme_named
from warpplan.service.feeds.moe_facts.tile_facts import KernelSource, kernel_source
from warpplan.service.feeds.provenance import digest_of, driver_unknown
from warpplan.service.feeds.targets import FeedRequest

Table = dict[int, dict[str, object]]
"""Tokens → an entry of a file."""
Reader = Callable[
    [InstalledConsumer | None, Path, TableKey, Mapping[str, str]], Mapping[int, Mapping[str, object]] | None
]
"""What a consumer finds in the folder for a key; its own unmodified reader where it is installed. Raises what that
raises."""
VERSION, KERNEL, TRITON, PROFILE = "consumer version", "kernel", "triton", "profile"
STALE_IF_CHANGED = (VERSION, KERNEL, TRITON, PROFILE, "device")
"""What of a table's provenance makes it stale where it is another today."""
DRIVER = "driver"
"""The driver that a table is for, in its provenance: "" where nobody knew it."""
LAYER = "layer"
"""The title of the layer that a table is for, in its provenance."""
EXAMPLE_TRITON = "3.8.0"
"""Shown where --job-triton is no release."""
TESTED_TRITONS = ("3.6", "3.7", "3.8", "3.9")
"""Releases of Triton that tables are written for without --untested: those that ``make compile-matrix`` compiles with.
How many registers a tile takes is a release's own."""


@dataclass(frozen=True)
class PlannedTable:
    """A table before it is written; ``times_us`` are predicted, by tokens."""

    key: TableKey
    layer: MoeLayer
    table: Table
    times_us: dict[int, float]


@dataclass(frozen=True)
class MoeConsumer:
    """One consumer. ``schemes`` are those that its reader tells apart; ``place`` is where below the folder a table
    lies; ``plan`` chooses a layer's tables; ``shares`` whether shared experts may run as routed ones; ``triton`` is the
    job's, as far as it is known, and ``device_name`` a device's in a file's name."""

    name: str
    tested: tuple[str, ...]
    schemes: tuple[str, ...]
    kernel: MoeKernel
    sorts_always: bool
    shares: bool
    place: Callable[[TableKey, Mapping[str, str]], str]
    plan: Callable[[MoeChooser, MoeLayer, TableKey], tuple[PlannedTable, ...]]
    read: Reader
    triton: Callable[[InstalledConsumer | None, Mapping[str, str]], str]
    device_name: Callable[[str], str]


@dataclass(frozen=True)
class _Job:
    """A request understood."""

    consumer: MoeConsumer
    request: FeedRequest
    model: MoeModel
    scheme: MoeScheme
    tp: int
    device: Device
    installed: InstalledConsumer | None
    source: KernelSource
    settings: Mapping[str, str]

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        version = self.installed.version if self.installed is not None else self.consumer.tested[-1]
        return (
            (VERSION, version),
            (KERNEL, self.source.digest),
            (TRITON, self.settings["triton"]),
            (PROFILE, codec.key(self.request.profile)[:16]),
            ("device", self.device.name),
        )

    @property
    def title(self) -> str:
        return title_of(self.model.name or self.settings["model"], self.tp, self.scheme)

    def difference_from(self, title: str, planned: PlannedTable) -> str:
        """How the layer of ``title`` differs from the one that ``planned`` is for, in words; "" where it does not."""
        shares = self.consumer.shares
        layers = layers_of(self.model, self.tp, self.scheme, shares=shares)
        (asked,) = (each for each in layers if each[0] == planned.layer)
        return layer_difference(title, asked, self.consumer.schemes, shares=shares)

    def tables(self) -> tuple[PlannedTable, ...]:
        """Every table of the model's layer, planned."""
        return _tables(self.consumer, self.model, self.scheme, self.tp, self.device, self.request.profile, self.source)


@lru_cache(maxsize=16)
def _tables(
    consumer: MoeConsumer, model: MoeModel, scheme: MoeScheme, tp: int, device: Device, profile: Profile,
    source: KernelSource,
) -> tuple[PlannedTable, ...]:  # fmt: skip
    """Planning takes seconds, and verification after an export asks for the same."""
    found: list[PlannedTable] = []
    for each, shared in layers_of(model, tp, scheme, shares=consumer.shares):
        chooser = MoeChooser(source, scheme, profile, device, sorts_always=consumer.sorts_always, shared=shared)
        key = TableKey(
            each.experts, each.intermediate, consumer.device_name(device.name), scheme.selector, scheme.block,
            scheme.per_channel,
        )  # fmt: skip
        found += consumer.plan(chooser, each, key)
    return tuple(found)


def export_tables(consumer: MoeConsumer, request: FeedRequest) -> ExportReport:
    """Plan and write every table of the requested layer, and their provenance.

    Raises :class:`InvalidInput` for a request that is not understood, a consumer that was not tested, or a folder that
    holds another layer's table under the same name (nothing is written then),
    :class:`~warpplan.planner.errors.UnknownName` for a model, dtype or device that is not known,
    :class:`~warpplan.planner.errors.StoreError` where the folder cannot be written.
    """
    job = _understood(consumer, request)
    today = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")
    driver = driver_for(job.device.name, request.settings.get(DRIVER, ""))
    more = {"planner": request.planner, "date": today, "facts": job.source.origin, LAYER: job.title, DRIVER: driver}
    _require_own_places(job)
    known = recorded(request.out, consumer.name)
    written: dict[str, WrittenTable] = {}
    entries: list[ExportedEntry] = []
    kept: list[str] = []
    for planned in job.tables():
        place = consumer.place(planned.key, job.settings)
        kept += keep_foreign(request.out / place, planned.table, known.get(place))
        digest = write_table(request.out / place, planned.table)
        written[place] = WrittenTable(digest, {**dict(job.identity), **more})
        for tokens, entry in planned.table.items():
            entries.append(
                ExportedEntry(
                    _shape(planned.layer, tokens),
                    job.scheme.name,
                    job.device.name,
                    (place,),
                    str(request.out / place),
                    tuning_of_entry(entry),
                    planned.times_us[tokens],
                )
            )
    record(request.out, consumer.name, written)
    return ExportReport(consumer.name, job.title, str(request.out), job.identity, tuple(entries), (), tuple(kept))


def _require_own_places(job: _Job) -> None:
    """Raise :class:`InvalidInput` where one of the job's files is there and was exported for another layer."""
    known = recorded(job.request.out, job.consumer.name)
    for planned in job.tables():
        place = job.consumer.place(planned.key, job.settings)
        path = job.request.out / place
        if place not in known or not path.is_file():
            continue
        other = job.difference_from(known[place].provenance.get(LAYER, ""), planned)
        if other:
            raise InvalidInput(
                f"{path} was exported for another layer ({other}), and {job.consumer.name} reads one table of this "
                "name for both: give another folder with --out, or remove the file",
                field="out", value=str(job.request.out),
            )  # fmt: skip


def verify_tables(consumer: MoeConsumer, request: FeedRequest) -> VerifyReport:
    """Would the consumer take our entry for every number of tokens? Writes nothing. Raises as :func:`export_tables`.

    A table that is missing, damaged, stale, another layer's or not ours is a miss for all of its tokens, with the
    reason.
    """
    job = _understood(consumer, request)
    known = recorded(request.out, consumer.name)
    entries: list[VerifiedEntry] = []
    for planned in job.tables():
        place = consumer.place(planned.key, job.settings)
        path = request.out / place
        read, reason = _read(job, planned, place, known.get(place))
        for tokens, today in planned.table.items():
            entry = None if read is None else _nearest(read, tokens)
            told = reason
            if entry is not None and not reason:
                older = "" if dict(entry) == today else "not today's plan: an older one"
                told = older or _driver_unknown(job, known[place])
            entries.append(
                VerifiedEntry(
                    _shape(planned.layer, tokens),
                    job.scheme.name,
                    job.device.name,
                    read is not None and not reason,
                    str(path),
                    None if entry is None else tuning_of_entry(entry),
                    told,
                )
            )
    return VerifyReport(consumer.name, job.title, str(request.out), job.identity, tuple(entries))


def _understood(consumer: MoeConsumer, request: FeedRequest) -> _Job:
    settings = request.settings
    if "model" not in settings:
        raise InvalidInput(
            f"--target {consumer.name} needs --model: a name such as deepseek-v3, or "
            '"experts=256 hidden=7168 intermediate=2048 top-k=8"',
            field="model",
        )
    model = model_named(settings["model"])
    chosen = scheme_named(settings.get("dtype") or model.scheme, consumer.schemes)
    tp = settings.get("tp", "1")
    if not is_whole(tp):
        raise InvalidInput(f"--tp {tp}: expected a whole number from 1 on", field="tp", value=tp)
    layer_of(model, int(tp), chosen)
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)+", settings.get("triton", EXAMPLE_TRITON)):
        raise InvalidInput(
            f"--job-triton {settings['triton']}: expected a release such as {EXAMPLE_TRITON}",
            field="triton", value=settings["triton"],
        )  # fmt: skip
    installed = find_consumer(consumer.name, request.consumer)
    if installed is not None:
        require_tested(installed, consumer.tested, untested=request.untested)
    source = kernel_source(consumer.kernel, chosen, installed)
    resolved = {**settings, "triton": consumer.triton(installed, settings)}
    _require_tested_triton(resolved["triton"], untested=request.untested)
    return _Job(consumer, request, model, chosen, int(tp), device(request.device), installed, source, resolved)


def _require_tested_triton(version: str, *, untested: bool) -> None:
    """Raise :class:`InvalidInput` for a release that is not among :data:`TESTED_TRITONS`, unless ``untested`` allows
    it. A version that is not known passes: the consumer's tables are not named by it."""
    release = ".".join(version.split(".")[:2])
    if version[:1].isdigit() and release not in TESTED_TRITONS and not untested:
        raise InvalidInput(
            f"triton {version} was not tested: what its kernels need of an SM may have changed. Tested: "
            f"{', '.join(TESTED_TRITONS)}. Give --untested to go on all the same",
            field="triton", value=version, limit=list(TESTED_TRITONS),
        )  # fmt: skip


def _read(
    job: _Job, planned: PlannedTable, place: str, known: WrittenTable | None
) -> tuple[Mapping[int, Mapping[str, object]] | None, str]:
    """What the consumer reads for ``planned``, and why that is no hit."""
    path = job.request.out / place
    try:
        read = job.consumer.read(job.installed, job.request.out, planned.key, job.settings)
    except InvalidInput:  # the reader is not there, whatever the table is
        raise
    except Exception as error:  # the consumer's own reader runs here and may raise anything
        return None, f"the consumer fails on it ({type(error).__name__}: {error}): remove {path}"
    if not path.is_file():
        near = difference(path.name, path.parent)
        elsewhere = "; the consumer falls back to a table elsewhere" if read is not None else ""
        return None, f"no {path.name}{f'; {near}' if near else ''}{elsewhere}"
    if read is None:
        return None, f"the consumer does not read {path.name}: its version names tables otherwise, or tuning is off"
    if not read or not all(isinstance(entry, Mapping) for entry in read.values()):
        return None, f"the consumer takes it and fails at its first launch, for it lacks configurations: remove {path}"
    if known is None or known.digest != digest_of(path.read_bytes()):
        return read, "not ours, or changed since it was exported: the consumer reads it all the same; export again"
    if dict(read) != {int(k): v for k, v in json.loads(path.read_bytes()).items() if k.isdigit()}:
        return read, "the consumer takes another table than this one"
    other = job.difference_from(known.provenance.get(LAYER, ""), planned)
    if other:
        return read, f"exported for another layer ({other}), and read all the same: export into another folder"
    here = job_machine(job.request.settings.get(DRIVER, ""))
    if here.gpus and job.device.name not in here.gpus:
        return read, f"for {job.device.name}, and the GPU here is {', '.join(here.gpus)}: give that one with --device"
    now = dict(job.identity)
    changed = [
        f"{name} {known.provenance.get(name, 'unknown')}, here {now[name]}"
        for name in STALE_IF_CHANGED if known.provenance.get(name) != now[name]
    ]  # fmt: skip
    driver = known.provenance.get(DRIVER, "")
    if driver and here.driver and driver != here.driver:
        changed.append(f"{DRIVER} {driver}, here {here.driver}")
    return read, f"stale, and read all the same: exported for {'; '.join(changed)}: export again" if changed else ""


def _driver_unknown(job: _Job, known: WrittenTable) -> str:
    """Why the driver of a table cannot be compared, in words; "" where it is, or nobody knows one."""
    return driver_unknown(known.provenance.get(DRIVER, ""), job_machine(job.request.settings.get(DRIVER, "")))


def _nearest(table: Mapping[int, Mapping[str, object]], tokens: int) -> Mapping[str, object] | None:
    """As both consumers choose: the first of the nearest numbers of tokens."""
    return table[min(table, key=lambda known: abs(known - tokens))] if table else None


def _shape(layer: MoeLayer, tokens: int) -> tuple[int | str, ...]:
    return (tokens, layer.hidden, layer.intermediate, f"experts={layer.experts}", f"top-k={layer.top_k}")


def tuning_of_entry(entry: Mapping[str, object]) -> TuningConfig:
    """An entry of a file as our value; what a foreign one lacks is 0."""

    def number(name: str) -> int:
        value = entry.get(name, 0)
        return value if isinstance(value, int) else 0

    kwargs = {name: value for name, value in entry.items() if name not in ("num_warps", "num_stages")}
    return TuningConfig(tuple(kwargs.items()), number("num_warps"), number("num_stages"))  # type: ignore[arg-type]
