"""``warpplan tune``: the configurations of somebody's kernel, best first, for a shape; kept, and measured on a GPU."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpplan.planner.errors import InvalidInput
from warpplan.service.cli.shared_options import (
    LONGEST_S,
    DeviceName,
    Json,
    ProfileFile,
    open_workflow,
    print_json,
    user_output_on_stderr,
)

if TYPE_CHECKING:
    from warpplan.planner.values.tuning import TuningConfig
    from warpplan.service.store.answer_store import Store
    from warpplan.service.store.tuned.kernel_answer_store import KernelAnswer
    from warpplan.service.tuning.kernel_choice import KernelChoice
    from warpplan.service.tuning.launch_jobs import LaunchTiming
    from warpplan.service.tuning.launch_ranking import TunedShape, Tuner

SCHEMA = "warpplan/tune-1"
SHOWN = 10
NONE_RUNS = 1
"""Exit status where none of a shape's configurations can run."""

KernelSpec = Annotated[str, typer.Argument(help="FILE.py:kernel or package.module:kernel; the file is run.")]
Shapes = Annotated[
    list[str],
    typer.Option("--shapes", help='Sizes by the names that the signature and grid use: "M=4096 N=4096 K=4096".'),
]
Signature = Annotated[
    str,
    typer.Option(
        help='The other parameters, as for `warpplan ws`: "a=*bf16, stride_am=K, ACTIVATION=None". '
        'How much lies behind a pointer, which --measure needs and what is looked up is bounded by: "a=*bf16[M * K]".'
    ),
]
Grid = Annotated[
    list[str],
    typer.Option("--grid", help='Programs along each axis: "cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)"; NUM_SMS is known.'),
]
Space = Annotated[
    str, typer.Option(help='Instead of the kernel\'s own list: "BLOCK_M=64,128 num_warps=4,8 num_stages=3,4".')
]
KeepingStore = Annotated[
    str | None,
    typer.Option(
        help="Keep the answers here: SQLite file or postgresql:// URL. Configurations are ranked anew each time; times "
        "that are kept here choose among them."
    ),
]


def tune(
    kernel: KernelSpec,
    shapes: Shapes,
    grid: Grid,
    signature: Signature = "",
    space: Space = "",
    device: DeviceName = None,
    profile: ProfileFile = None,
    store: KeepingStore = None,
    measure: Annotated[
        int, typer.Option(min=0, help="Measure the first N configurations of each shape here; needs a GPU and torch.")
    ] = 0,
    time_limit: Annotated[
        float, typer.Option(min=1, max=LONGEST_S, help="Seconds that one measured configuration may take.")
    ] = 60.0,
    limit: Annotated[int, typer.Option(min=1, help="Configurations to show for each shape.")] = SHOWN,
    as_json: Json = False,
) -> int | None:
    """Rank a Triton kernel's configurations by predicted time, as Triton compiles it.

    Takes the list of its @triton.autotune, or --space. Predictions order one kernel's configurations; they were not
    fitted on kernels that load through pointers. With --store the answers are kept: the service gives them out, and
    `warpplan export --tuned` writes them into Triton's cache. With --measure the first are timed in a process of their
    own, each with a time limit; every time is kept as it comes. Exit 1 where none of a shape's configurations can run.
    """
    from warpplan.service.store.database import now
    from warpplan.service.store.tuned.kernel_answer_store import KernelAnswers
    from warpplan.service.store.tuned.tuning_store import Tunings
    from warpplan.service.tuning import launch_jobs
    from warpplan.service.tuning.launch_times import launch_keys_of
    from warpplan.service.workflow.profiles import planner_version

    if len(grid) > 1:
        raise InvalidInput(
            f"--grid is given {len(grid)} times: give all axes in one, --grid {', '.join(grid)!r}", field="grid",
            value=grid,
        )  # fmt: skip
    with user_output_on_stderr():
        tuner, layers, sizes, source = _task(kernel, shapes, grid[0], signature, space, device, profile)
    # Before anything is planned or kept: a machine that cannot measure is told so at once.
    identity = launch_jobs.gpu_here(tuner.device.name) if measure else {}
    if measure:
        for shape in sizes:
            launch_jobs.launch_job(tuner, shape, tuner.task.configs[0])
    opened = open_workflow(store, profile, device=device, write=store is not None).store
    with user_output_on_stderr():
        tuned = [tuner.rank(shape) for shape in sizes]
    answers = [replace(tuner.answer(found, source, planner_version()), date=now()) for found in tuned]
    timings: list[LaunchTiming] = []
    if opened is not None:
        kept = [answer for answer in answers if answer.ranked]
        KernelAnswers(opened.database).keep(kept)
        Tunings(opened.database).launch_keys.keep(launch_keys_of(layers, kept))
    if measure:
        tunings = None if opened is None else Tunings(opened.database)
        timings = launch_jobs.measure_first(
            tuner, answers, measure, identity, tunings, time_limit_s=time_limit, on_timing=_tell
        )
    chosen = [_chosen(answer, timings, opened) for answer in answers]
    if as_json:
        shown = [
            {**_plain(found, _times_of(answer, timings)), "answer": None if choice is None else choice.as_dict()}
            for found, answer, choice in zip(tuned, answers, chosen, strict=True)
        ]
        print_json({"schema": SCHEMA, "kernel": kernel, "device": tuner.device.name, "shapes": shown})
    else:
        for found, answer, choice in zip(tuned, answers, chosen, strict=True):
            _show(Path(kernel).name, found, limit, _times_of(answer, timings), choice)
    return None if all(found.ranked for found in tuned) else NONE_RUNS


def _task(
    kernel: str, shapes: list[str], grid: str, signature: str, space: str, device: str | None, profile: Path | None
) -> tuple[Tuner, Any, list[dict[str, int]], str]:
    """What is to be ranked, as jobs launch it, for which sizes, and the key of the profile."""
    from warpplan.planner.values.device import device as known_device
    from warpplan.service.tuning import launch_ranking, size_words
    from warpplan.service.tuning.derived_values import heuristics_of
    from warpplan.service.workflow.specialization import innermost, layers_at

    sizes = [size_words.shape_named(text.replace(",", " ").split()) for text in shapes]
    layers = layers_at(kernel)
    function = innermost(layers, kernel)
    configs = size_words.space(space) if space else launch_ranking.listed_configs(kernel)
    if not configs:
        raise InvalidInput(
            f"{kernel} is not under @triton.autotune: give the configurations with --space", field="space", value=kernel
        )
    profiles = open_workflow(None, profile, device=device).profiles
    name = profiles.default_device
    gpu = known_device(name)
    if gpu.capability != launch_ranking.HOPPER:
        raise InvalidInput(
            f"device {name}: predictions are for sm_{launch_ranking.HOPPER} GPUs (see: warpplan devices)",
            field="device", value=name,
            limit=launch_ranking.HOPPER,
        )  # fmt: skip
    task = launch_ranking.TuningTask(kernel, signature, grid, configs, heuristics_of(layers))
    found = profiles.of(name)
    return launch_ranking.Tuner(task, function, found.profile, gpu), layers, sizes, found.key


def _tell(timing: LaunchTiming) -> None:
    """One line on standard error as it comes: measuring takes seconds a configuration."""
    told = timing.reason if timing.time_us is None else f"{timing.time_us:.1f} us"
    print(f"measured {_words(timing.config)}: {told}", file=sys.stderr, flush=True)


def _chosen(answer: KernelAnswer, timings: Sequence[LaunchTiming], store: Store | None) -> KernelChoice | None:
    """What a job is to launch with: from all that the store knows, or from what was measured now."""
    from warpplan.service.store.tuned.tuning_store import TunedTime, Tunings
    from warpplan.service.tuning.kernel_choice import choose
    from warpplan.service.tuning.launch_times import times_of

    if store is not None:
        return choose(answer, times_of([answer], Tunings(store.database)))
    now = [
        TunedTime(answer.kernel, answer.source, answer.tuning_key, t.config, answer.device, (), t.time_us)
        for t in timings
        if t.answer == answer and t.status in ("ok", "refused")
    ]
    return choose(answer, now)


def _times_of(answer: KernelAnswer, timings: Sequence[LaunchTiming]) -> dict[TuningConfig, LaunchTiming]:
    return {timing.config: timing for timing in timings if timing.answer == answer}


def _words(config: TuningConfig) -> str:
    """The kernel's own constants; of a configuration that has none, what Triton compiles it with."""
    own = config.kwargs or (("num_warps", config.num_warps), ("num_stages", config.num_stages))
    return " ".join(f"{n}={v}" for n, v in own)


def _show(
    kernel: str, tuned: TunedShape, limit: int, measured: Mapping[TuningConfig, LaunchTiming],
    choice: KernelChoice | None,
) -> None:  # fmt: skip
    from warpplan.kernels.compiler.paper.paper_programs import UNKNOWN_TRIPS
    from warpplan.service.tuning.launch_ranking import sorted_kwargs
    from warpplan.service.views.sections import Section
    from warpplan.service.views.text import section_lines

    def told(config: TuningConfig) -> tuple[str, ...]:
        if not measured:
            return ()
        timing = measured.get(sorted_kwargs(config))
        return ("-" if timing is None else timing.status if timing.time_us is None else f"{timing.time_us:.1f}",)

    rows: tuple[tuple[str | int | float, ...], ...] = tuple(
        (
            f"{t.time.time_us:.1f}", *told(t.config), _words(t.config), t.config.num_warps, t.config.num_stages,
            t.time.bound_by, t.time.resident, t.programs, f"{t.dram_bytes / 1e6:.1f}",
        )
        for t in tuned.ranked[:limit]
    )  # fmt: skip
    notes = [f"left out: {_words(c)}: {why}" for c, why in tuned.refused]
    if any(not t.traffic_known for t in tuned.ranked):
        notes.append(
            "some addresses are looked up in memory: what lies at unlike places counts as unlike, up to the elements "
            "that --signature has of an array"
        )
    if any(not t.trips_known for t in tuned.ranked):
        notes.append(f"the length of a loop depends on data: {UNKNOWN_TRIPS} iterations stand for it")
    if tuned.missing:
        notes.append(f"priced without a measurement of its kind: {', '.join(tuned.missing)}")
    if choice is not None and choice.measured is not None:
        c = choice.config
        how = f"{c.num_warps} warps, {c.num_stages} stages"
        notes.append(f"answer: {_words(c)}, {how}: measured {choice.measured.time_us:.1f} us")
    shape = " ".join(f"{name}={size}" for name, size in tuned.shape.items())
    columns = ("measured us",) if measured else ()
    head = ("us", *columns, "configuration", "warps", "stages", "bound by", "on an SM", "programs", "DRAM MB")
    count = f"{len(tuned.ranked)} configurations, best first" if tuned.ranked else "none of the configurations can run"
    title = f"{kernel} {shape}: {count}"
    for line in section_lines(Section(title, head, rows, tuple(notes))):
        print(line)


def _plain(tuned: TunedShape, measured: Mapping[TuningConfig, LaunchTiming]) -> dict[str, Any]:
    from warpplan.service.tuning.launch_ranking import sorted_kwargs

    ranked = [
        {
            "config": t.config.as_dict(), "predicted_us": t.time.time_us if math.isfinite(t.time.time_us) else None,
            "bound_by": t.time.bound_by, "parts_us": dict(t.time.parts), "resident": t.time.resident,
            "programs": t.programs, "dram_bytes": t.dram_bytes, "traffic_known": t.traffic_known,
            "trips_known": t.trips_known,
            **_measured(measured.get(sorted_kwargs(t.config))),
        }
        for t in tuned.ranked
    ]  # fmt: skip
    refused = [{"config": config.as_dict(), "reason": reason} for config, reason in tuned.refused]
    return {"shape": tuned.shape, "ranked": ranked, "refused": refused, "missing_costs": list(tuned.missing)}


def _measured(timing: LaunchTiming | None) -> dict[str, Any]:
    if timing is None:
        return {}
    return {"measured": {"time_us": timing.time_us, "status": timing.status, "reason": timing.reason}}
