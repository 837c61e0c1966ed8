"""Helion's cache of tuned configurations: ``$HELION_CACHE_DIR/<digest>.best_config``.

``--consumer FILE.py:function`` is a function of the job that calls its kernels on tensors of the job's sizes
(:mod:`~.recorded_kernels`). Each key gets the configuration whose time is predicted to be shortest
(:mod:`~.config_search`), written by Helion's own cache.

Helion's key has the GPU's name, CUDA's release, the kernel's source and its space; not the driver, nor the versions of
Triton, torch and Helion. Each entry has its provenance beside it, and ``verify`` compares that.

Source: helion 1.4.0 and 1.5.1, ``helion/autotuner/local_cache.py``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

from warpplan.kernels.compiler.exceptions import reason_of
from warpplan.planner.errors import InvalidInput, StoreError, WarpplanError
from warpplan.planner.values import codec
from warpplan.planner.values.device import device
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.feeds import provenance
from warpplan.service.feeds.feed_report import ExportedEntry, ExportReport, SkippedRow, VerifiedEntry, VerifyReport
from warpplan.service.feeds.helion.recorded_kernels import RecordedKernel, helion_on_paper, record_kernels
from warpplan.service.feeds.machine_here import machine_here
from warpplan.service.feeds.moe_facts.installed_consumer import find_consumer, require_tested
from warpplan.service.feeds.targets import FeedRequest

DESCRIPTION = "Helion's .best_config files, $HELION_CACHE_DIR, for the kernels that a job's function calls"
TARGET = "helion"
TESTED = ("1.4.0", "1.5.1")
PACKAGES = ("helion", "torch", "triton")
ADDRESS = " at 0x"
"""In the text of a key: that of an object, such as a function that is passed to a kernel."""
TOLD = ("block_sizes", "indexing", "pid_type")
"""Of a configuration's settings those that a report shows; the entry has them all."""


def export(request: FeedRequest) -> ExportReport:
    """Write an entry for each kernel and key that the consumer calls.

    Raises :class:`InvalidInput` without Helion, with one that was not tested, and for a consumer that calls nothing
    that can be predicted; :class:`StoreError` where the folder cannot be written.
    """
    from warpplan.service.feeds.fla.recorded_ranking import Reports
    from warpplan.service.feeds.helion.config_search import search

    versions = _versions(request)
    gpu = device(request.device)
    entries: list[ExportedEntry] = []
    skipped: list[SkippedRow] = []
    kept: list[str] = []
    reports: Reports = {}
    with helion_on_paper(gpu), _cache_in(request.out):
        kernels = record_kernels(request.consumer, gpu)
        for done, kernel in enumerate(kernels):
            request.progress(done, len(kernels), kernel.name)
            try:
                cache = _cache(kernel)
                _require_read(kernel, cache)
                config, time_us = search(kernel, request.profile, gpu, reports)
                path = Path(cache._get_local_cache_path())
                kept += _put(path, cache, config, _made(request, gpu.name, versions))
            except StoreError:
                raise
            except Exception as error:  # Helion's code runs here: another kernel's entry may be had
                skipped.append(SkippedRow(kernel.words, "", gpu.name, reason_of(error, WarpplanError)))
                continue
            key = (str(cache.key.stable_hash()),)
            entries.append(ExportedEntry(kernel.words, "", gpu.name, key, str(path), _tuning(config), time_us))
    if not entries:
        raise InvalidInput(f"there is nothing to export: {skipped[0].reason}", field="consumer", value=request.consumer)
    identity = (*sorted(versions.items()), ("device", gpu.name))
    return ExportReport(
        TARGET, request.consumer, str(request.out), identity, tuple(entries), tuple(skipped), tuple(kept)
    )


def verify(request: FeedRequest) -> VerifyReport:
    """Would Helion find an entry for each kernel and key that the consumer calls? Its own cache is asked. An entry that
    is stale counts as a miss, with the reason, though Helion would take it. Writes nothing; raises as
    :func:`export`."""
    versions = _versions(request)
    gpu = device(request.device)
    entries = []
    with helion_on_paper(gpu), _cache_in(request.out):
        for kernel in record_kernels(request.consumer, gpu):
            try:
                entries.append(_verified(request, kernel, gpu.name, versions))
            except Exception as error:  # Helion's code runs here: other kernels' entries may be read
                reason = reason_of(error, WarpplanError)
                entries.append(VerifiedEntry(kernel.words, "", gpu.name, False, "", None, reason))
    identity = (*sorted(versions.items()), ("device", gpu.name))
    return VerifyReport(TARGET, request.consumer, str(request.out), identity, tuple(entries))


def _verified(request: FeedRequest, kernel: RecordedKernel, gpu: str, versions: Mapping[str, str]) -> VerifiedEntry:
    cache = _cache(kernel)
    path = Path(cache._get_local_cache_path())
    found = cache.get()
    reason = _why_never_read(kernel, cache)
    if not reason and found is None:
        reason = "no usable entry for this key: export it"
    elif not reason:
        profile = codec.key(request.profile)
        reason = provenance.why_stale(path, machine_here(), device=gpu, profile=profile, versions=versions)
    hit = not reason
    if hit:
        reason = provenance.why_not_today(path, request.planner)
    return VerifiedEntry(kernel.words, "", gpu, hit, str(path), _tuning(found) if hit else None, reason)


def _versions(request: FeedRequest) -> dict[str, str]:
    installed = find_consumer("helion")
    if installed is None:
        raise InvalidInput(
            f"exporting for Helion needs the job's own Helion here: pip install helion=={TESTED[-1]} torch triton",
            field="target", value=TARGET,
        )  # fmt: skip
    require_tested(installed, TESTED, untested=request.untested)
    try:
        import helion as _  # noqa: F401  # only whether it can be
    except ImportError as error:
        raise InvalidInput(
            f"Helion {installed.version} cannot be imported: {error}. With torch 2.11 Helion 1.4.0 can, with 2.13 1.5",
            field="target", value=TARGET,
        ) from error  # fmt: skip
    if not request.consumer:
        raise InvalidInput(
            "--target helion needs --consumer: a function that calls the job's kernels on tensors of the job's sizes, "
            "FILE.py:function",
            field="consumer",
        )
    return {name: metadata.version(name).partition("+")[0] for name in PACKAGES}


def _why_never_read(kernel: RecordedKernel, cache: Any) -> str:
    """Why no job finds the entry; "" where one does."""
    if ADDRESS in repr(cache.key):
        return "Helion's key holds an object's address, and no other process finds the entry: pass no function"
    wanted = kernel.bound.settings.autotune_cache
    return "" if wanted == type(cache).__name__ else f"the job reads {wanted}; entries are for {type(cache).__name__}"


def _require_read(kernel: RecordedKernel, cache: Any) -> None:
    if reason := _why_never_read(kernel, cache):
        raise InvalidInput(f"{kernel.name}: {reason}", field="consumer", value=kernel.name)


def _cache(kernel: RecordedKernel) -> Any:
    from helion.autotuner.local_cache import LocalAutotuneCache

    return LocalAutotuneCache(kernel.search())


@contextmanager
def _cache_in(out: Path) -> Iterator[None]:
    """Helion's caches in ``out``; what is compiled meanwhile, which Triton would keep there too, goes."""
    with (
        tempfile.TemporaryDirectory(prefix="warpplan-") as compiled,
        mock.patch.dict(os.environ, {"HELION_CACHE_DIR": str(out), "TRITON_CACHE_DIR": compiled}),
    ):
        yield


def _put(path: Path, cache: Any, config: Any, made: provenance.EntryProvenance) -> tuple[str, ...]:
    """The copy of the entry that was there, where that was not exported."""
    try:
        with provenance.one_writer(path.parent):
            kept = () if provenance.read_beside(path) is not None else provenance.keep_replaced(path)
            cache.put(config)
            provenance.write_beside(path, replace(made, digest=provenance.digest_of(path.read_bytes())))
            return kept
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(f"cannot write {path}: {reason}", field="out", value=str(path.parent)) from error


def _made(request: FeedRequest, gpu: str, versions: Mapping[str, str]) -> provenance.EntryProvenance:
    here = machine_here()
    return provenance.planned(
        TARGET, device=gpu, driver=here.driver if gpu in here.gpus else "", profile=codec.key(request.profile),
        planner=request.planner, versions=versions,
    )  # fmt: skip


def _tuning(config: Any) -> TuningConfig:
    """What pricing tells apart, in Helion's names; lists as text."""
    settings = config.config
    told = [(name, settings.get(name)) for name in TOLD]
    values = [(name, value if isinstance(value, str) else ",".join(map(str, value))) for name, value in told if value]
    return TuningConfig(tuple(values), int(settings.get("num_warps", 4)), int(settings.get("num_stages", 1)))
