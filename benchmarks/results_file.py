"""Read and write results files: rows under a head that says what was run, on what, when."""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
"""The folder of the committed results files."""


def head(bench: str, device: str) -> dict[str, Any]:
    """``{"bench", "device", "versions", "date", "command"}``; versions of the installed parts that matter."""
    versions = {"python": platform.python_version()}
    for package in ("warpplan", "torch", "triton", "numpy", "scipy", "ortools"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if "torch" in sys.modules:
        import torch

        versions["torch"] = str(torch.__version__)
        versions["cuda"] = str(torch.version.cuda)
    if "triton" in sys.modules:
        import triton

        versions["triton"] = triton.__version__
    return {
        "bench": bench,
        "device": device,
        "versions": versions,
        "date": now(),
        "command": shlex.join(["python", *sys.argv]),
    }


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def write(path: Path, result: dict[str, Any]) -> None:
    """One row a line, in a folder that is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=None, separators=(",", ":")).replace('{"kernel"', '\n{"kernel"') + "\n")
