"""Caches that training and serving jobs already read, one module per format, and the routed layers' tables in a folder.

Importing it needs neither triton nor torch; a target that needs one says so when it is used. What training jobs import
themselves (:mod:`~warpplan.service.feeds.triton_remote`) needs the standard library only, so the names below are
imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpplan.service.feeds.feed_report import ExportReport, ExportRow, VerifyReport
    from warpplan.service.feeds.targets import TARGETS, FeedRequest, FeedTarget, target

__all__ = [
    "TARGETS",
    "ExportReport",
    "ExportRow",
    "FeedRequest",
    "FeedTarget",
    "VerifyReport",
    "target",
]

_MODULES = {
    "feed_report": ("ExportReport", "ExportRow", "VerifyReport"),
    "targets": ("TARGETS", "FeedRequest", "FeedTarget", "target"),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


EXPORTS = {
    "consumer_kernel": ("ConsumerKernel", "find", "Launch", "positional_first", "run_consumer", "Tensor"),
    "feed_report": ("ExportedEntry", "ExportReport", "shape_text", "SkippedRow", "VerifiedEntry", "VerifyReport"),
    "machine_here": ("driver_for", "job_machine", "Machine", "machine_here"),
    "paper_cuda": ("paper_cuda",),
    "paper_launch": ("Found", "read_entry", "target_of", "tuning_of", "write_entry"),
    "provenance": ("*",),
    "remote_artifacts": ("MAX_BYTES", "packed", "RemoteArtifacts", "warn_once"),
    "targets": ("FeedRequest", "PRICED_THEMSELVES", "require_options"),
    "triton_autotune": (
        "identity_of",
        "keep_measured",
        "load_consumer",
        "note_provenance",
        "TARGET",
        "why_missing",
        "why_stale",
        "why_unknown",
        "write_manifest",
    ),
    "triton_remote": ("TUNED_SUFFIX",),
}
