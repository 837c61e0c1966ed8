"""``warpplan tune``: the configurations of somebody's kernel, best first, for a shape. Needs no GPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpplan.planner.errors import InvalidInput
from warpplan.service.cli.shared_options import DeviceName, Json, ProfileFile, open_workflow, print_json

if TYPE_CHECKING:
    from warpplan.service.tuning.launch_ranking import TunedShape

SCHEMA = "warpplan/tune-1"
SHOWN = 10

KernelSpec = Annotated[str, typer.Argument(help="FILE.py:kernel or package.module:kernel; the file is run.")]
Shapes = Annotated[
    list[str],
    typer.Option("--shapes", help='Sizes by the names that the signature and grid use: "M=4096 N=4096 K=4096".'),
]
Signature = Annotated[
    str,
    typer.Option(help='The other parameters, as for `warpplan ws`: "a=*bf16, stride_am=K, ACTIVATION=None".'),
]
Grid = Annotated[
    str, typer.Option(help='Programs along each axis: "cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)"; NUM_SMS is known.')
]
Space = Annotated[
    str, typer.Option(help='Instead of the kernel\'s own list: "BLOCK_M=64,128 num_warps=4,8 num_stages=3,4".')
]


def tune(
    kernel: KernelSpec,
    shapes: Shapes,
    grid: Grid,
    signature: Signature = "",
    space: Space = "",
    device: DeviceName = None,
    profile: ProfileFile = None,
    limit: Annotated[int, typer.Option(min=1, help="Configurations to show for each shape.")] = SHOWN,
    as_json: Json = False,
) -> None:
    """Rank a Triton kernel's configurations by predicted time, as Triton compiles it, without running any.

    Takes the list of its @triton.autotune, or --space. Predictions order one kernel's configurations; they were not
    fitted on kernels that load through pointers.
    """
    from warpplan.planner.values.device import device as known_device
    from warpplan.service.tuning import launch_ranking
    from warpplan.service.workflow.specialization import kernel_at

    sizes = [launch_ranking.shape_named(text.replace(",", " ").split()) for text in shapes]
    function = kernel_at(kernel)
    configs = launch_ranking.space(space) if space else launch_ranking.listed_configs(kernel)
    if not configs:
        raise InvalidInput(
            f"{kernel} is not under @triton.autotune: give the configurations with --space", field="space", value=kernel
        )
    profiles = open_workflow(None, profile, device=device).profiles
    name = profiles.default_device
    gpu = known_device(name)
    if gpu.capability != launch_ranking.HOPPER:
        raise InvalidInput(
            f"device {name}: predictions are for sm_{launch_ranking.HOPPER} GPUs", field="device", value=name,
            limit=launch_ranking.HOPPER,
        )  # fmt: skip
    task = launch_ranking.TuningTask(kernel, signature, grid, configs)
    tuner = launch_ranking.Tuner(task, function, profiles.of(name).profile, gpu)
    tuned = [tuner.rank(shape) for shape in sizes]
    if as_json:
        return print_json({"schema": SCHEMA, "kernel": kernel, "device": name, "shapes": list(map(_plain, tuned))})
    for found in tuned:
        _show(Path(kernel).name, found, limit)
    return None


def _show(kernel: str, tuned: TunedShape, limit: int) -> None:
    from warpplan.service.views.sections import Section
    from warpplan.service.views.text import section_lines

    rows = tuple(
        (
            f"{t.time.time_us:.1f}", " ".join(f"{n}={v}" for n, v in t.config.kwargs), t.config.num_warps,
            t.config.num_stages, t.time.bound_by, t.time.resident, t.programs, f"{t.dram_bytes / 1e6:.1f}",
        )
        for t in tuned.ranked[:limit]
    )  # fmt: skip
    notes = [f"left out: {' '.join(f'{n}={v}' for n, v in c.kwargs)}: {why}" for c, why in tuned.refused]
    if any(not t.traffic_known for t in tuned.ranked):
        notes.append("some addresses are looked up in memory: what they load is counted as never shared")
    if tuned.missing:
        notes.append(f"priced without a measurement of its kind: {', '.join(tuned.missing)}")
    shape = " ".join(f"{name}={size}" for name, size in tuned.shape.items())
    head = ("us", "configuration", "warps", "stages", "bound by", "on an SM", "programs", "DRAM MB")
    title = f"{kernel} {shape}: {len(tuned.ranked)} configurations, best first"
    for line in section_lines(Section(title, head, rows, tuple(notes))):
        print(line)


def _plain(tuned: TunedShape) -> dict[str, Any]:
    ranked = [
        {
            "config": t.config.as_dict(), "predicted_us": t.time.time_us if math.isfinite(t.time.time_us) else None,
            "bound_by": t.time.bound_by, "parts_us": dict(t.time.parts), "resident": t.time.resident,
            "programs": t.programs, "dram_bytes": t.dram_bytes, "traffic_known": t.traffic_known,
        }
        for t in tuned.ranked
    ]  # fmt: skip
    refused = [{"config": config.as_dict(), "reason": reason} for config, reason in tuned.refused]
    return {"shape": tuned.shape, "ranked": ranked, "refused": refused, "missing_costs": list(tuned.missing)}
