"""Inductor's GEMM lookup table: ``OUT/inductor_table.json`` for a list of shapes, or for the keys a job asked for.

Entries are for the ``triton::mm`` template: a tile of Inductor's own list for the shape, the one whose time is
predicted to be shortest for that kernel (:mod:`~.product_ranking`). Beside it stands ATen's, so that Inductor measures
two candidates and not its whole list; ``--set aten=false`` leaves it out, and then Inductor measures nothing.

Keys and values: torch 2.11 and 2.13, ``_inductor/lookup_table/choices.py``. torch 2.11 wants every keyword argument of
the template, which the entries have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warpplan.kernels.declaration import Shape, options_of
from warpplan.planner.errors import InvalidInput, MalformedFile, StoreError, WarpplanError
from warpplan.planner.values import codec
from warpplan.planner.values.device import Device, device
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.feeds.feed_report import (
    ExportedEntry,
    ExportReport,
    SkippedRow,
    VerifiedEntry,
    VerifyReport,
    shape_text,
)
from warpplan.service.feeds.inductor.mm_problem import MmProblem, plain_product, problem_of
from warpplan.service.feeds.inductor.table_file import (
    FILE_NAME,
    Entry,
    PlannedFrom,
    TableFile,
    add_to_table,
    digest,
    load_table,
)
from warpplan.service.feeds.machine_here import machine_here
from warpplan.service.feeds.moe_facts.installed_consumer import find_consumer, require_tested
from warpplan.service.feeds.provenance import EntryProvenance, planned
from warpplan.service.feeds.targets import FeedRequest

DESCRIPTION = "Inductor's GEMM lookup table, $WARPPLAN_INDUCTOR_TABLE, for shapes or for the keys a job asked for"
TARGET = "inductor"
TESTED = ("2.11.0", "2.13.0")
TILE_FIELDS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")


@dataclass(frozen=True)
class _Wanted:
    """What a table is asked for."""

    problems: tuple[MmProblem, ...]
    skipped: tuple[SkippedRow, ...]
    gpu: Device
    versions: dict[str, str]


def export(request: FeedRequest) -> ExportReport:
    """Write the table, or add to one that is for the same. A file that is for something else, or that nobody knows to
    be ours, is kept beside it.

    Raises :class:`InvalidInput` without torch, with one that was not tested, and for keys or shapes that are no
    product; :class:`StoreError` where the folder cannot be written.
    """
    from warpplan.service.feeds.inductor.paper_torch import listed_tiles, pretending, template_hash
    from warpplan.service.feeds.inductor.product_ranking import rank_tiles

    wanted = _understood(request)
    aten = _with_aten(request)
    path = request.out / FILE_NAME
    table: dict[str, Sequence[Entry]] = {}
    entries: list[ExportedEntry] = []
    skipped = list(wanted.skipped)
    with pretending(wanted.gpu):
        hashed = template_hash()
        for done, problem in enumerate(wanted.problems):
            request.progress(done, len(wanted.problems), f"{shape_text(_shape(problem))} {problem.dtype}")
            try:
                tile, time_us = rank_tiles(problem, listed_tiles(problem), request.profile, wanted.gpu)[0]
            except WarpplanError as error:
                skipped.append(SkippedRow(_shape(problem), problem.dtype, wanted.gpu.name, str(error)))
                continue
            entry = _entry(problem, tile, hashed)
            table[problem.key(wanted.gpu.name)] = [entry, {"template_id": _aten(problem)}] if aten else [entry]
            key = problem.key(wanted.gpu.name)
            made_of = (_shape(problem), problem.dtype, wanted.gpu.name, (key,), str(path), tuning_of(entry), time_us)
            entries.append(ExportedEntry(*made_of))
    if not entries:
        first = f", such as {skipped[0].reason}" if skipped else ""
        raise InvalidInput(f"there is nothing to export{first}", field="rows")
    made = TableFile(replace(_provenance(request, wanted), digest=digest(table)), table)
    identity = (*sorted(wanted.versions.items()), ("device", wanted.gpu.name), ("template", hashed[:12]))
    report = ExportReport(TARGET, _consumer(wanted), str(request.out), identity, tuple(entries), tuple(skipped))
    try:
        kept, unlike = add_to_table(path, made)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(f"cannot write {path}: {reason}", field="out", value=str(request.out)) from error
    report = replace(report, kept=kept)
    return replace(report, kept_because=f"it was made for {unlike}") if unlike else report


def verify(request: FeedRequest) -> VerifyReport:
    """Would Inductor find an entry for each shape? Its own reader is asked, with the torch that is installed here. A
    table that is damaged or stale is a miss of all, as it is in the job. Writes nothing; raises as :func:`export`."""
    from warpplan.service.feeds.inductor.paper_torch import looked_up, pretending

    wanted = _understood(request)
    from warpplan.service.feeds.inductor.choices import PlannedChoices  # it is torch's: not before torch is known

    path = request.out / FILE_NAME
    reason, found = "", None
    try:
        found = load_table(path)
        reason = found.stale(machine_here(), wanted.versions)
    except MalformedFile as error:
        reason = str(error)
    with pretending(wanted.gpu):
        hits = looked_up(PlannedChoices(found.table if found and not reason else {}), wanted.problems)
    entries = []
    for problem, answered in zip(wanted.problems, hits, strict=True):
        first = next((entry for entry in answered if "BLOCK_M" in entry), None)
        why = "" if first else reason or _why_missing(found, problem, wanted.gpu)
        config = tuning_of(first) if first else None
        if first and found:
            why = _not_today(found.planned_from(_key_in(found, problem, wanted.gpu)), request)
        entries.append(
            VerifiedEntry(_shape(problem), problem.dtype, wanted.gpu.name, bool(first), str(path), config, why)
        )
    identity = (*sorted(wanted.versions.items()), ("device", wanted.gpu.name))
    return VerifyReport(TARGET, _consumer(wanted), str(request.out), identity, tuple(entries), wanted.skipped)


def tuning_of(entry: Entry) -> TuningConfig:
    """The tile of an entry of the table."""
    kwargs = {name: entry[name] for name in TILE_FIELDS if name in entry}
    return TuningConfig.of(kwargs, num_warps=entry["num_warps"], num_stages=entry["num_stages"])


def _understood(request: FeedRequest) -> _Wanted:
    installed = find_consumer("torch")
    if installed is None:
        raise InvalidInput(
            "exporting for Inductor needs the job's own torch here: pip install 'warpplan[gpu]'",
            field="target", value=TARGET,
        )  # fmt: skip
    require_tested(installed, TESTED, untested=request.untested)
    from warpplan.service.feeds.inductor.choices import installed_versions

    if request.consumer:
        problems, skipped = _of_keys(Path(request.consumer), request.device)
    else:
        problems, skipped = _of_rows(request)
    if not problems:
        raise InvalidInput("there is nothing to export: every line was left out", field="rows")
    return _Wanted(tuple(dict.fromkeys(problems)), tuple(skipped), device(request.device), installed_versions())


def _of_keys(path: Path, name: str) -> tuple[list[MmProblem], list[SkippedRow]]:
    """The products of a file of keys, as a job wrote it; other operations are left out."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise MalformedFile(path, f"cannot be read: {error.strerror}", field="consumer") from None
    except UnicodeDecodeError as error:
        raise MalformedFile(path, f"not UTF-8: byte {error.object[error.start]:#04x}", field="consumer") from None
    problems, skipped = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            problems.append(problem_of(line))
        except InvalidInput as error:
            if error.limit is None:
                raise MalformedFile(path, str(error), line=number, field="key") from None
            skipped.append(SkippedRow((line.strip()[:60],), "", name, str(error)))
    return problems, skipped


def _of_rows(request: FeedRequest) -> tuple[list[MmProblem], list[SkippedRow]]:
    problems, skipped = [], []
    for row in request.rows():
        named = options_of(row.shape)
        more = {name: value for name, value in named.items() if name != "layout"}
        sizes = [part for part in row.shape if isinstance(part, int)]
        if more or len(sizes) != 3 or row.device != request.device:
            reason = f"for {row.device}" if row.device != request.device else "no plain product of two matrices"
            skipped.append(SkippedRow(row.shape, row.dtype, row.device, reason))
            continue
        m, n, k = sizes
        problems.append(plain_product(m, n, k, row.dtype, named.get("layout", "nt")))
    return problems, skipped


def _with_aten(request: FeedRequest) -> bool:
    given = dict(request.arguments)
    aten = given.pop("aten", True)
    if given or not isinstance(aten, bool):
        raise InvalidInput(f"--set {next(iter(given), 'aten')}: expected aten=true or aten=false", field="set")
    return aten


def _entry(problem: MmProblem, tile: Any, hashed: str) -> Entry:
    """Every keyword argument of the template. ``EVEN_K`` skips the mask of the depth."""
    return {
        "template_id": "triton::mm", "template_hash": hashed, "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k, "GROUP_M": tile.group_m, "num_warps": tile.warps, "num_stages": tile.stages,
        "EVEN_K": problem.k % tile.block_k == 0, "ACC_TYPE": "tl.float32", "USE_FAST_ACCUM": False,
        "hint_override": None,
    }  # fmt: skip


def _aten(problem: MmProblem) -> str:
    return f"aten::{problem.operation}"


def _provenance(request: FeedRequest, wanted: _Wanted) -> EntryProvenance:
    here = machine_here()
    driver = here.driver if wanted.gpu.name in here.gpus else ""
    return planned(
        TARGET, device=wanted.gpu.name, driver=driver, profile=codec.key(request.profile), planner=request.planner,
        versions=wanted.versions,
    )  # fmt: skip


def _why_missing(found: TableFile | None, problem: MmProblem, gpu: Device) -> str:
    keys: Iterable[str] = found.table if found else ()
    if problem.key(gpu.name) in keys:
        return "the entry was made for another state of torch's template: export it again"
    if any(key.endswith(problem.key()) for key in keys):
        return f"exported for another GPU than {gpu.name}"
    return "no entry for these sizes, strides and dtypes: export them"


def _key_in(found: TableFile, problem: MmProblem, gpu: Device) -> str:
    """The key by which Inductor finds ``problem``: that of the GPU, or that of any."""
    key = problem.key(gpu.name)
    return key if key in found.table else problem.key()


def _not_today(source: PlannedFrom, request: FeedRequest) -> str:
    profile, planner = source
    if profile != codec.key(request.profile):
        return "planned from another profile than today's"
    return "" if planner == request.planner else f"planned by {planner}, not today's planner"


def _consumer(wanted: _Wanted) -> str:
    return f"torch {wanted.versions['torch']}"


def _shape(problem: MmProblem) -> Shape:
    options = () if problem.layout == "nt" else (f"layout={problem.layout}",)
    return (problem.m, problem.n, problem.k, *options)
