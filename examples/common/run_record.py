"""What the examples' programs have in common: how they take options, compare losses and date a result."""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any, NoReturn

NOISE_FACTOR = 2.0
"""An implementation is right if it deviates from float32 at most this many times as far as torch's own products in
bfloat16 do: both round each product once, but may add in other orders."""


class OneLineParser(argparse.ArgumentParser):
    """Says in one line what is wrong with the options, and ends with status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def loss_gap(curve: Sequence[float], exact: Sequence[float]) -> float:
    """Root mean square of the relative differences of two loss curves."""
    return (sum((a / b - 1) ** 2 for a, b in zip(curve, exact, strict=True)) / len(curve)) ** 0.5


def versions() -> dict[str, str]:
    """Of Python, and of what is installed of the packages that times depend on."""
    found = {"python": sys.version.split()[0]}
    for package in ("warpplan", "torch", "triton"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def head(bench: str, device: str) -> dict[str, Any]:
    """What a result begins with: device, versions, date and command."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    command = shlex.join(["python", *sys.argv])
    return {"bench": bench, "device": device, "versions": versions(), "date": date, "command": command}
