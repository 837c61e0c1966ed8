"""One training job, in one of the ways that are compared, and the seconds until each of its steps was done.

    python examples/train/job.py --way service --url http://planner:8000 --out job.json

``train.py`` starts one for each way, in a process of its own with cold caches.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.parse
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from job_products import add_planned, add_with_torch, pointer_product
from job_shapes import LlamaSizes, shapes
from job_timings import report, timed
from llama import AddProduct, Llama, Product
from made_up_text import MadeUpText
from torch.nn import functional as F

from warpplan.kernels import patch, planned, use_source
from warpplan.kernels.linear_layer.products import hopper
from warpplan.planner.errors import MeasurementFailed
from warpplan.service.client import Client, ClientError, listen
from warpplan.service.listening import environment

sys.path.insert(0, str(Path(__file__).parents[1] / "common"))

from planning_service import PLANNED_FOR, ServedConfigs
from run_record import OneLineParser

DTYPE = "bfloat16"
SMALL = LlamaSizes(batch=4, length=32, width=64, heads=2, hidden=128, layers=2, vocabulary=64)
GPU_STEPS, CPU_STEPS = 60, 15
LEARNING_RATE = 0.6
"""Times 1 / width: 3e-4 at a width of 2048; wider layers take smaller steps (Yang et al. 2022)."""
WARM_UP_STEPS = 10
"""Steps over which the learning rate grows from 0, at most a fifth of all."""


@dataclass(frozen=True)
class Way:
    """How a job multiplies: ``mode`` is torch.compile's, ``None`` runs every operation by itself; ``plans`` says
    whether our kernels run, under :class:`planned` the pointer kernel too; ``serves`` whether a service is asked."""

    add_product: AddProduct = add_with_torch
    head_product: Product = pointer_product
    mode: str | None = None
    plans: bool = False
    serves: bool = False


PLAIN, TUNED, ALONE, SERVED, SECOND = "plain torch", "max-autotune", "no service", "service", "second run"
WAYS = {
    PLAIN: Way(head_product=F.linear),
    TUNED: Way(mode="max-autotune-no-cudagraphs"),
    ALONE: Way(add_planned, mode="default", plans=True),
    SERVED: Way(add_planned, mode="default", plans=True, serves=True),
    SECOND: Way(add_planned, mode="default", plans=True, serves=True),
}
"""The last two differ in what the service knows: the second run has the plans of a calibrated profile."""


class Learner:
    """A model and its optimizer. The same seed gives the same weights, whatever the way and the dtype of the matrices;
    the norms' weights are float32."""

    def __init__(self, sizes: LlamaSizes, way: Way, device: str, dtype: torch.dtype = torch.bfloat16) -> None:
        torch.manual_seed(1)
        with torch.device(device):
            self.model = Llama(sizes, way.add_product, way.head_product)
        for weight in self.model.parameters():
            if weight.dim() == 2:
                weight.data = weight.data.bfloat16().to(dtype)  # float32 starts from equal weights
        if way.plans:
            patch(self.model)
        if way.mode is not None:
            # Without a GPU the graphs are traced as they are there, and not written in C++, which takes a minute.
            self.model.compile_around_head(**({"mode": way.mode} if device == "cuda" else {"backend": "aot_eager"}))
        self.rate = LEARNING_RATE / sizes.width
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=self.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=device == "cuda"
        )

    def train(self, text: MadeUpText, steps: int, started: float) -> tuple[list[float], list[float]]:
        """The loss of every step, and the seconds since ``started`` when it was done."""
        losses, seconds = [], []
        warm_up = max(1, min(WARM_UP_STEPS, steps // 5))
        for number in range(steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate * min(1.0, (number + 1) / warm_up)
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.model.loss(*text.batch(number))
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
            if text.device == "cuda":
                torch.cuda.synchronize()  # the loss is there before the update is
            seconds.append(time.monotonic() - started)
        return losses, seconds


def run(
    name: str, sizes: LlamaSizes, steps: int, device: str, url: str | None, started: float, *, only_train: bool = False
) -> dict[str, Any]:
    """Train in the way called ``name``; ``started`` is when its process was, by ``time.monotonic()``. With
    ``only_train`` there is no curve in float32 and nothing is timed afterwards."""
    way = WAYS[name]
    imported = time.monotonic() - started
    gpu = torch.cuda.get_device_name() if device == "cuda" else PLANNED_FOR
    served = fetched(url, sizes, gpu) if way.serves and url is not None else None
    parts = {"imports": imported, "configurations": time.monotonic() - started - imported}
    result: dict[str, Any] = {"way": name, "device": gpu if device == "cuda" else "CPU", "parts": parts}
    with ExitStack() as scope:
        listener = None
        if served is not None:
            scope.enter_context(use_source(served))
            listener = scope.enter_context(listen(url))
            result["configs"] = list(served.answers.values())
        text = MadeUpText(sizes, device)
        with planned(url if served is not None else None) if way.plans else ExitStack():
            learner = Learner(sizes, way, device)
            result["losses"], result["seconds"] = learner.train(text, steps, started)
        del learner
        if name == PLAIN and not only_train:
            exact = Learner(sizes, way, device, torch.float32)
            result["exact"], _ = exact.train(text, steps, started)
        if served is not None and not only_train:
            result["measured"] = measured(served, gpu, device)
    if listener is not None:
        result["tunings"] = {"posted": listener.posted, "dropped": listener.dropped, "lost": listener.lost}
    result["environment"] = environment()
    return result


def fetched(url: str, sizes: LlamaSizes, gpu: str) -> ServedConfigs | None:
    """The configurations of all products, in one batch; ``None``, with a line that says why, where there are none."""
    served = ServedConfigs(url)
    try:
        served.fetch(shapes(sizes), DTYPE, gpu)
    except ClientError as error:
        print(f"{error}; the job goes on with configurations ranked in its own process", file=sys.stderr)
        return None
    return served


def measured(served: ServedConfigs, gpu: str, device: str) -> dict[str, Any]:
    """Time the products and report them: ``taken`` counts what the service recorded, ``reason`` why that is nothing."""
    if device != "cuda" or not hopper(torch.cuda.current_device()):
        return {"taken": 0, "reason": "the planned kernels run on Hopper GPUs alone"}
    wanted = {key: served(*key, DTYPE, gpu) for key in served.answers}
    try:
        times = timed(wanted, DTYPE, gpu)
        client = Client(served.url, timeout=10.0)
        taken, refused = report(client, times, DTYPE, gpu, environment(torch.cuda.current_device()), uuid.uuid4().hex)
    except (MeasurementFailed, ClientError) as error:
        return {"taken": 0, "reason": str(error)}
    rows = [{**asdict(time), "config": time.config.as_dict()} for time in times]
    return {"taken": taken, "refused": refused, "times": rows}


def add_options(parser: argparse.ArgumentParser) -> None:
    """What ``train.py`` takes as well."""
    parser.add_argument("--steps", type=int, help=f"training steps ({GPU_STEPS}; {CPU_STEPS} on a CPU)")
    for name in ("batch", "length", "layers"):
        parser.add_argument(f"--{name}", type=int, help=f"of the model ({getattr(LlamaSizes, name)} on a GPU)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")


def checked(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[LlamaSizes, int]:
    """The sizes and the number of steps. Ends with one line and status 2 for options that cannot be."""
    for name in ("steps", "batch", "length", "layers"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            parser.error(f"--{name} {value}: expected 1 or more")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here")
    if arguments.url is not None and urllib.parse.urlsplit(arguments.url).scheme not in ("http", "https"):
        parser.error(f"--url {arguments.url}: expected http://host:port")
    sizes, steps = (LlamaSizes(), GPU_STEPS) if arguments.device == "cuda" else (SMALL, CPU_STEPS)
    given = {f.name: v for f in fields(sizes) if (v := getattr(arguments, f.name, None)) is not None}
    return replace(sizes, **given), arguments.steps or steps


def main(words: Sequence[str] | None = None) -> int:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=tuple(WAYS), required=True)
    parser.add_argument("--url", help="of a running warpplan serve")
    parser.add_argument("--out", type=Path, required=True, help="file for the result")
    parser.add_argument("--started", type=float, help="when the process was started, by time.monotonic()")
    parser.add_argument("--only-train", action="store_true", help="no losses in float32, no times of products")
    add_options(parser)
    arguments = parser.parse_args(words)
    sizes, steps = checked(parser, arguments)
    if WAYS[arguments.way].serves and arguments.url is None:
        parser.error(f"--way {arguments.way!r} needs --url")
    started = time.monotonic() if arguments.started is None else arguments.started
    if arguments.device == "cpu":
        torch.set_num_threads(1)  # products so small that threads would only wait for one another
    result = run(arguments.way, sizes, steps, arguments.device, arguments.url, started, only_train=arguments.only_train)
    arguments.out.write_text(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
