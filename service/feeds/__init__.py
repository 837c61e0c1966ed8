"""Caches that training and serving jobs already read, one module per format, and the routed layers' tables in a folder.

Importing it needs neither triton nor torch; a target that needs one says so when it is used.
"""

from __future__ import annotations

from warpplan.service.feeds.feed_report import ExportReport, ExportRow, VerifyReport
from warpplan.service.feeds.targets import TARGETS, FeedRequest, FeedTarget, target
from warpplan.service.feeds.triton_autotune import Options, export_triton, verify_triton

__all__ = [
    "TARGETS",
    "ExportReport",
    "ExportRow",
    "FeedRequest",
    "FeedTarget",
    "Options",
    "VerifyReport",
    "export_triton",
    "target",
    "verify_triton",
]

EXPORTS = {
    "consumer_kernel": ("find",),
    "feed_report": ("ExportedEntry", "ExportReport", "VerifiedEntry", "VerifyReport"),
    "targets": ("FeedRequest",),
}
