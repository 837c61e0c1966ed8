"""The layer's configurations, asked of a running ``warpplan serve``: what a training job does at its start."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from layer import LayerSizes

from warpplan.kernels.declaration import Shape
from warpplan.kernels.grouped_gemm.autograd import rounded_rows
from warpplan.kernels.registry import kernel
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.client import Client

PRODUCTS = ("forward", "dgrad", "wgrad")
PLANNING_S = 60.0
"""Seconds to wait for an answer: a shape that the service does not know is planned while the job waits."""


class ServiceConfigs:
    """A source of configurations for :func:`warpplan.kernels.plan_source.use_source`: every rank of a job that asks the
    same service runs the same kernels."""

    def __init__(self, url: str) -> None:
        self.client = Client(url, timeout=PLANNING_S)
        self.answers: dict[Shape, dict[str, Any]] = {}

    def __call__(self, name: str, shape: Shape, dtype: str, device: str) -> TuningConfig:
        sizes = kernel(name).declaration.named(shape)
        answer = self.client.config(name, dtype=dtype, device=device, **sizes)
        self.answers[shape] = answer
        return TuningConfig.of(**answer["config"])


def shapes(sizes: LayerSizes) -> list[Shape]:
    """The six grouped products of a training step: both projections, each forward and for its two gradients. The load
    balancing loss keeps the groups alike, so the plans are asked for as balanced, and for the rows that autograd rounds
    to."""
    declaration = kernel("grouped_gemm").declaration
    rows = rounded_rows(sizes.rows)
    return [
        declaration.parse_shape({"M": rows, "N": n, "K": k, "G": sizes.experts, "product": product})
        for n, k in ((2 * sizes.hidden, sizes.width), (sizes.width, sizes.hidden))
        for product in PRODUCTS
    ]


def describe(shape: Shape, answer: dict[str, Any]) -> str:
    """One line: the shape, the kernel's predicted time, the configuration."""
    asked = " ".join(f"{name}={value}" for name, value in kernel("grouped_gemm").declaration.named(shape).items())
    kwargs = " ".join(f"{name}={value}" for name, value in answer["config"]["kwargs"].items())
    return f"{asked}: {answer['predicted']['time_us']:.0f} µs predicted; {kwargs}"


@contextmanager
def service(url: str | None) -> Iterator[str]:
    """``url``, or that of a service started for as long as the block runs."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "warpplan.service.cli", "serve", "--port", "0"]
        server = subprocess.Popen([*command, "--store", f"{folder}/plans.sqlite"], stderr=subprocess.PIPE, text=True)
        try:
            said = ""
            for line in server.stderr:  # "warpplan: serving … on http://127.0.0.1:PORT …", once it listens
                said += line
                if address := re.search(r"http://\S+", line):
                    break
            else:
                raise RuntimeError(f"warpplan serve did not start: {said.strip() or 'it ended without a word'}")
            yield address[0]
        finally:
            server.terminate()
            server.communicate(timeout=20)
