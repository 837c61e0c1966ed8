"""Train a mixture-of-experts layer on planned kernels, beside the same layer on torch's.

    python examples/moe/train.py --out build/moe

asks a warpplan service for the six configurations of the layer's grouped products (it starts one unless --url or
WARPPLAN_URL names one), trains the layer with four implementations of these products on the same data, compares their
losses and gradients with float32, times their steps, and writes moe.json and moe.png. Without a GPU it runs small.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from data import Teacher
from experts import PRODUCTS, expert_loop
from layer import LayerSizes, MoELayer
from measure import StepTimes, Student, deviations, step_times, train
from picture import EXACT, draw
from plans import shapes

from warpplan.kernels.plan_source import use_source

sys.path.insert(0, str(Path(__file__).parents[1] / "common"))

from planning_service import PLANNED_FOR, ServedConfigs, describe, service
from run_record import NOISE_FACTOR, OneLineParser, head, loss_gap

SMALL = LayerSizes(tokens=256, width=64, hidden=32, experts=8, top_k=2)


def main() -> int:
    arguments = parse()
    cuda = arguments.device == "cuda"
    if not cuda:
        torch.set_num_threads(1)  # products so small that threads would only wait for one another
    sizes = LayerSizes() if cuda else SMALL
    sizes = replace(sizes, **{n: v for n in ("tokens", "experts") if (v := getattr(arguments, n)) is not None})
    steps = arguments.steps or (300 if cuda else 20)
    name = torch.cuda.get_device_name() if cuda else "CPU"
    print(f"{name}: {sizes}")
    with service(arguments.url) as url:
        configs = ServedConfigs(url)
        configs.fetch(shapes(sizes), "bfloat16", name if cuda else PLANNED_FOR)
        for (kernel, shape), answer in configs.answers.items():
            print(describe(kernel, shape, answer))
        with use_source(configs, on_error="raise"):
            result = run(sizes, steps, arguments.device)
    rows, good = judged(result)
    result |= {"sizes": asdict(sizes), "steps": steps, "configs": list(configs.answers.values()), "rows": rows}
    result = {**head("moe", name), **result}
    print(table(rows))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "moe.json").write_text(json.dumps(result) + "\n")
    draw(result, arguments.out / "moe.png")
    print(f"{arguments.out}/moe.json and moe.png written")
    return 0 if good else 1


def parse() -> argparse.Namespace:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="training steps (300; 20 on a CPU)")
    parser.add_argument("--tokens", type=int, help="tokens of a step")
    parser.add_argument("--experts", type=int)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--url", default=os.environ.get("WARPPLAN_URL"), help="of a running warpplan serve")
    parser.add_argument("--out", type=Path, default=Path("build/moe"), help="folder for moe.json and moe.png")
    return parser.parse_args()


def run(sizes: LayerSizes, steps: int, device: str) -> dict[str, Any]:
    """Everything that is measured."""
    teacher = Teacher(sizes, device)
    errors = deviations(sizes, PRODUCTS, teacher)
    students = {name: Student(sizes, product, device, torch.bfloat16) for name, product in PRODUCTS.items()}
    exact = {EXACT: Student(sizes, expert_loop, device, torch.float32)}
    losses = train({**students, **exact}, teacher, steps)
    exact.clear()
    quick = {} if device == "cuda" else {"rounds": 1, "settle_s": 0.0, "reads": 3}
    times = step_times(students, teacher, **quick)
    layer = students["warpplan"].layer
    return {"losses": losses, "errors": errors, "times": times, "busiest_expert": busiest(layer, teacher)}


def busiest(layer: MoELayer, teacher: Teacher) -> float:
    """Rows of the busiest expert over the mean: how far from balanced the trained router's groups are."""
    tokens, _ = teacher.batch(0)
    with torch.no_grad():
        ends = layer.router(tokens).ends
    rows = ends.diff(prepend=ends.new_zeros(1)).float()
    return float(rows.max() / rows.mean())


def judged(result: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """A row for each implementation, ``ratio`` being its time over warpplan's as the median of the rounds' own ratios;
    and whether warpplan is within the noise of bfloat16."""
    times: dict[str, StepTimes] = result.pop("times")
    losses, errors = result["losses"], result["errors"]
    rows = [
        {
            "name": name,
            "step_ms": found.step,
            "gradients_ms": found.gradients,
            "ratio": statistics.median(a / b for a, b in zip(found.step, times["warpplan"].step, strict=True)),
            "loss": losses[name][-1],
            "loss_gap": loss_gap(losses[name], losses[EXACT]),
            "error": max(errors[name].values()),
        }
        for name, found in times.items()
    ]
    by_name = {row["name"]: row for row in rows}
    limits = {key: NOISE_FACTOR * by_name["expert loop"][key] for key in ("loss_gap", "error")}
    return rows, all(by_name["warpplan"][key] <= limit for key, limit in limits.items())


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'':18} {'step ms':>8} {'fwd+bwd':>8} {'ratio':>6} {'last loss':>9} {'loss gap':>9} {'error':>8}"]
    for row in rows:
        whole, gradients = statistics.median(row["step_ms"]), statistics.median(row["gradients_ms"])
        lines.append(
            f"{row['name']:18} {whole:8.2f} {gradients:8.2f} {row['ratio']:6.2f} {row['loss']:9.4f} "
            f"{row['loss_gap']:9.1e} {row['error']:8.1e}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
