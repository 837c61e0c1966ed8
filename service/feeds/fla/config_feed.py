"""FLA's configuration files: ``$FLA_CONFIG_DIR/<kernel>.json``, read with ``FLA_CACHE_MODE=strict``.

``--consumer FILE.py:function`` is a function of the job that runs its layers on CPU tensors of the job's sizes
(:mod:`~.launch_recorder`). For each autotuned kernel that it launches, each key gets the configuration of the kernel's
own list whose time is predicted to be shortest (:mod:`~.recorded_ranking`).

FLA compares nothing but the key: files for another GPU, driver, Triton or FLA are read all the same. Each file has
its provenance beside it, and ``verify`` compares that.

Source: fla-core 0.6.0, ``fla/ops/utils/cache.py``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

from warpplan.planner.errors import InvalidInput, StoreError, WarpplanError
from warpplan.planner.values import codec
from warpplan.planner.values.device import Device, device
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.feeds import provenance
from warpplan.service.feeds.feed_report import ExportedEntry, ExportReport, SkippedRow, VerifiedEntry, VerifyReport
from warpplan.service.feeds.fla.launch_recorder import RecordedLaunch, fla_on_paper, record_launches
from warpplan.service.feeds.machine_here import machine_here
from warpplan.service.feeds.moe_facts.installed_consumer import find_consumer, require_tested
from warpplan.service.feeds.paper_launch import tuning_of
from warpplan.service.feeds.targets import FeedRequest

DESCRIPTION = "FLA's configuration files, $FLA_CONFIG_DIR, for what a job's function launches"
TARGET = "fla"
TESTED = ("0.6.0",)
PACKAGES = ("fla-core", "triton")
Fields = dict[str, Any]


def export(request: FeedRequest) -> ExportReport:
    """Write an entry for each key of each kernel that the consumer launches, beside those that are there and were made
    from the same for the same.

    Raises :class:`InvalidInput` without FLA, with one that was not tested, and for a consumer that launches nothing
    that can be predicted; :class:`StoreError` where the folder cannot be written.
    """
    from warpplan.service.feeds.fla.recorded_ranking import Reports, rank_configs

    gpu, versions, launches = _understood(request)
    entries: list[ExportedEntry] = []
    skipped: list[SkippedRow] = []
    files: dict[str, Fields] = {}
    reports: Reports = {}
    with fla_on_paper(gpu):
        for done, launch in enumerate(launches):
            request.progress(done, len(launches), launch.kernel)
            try:
                config, time_us = rank_configs(launch, request.profile, gpu, reports)[0]
            except WarpplanError as error:
                skipped.append(SkippedRow(_words(launch), "", gpu.name, str(error)))
                continue
            hashed, entry = _entry(launch, config)
            files.setdefault(launch.kernel, {})[hashed] = entry
            path, key = _path(request.out, launch.kernel), tuple(launch.key.autotune_key)
            entries.append(ExportedEntry(_words(launch), "", gpu.name, key, str(path), tuning_of(config), time_us))
    if not entries:
        raise InvalidInput(f"there is nothing to export: {skipped[0].reason}", field="consumer", value=request.consumer)
    kept: list[str] = []
    for kernel, written in files.items():
        kept += _write(_path(request.out, kernel), kernel, written, _made(request, gpu, versions))
    identity = (*sorted(versions.items()), ("device", gpu.name))
    return ExportReport(
        TARGET, request.consumer, str(request.out), identity, tuple(entries), tuple(skipped), tuple(kept)
    )


def verify(request: FeedRequest) -> VerifyReport:
    """Would FLA find an entry for each key that the consumer launches? Its own reader is asked, in its strict mode. A
    file that is stale counts as a miss, with the reason, though FLA would read it. Writes nothing; raises as
    :func:`export`."""
    gpu, versions, launches = _understood(request)
    entries = []
    with fla_on_paper(gpu), _reading(request.out):
        for launch in launches:
            path = _path(request.out, launch.kernel)
            found = _looked_up(launch)
            profile = codec.key(request.profile)
            reason = provenance.why_stale(path, machine_here(), device=gpu.name, profile=profile, versions=versions)
            hit = found is not None and not reason
            if found is None and not reason:
                reason = _why_missing(path)
            elif hit:
                reason = provenance.why_not_today(path, request.planner)
            entries.append(VerifiedEntry(_words(launch), "", gpu.name, hit, str(path), found if hit else None, reason))
    identity = (*sorted(versions.items()), ("device", gpu.name))
    return VerifyReport(TARGET, request.consumer, str(request.out), identity, tuple(entries))


def _understood(request: FeedRequest) -> tuple[Device, dict[str, str], tuple[RecordedLaunch, ...]]:
    installed = find_consumer("fla-core")
    if installed is None:
        raise InvalidInput(
            f"exporting for FLA needs the job's own FLA here: pip install fla-core=={TESTED[-1]} torch triton",
            field="target", value=TARGET,
        )  # fmt: skip
    require_tested(installed, TESTED, untested=request.untested)
    if not request.consumer:
        raise InvalidInput(
            "--target fla needs --consumer: a function that runs the job's layers on CPU tensors, FILE.py:function",
            field="consumer",
        )
    gpu = device(request.device)
    versions = {name: metadata.version(name).partition("+")[0] for name in PACKAGES}
    return gpu, versions, record_launches(request.consumer, gpu)


def _entry(launch: RecordedLaunch, config: Any) -> tuple[str, Fields]:
    """FLA's digest of the key, by its own code, and the entry."""
    from fla.ops.utils.cache import AutotuneKey

    key = launch.key.autotune_key
    fields = {
        "kwargs": dict(config.kwargs), "num_warps": config.num_warps, "num_stages": config.num_stages,
        "num_ctas": config.num_ctas, "maxnreg": config.maxnreg,
    }  # fmt: skip
    plain = AutotuneKey.normalize_autotune_key(list(key))
    return str(AutotuneKey.key_hash(key)), {"autotune_key": plain, "config": fields}


def _write(path: Path, kernel: str, entries: Mapping[str, Fields], made: provenance.EntryProvenance) -> tuple[str, ...]:
    """The copy of the file that was there, where that was not exported."""
    try:
        with provenance.one_writer(path.parent):
            older = provenance.read_beside(path)
            others: Fields = {}
            if older is not None and replace(older, digest="", date=made.date) == made:
                others = dict(json.loads(path.read_bytes())["autotune_entries"])
            body = {
                "kernel_name": kernel, "triton_version": dict(made.versions)["triton"],
                "autotune_entries": {**others, **entries},
            }  # fmt: skip
            data = json.dumps(body, indent=1).encode() + b"\n"
            kept = () if older is not None else provenance.keep_replaced(path, data)
            provenance.write_whole(path, data)
            provenance.write_beside(path, replace(made, digest=provenance.digest_of(data)))
            return kept
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(f"cannot write {path}: {reason}", field="out", value=str(path.parent)) from error


def _made(request: FeedRequest, gpu: Device, versions: Mapping[str, str]) -> provenance.EntryProvenance:
    here = machine_here()
    return provenance.planned(
        TARGET, device=gpu.name, driver=here.driver if gpu.name in here.gpus else "",
        profile=codec.key(request.profile), planner=request.planner, versions=versions,
    )  # fmt: skip


def _looked_up(launch: RecordedLaunch) -> TuningConfig | None:
    """What FLA's autotuner takes from its files for ``launch``: ``None`` where it would tune."""
    tuner = launch.tuner
    before = dict(tuner.cache)
    tuner.cache.clear()
    try:
        named = dict(zip(tuner.arg_names, launch.positional, strict=False))
        tuner.maybe_load_cached_config(key=launch.key, nargs=named, runtime_kwargs=dict(launch.keywords))
        found = tuner.cache.get(launch.key.autotune_key)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):  # such a file ends the job there
        return None
    finally:
        tuner.cache.clear()
        tuner.cache.update(before)
    return None if found is None else tuning_of(found)


@contextmanager
def _reading(out: Path) -> Iterator[None]:
    """FLA in its strict mode, reading ``out``; what it remembers of files is forgotten."""
    from fla.ops.utils import cache

    cache.load_config_file.cache_clear()
    with (
        mock.patch.dict(os.environ, {"FLA_CONFIG_DIR": str(out)}),
        mock.patch.object(cache, "FLA_CACHE_MODE", cache.FlaCacheMode.STRICT),
    ):
        try:
            yield
        finally:
            cache.load_config_file.cache_clear()


def _why_missing(path: Path) -> str:
    if not path.exists():
        return f"nothing was exported for this kernel: there is no {path.name}"
    return "no usable entry for this key: export it"


def _path(out: Path, kernel: str) -> Path:
    return out / f"{kernel}.json"


def _words(launch: RecordedLaunch) -> tuple[int | str, ...]:
    """The kernel and its key, for people."""
    return (launch.kernel, *(str(part).removeprefix("torch.") for part in launch.key.autotune_key))
