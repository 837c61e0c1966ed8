"""The configurations of a training job, asked of a running ``warpplan serve`` in one batch: what a job does first."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from warpplan.kernels.declaration import Shape
from warpplan.kernels.registry import kernel
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.client import Client, ClientError

PLANNING_S = 60.0
"""Seconds to wait for an answer: a shape that the service does not know is planned while the job waits."""
PLANNED_FOR = "NVIDIA H200"
"""The device whose configurations are shown where there is no GPU; the products then run by their reference."""


class ServiceNotStarted(Exception):
    """A service of our own ended before it listened; the text is what it said."""


class ServedConfigs:
    """A source of configurations for :func:`warpplan.kernels.plan_source.use_source`: every rank of a job that asks the
    same service runs the same kernels. ``answers`` has the service's, by kernel and shape."""

    def __init__(self, url: str) -> None:
        self.url, self.client = url, Client(url, timeout=PLANNING_S)
        self.answers: dict[tuple[str, Shape], dict[str, Any]] = {}

    def fetch(self, wanted: Sequence[tuple[str, Shape]], dtype: str, device: str) -> None:
        """Ask for all of ``wanted`` in one request. Raises :class:`ClientError` where there is no service, and for the
        first shape that it does not plan."""
        items = [
            {"kernel": name, "shape": kernel(name).declaration.named(shape), "dtype": dtype, "device": device}
            for name, shape in wanted
        ]
        for key, answer in zip(wanted, self.client.configs(items) or (), strict=True):
            if isinstance(answer, ClientError):
                raise answer
            self.answers[key] = answer

    def __call__(self, name: str, shape: Shape, dtype: str, device: str) -> TuningConfig:
        if (name, shape) not in self.answers:
            self.fetch([(name, shape)], dtype, device)
        return TuningConfig.of(**self.answers[name, shape]["config"])


def describe(name: str, shape: Shape, answer: dict[str, Any]) -> str:
    """One line: the kernel and shape, the predicted time, the configuration."""
    asked = " ".join(f"{size}={value}" for size, value in kernel(name).declaration.named(shape).items())
    kwargs = " ".join(f"{constant}={value}" for constant, value in answer["config"]["kwargs"].items())
    return f"{name} {asked}: {answer['predicted']['time_us']:.0f} µs predicted; {kwargs}"


@contextmanager
def service(url: str | None = None, *, store: Path | None = None, profile: Path | None = None) -> Iterator[str]:
    """``url``, or that of a service started for as long as the block runs, over ``store`` and with ``profile`` where
    they are given. Raises :class:`ServiceNotStarted`."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "warpplan.service.cli", "serve", "--port", "0"]
        command += [
            "--store",
            str(store or f"{folder}/plans.sqlite"),
            *(["--profile", str(profile)] if profile else []),
        ]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            said = ""
            for line in server.stderr:  # "warpplan: serving … on http://127.0.0.1:PORT …", once it listens
                said += line
                if address := re.search(r"http://\S+", line):
                    break
            else:
                raise ServiceNotStarted(f"warpplan serve did not start: {said.strip() or 'it ended without a word'}")
            yield address[0]
        finally:
            server.terminate()
            server.communicate(timeout=20)
