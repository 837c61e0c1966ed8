"""``warpplan measure``: a GPU's time spent on measurements of our kernels, where it is worth most."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpplan.planner.errors import InvalidInput
from warpplan.service.cli.shared_options import (
    LONGEST_S,
    DeviceName,
    Json,
    LineTally,
    ProfileFile,
    StorePlace,
    open_workflow,
    print_json,
    read_lines,
    require_store,
)

if TYPE_CHECKING:
    from warpplan.service.config_request import ConfigRequest
    from warpplan.service.measuring.measurement_plan import MeasurementPlan, WantedShape
    from warpplan.service.measuring.measurement_run import MeasuredCandidate
    from warpplan.service.workflow.configure import Workflow
    from warpplan.service.workflow.request import Item
    from warpplan.service.workflow.shape_files import Line

SCHEMA = "warpplan/measure-1"
LAUNCHES = "launches"
"""The column of a shapes file that says how often a shape is launched."""
MOST_LAUNCHES = 1e12
"""Of one line. A launch takes more than 1 us, so that as many take eleven days; twice as many would do no harm."""
SHOWN = 40
"""Shapes of a forecast that are printed, those that gain most; --json has all."""

Shapes = Annotated[
    str | None,
    typer.Argument(
        help="A .csv or .jsonl file of shapes, or the word: bundled. Without it: all shapes in --store. A shape counts "
        "as often as it is listed, or as its column `launches` says."
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--budget-s", min=0, max=LONGEST_S, help="Seconds of this GPU to spend where they are worth most, then stop."
    ),
]
Top = Annotated[int, typer.Option(min=1, max=64, help="Candidates of each shape to measure at most.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be gained; needs no GPU.")]
TimeLimit = Annotated[float, typer.Option(min=1, max=LONGEST_S, help="Seconds that one measurement may take.")]


def measure(
    shapes: Shapes = None,
    store: StorePlace = "warpplan.sqlite",
    budget_s: Budget = None,
    top: Top = 8,
    dry_run: DryRun = False,
    device: DeviceName = None,
    profile: ProfileFile = None,
    time_limit: TimeLimit = 60.0,
    as_json: Json = False,
) -> None:
    """Measure the first candidates of each shape on this machine's GPU, into the store.

    With --budget-s the time goes first to where measuring is expected to save most: candidates that are predicted
    close together, of shapes that are launched often and were not measured. What would be gained is said before
    anything is spent, and each time is kept as it comes. Without it every shape's first --top candidates are measured.
    A bad line is named and costs no other; the command then ends with exit status 2.
    """
    from warpplan.service.measuring.measurement_plan import plan_measurements
    from warpplan.service.measuring.measurement_run import run_measurements
    from warpplan.service.store.stored_values import environment_of
    from warpplan.service.tuning.launch_jobs import gpu_here

    if shapes is None:
        require_store(store)
    asked = open_workflow(store if shapes is None else None, profile, device=device)
    tally = LineTally(shapes)
    wanted = _wanted(asked, shapes, tally)
    # Before the store is made or anything is planned: a machine that cannot measure is told so at once.
    identity = {} if dry_run else gpu_here(_one_device(asked, wanted))
    environment = environment_of(identity) if identity else None
    absent = dry_run and "://" not in store and not Path(store).exists()
    workflow = open_workflow(None if absent else store, profile, device=device, write=not dry_run)
    plan = plan_measurements(workflow, wanted, top=top, budget_s=budget_s, environment=environment)
    if not plan.shapes:
        raise InvalidInput(f"no shape can be planned: {plan.refused[0][1]}", field="shapes")
    if not as_json:
        for line in _forecast_lines(plan, budget_s):
            print(line, flush=True)
    done: list[MeasuredCandidate] = []
    if not dry_run:

        def tell(measured: MeasuredCandidate) -> None:
            told = measured.reason if measured.time_us is None else f"{measured.time_us:.2f} us"
            print(f"{plan.shapes[measured.shape].problem.label}: {told}", file=sys.stderr, flush=True)

        done = run_measurements(workflow, plan, identity, budget_s=budget_s, time_limit_s=time_limit, on_measured=tell)
    if as_json:
        print_json(_plain(plan, budget_s, done))
    elif not dry_run:
        for line in _result_lines(plan, done):
            print(line)
    tally.require_all_good()


def _wanted(workflow: Workflow, shapes: str | None, tally: LineTally) -> list[WantedShape]:
    """Each shape once, with how often it counts; bad lines of a file are told by ``tally``."""
    from warpplan.service.measuring.measurement_plan import WantedShape
    from warpplan.service.workflow.request import check

    default = workflow.profiles.default_device

    def counted(item: Item) -> tuple[ConfigRequest, Item, float]:
        fields = dict(item.shape)
        launches = _launches(fields.pop(LAUNCHES, 1))
        item = replace(item, shape=tuple(fields.items()))
        return check(item, default)[0], item, launches

    lines: Iterable[Line] = read_lines(shapes) if shapes is not None else _stored(workflow)
    found: dict[ConfigRequest, WantedShape] = {}
    for problem, item, launches in tally.good_ones(lines, counted):
        before = found[problem].launches if problem in found else 0.0
        found[problem] = WantedShape(item, before + launches)
    if not found:
        tally.require_all_good()
        raise InvalidInput(
            "nothing to measure: name a file of shapes, or plan some into the store with `warpplan batch`",
            field="shapes",
        )
    return list(found.values())


def _stored(workflow: Workflow) -> Iterator[Line]:
    from warpplan.service.workflow.request import Item

    for p in workflow.store.problems() if workflow.store else ():
        if p.device == workflow.profiles.default_device:
            yield 0, Item(p.kernel, tuple(p.shape.items()), p.dtype, p.device)


def _launches(value: object) -> float:
    try:
        found = float(str(value))
    except ValueError:
        found = -1.0
    if not 0 <= found <= MOST_LAUNCHES:
        raise InvalidInput(
            f"{LAUNCHES}={str(value)[:40]!r}: expected how often the shape is launched, 0 to {MOST_LAUNCHES:g}",
            field=LAUNCHES, value=value, limit=MOST_LAUNCHES,
        )  # fmt: skip
    return found


def _one_device(workflow: Workflow, wanted: list[WantedShape]) -> str:
    """The GPU that all shapes are for: one machine measures one."""
    names = {one.item.device or workflow.profiles.default_device for one in wanted}
    if len(names) > 1:
        raise InvalidInput(
            f"the shapes are for {', '.join(sorted(names))}: measure those of one GPU at a time", field="device"
        )
    return names.pop()


def _forecast_lines(plan: MeasurementPlan, budget_s: float | None) -> Iterator[str]:
    from warpplan.service.views.sections import Section
    from warpplan.service.views.text import section_lines

    counts = _counts(plan)
    ranked = sorted(counts, key=lambda i: (-plan.gains_us[i] * plan.shapes[i].times.weight, i))
    rows: list[tuple[str | int | float, ...]] = []
    for i in ranked[:SHOWN]:
        shape, gain = plan.shapes[i], plan.gains_us[i]
        rows.append(
            (
                shape.problem.label, f"{shape.times.weight:g}", f"{shape.now_us:.2f}", f"{gain:.3f}",
                f"{gain / shape.now_us:.2%}", counts[i],
            )
        )  # fmt: skip
    seconds = sum(m.cost_s for m in plan.order[: plan.announced])
    notes = [
        f"{kernel}: predictions scatter by {spread:.1%}, from {count} stored times" if count
        else f"{kernel}: predictions are taken to scatter by {spread:.1%}, as those of recorded GEMMs do"
        for kernel, spread, count in plan.spreads
    ]  # fmt: skip
    notes += [f"left out: {item.kernel}: {reason}" for item, reason in plan.refused]
    notes += [f"and {len(ranked) - SHOWN} shapes that gain less"] if len(ranked) > SHOWN else []
    left = len(plan.shapes) - len(counts)
    notes += [f"{left} of {len(plan.shapes)} shapes are not worth the time, or have nothing left to measure"] * (
        left > 0
    )
    limit = "" if budget_s is None else f" of {budget_s:g} s"
    title = f"{plan.announced} measurements in about {seconds:.0f} s{limit}, and what they are expected to save"
    head = ("shape", "launches", "us now", "us saved", "of the time", "measurements")
    yield from section_lines(Section(title, head, tuple(rows), tuple(notes)))


def _counts(plan: MeasurementPlan) -> dict[int, int]:
    """Announced measurements of each shape that has any."""
    counts: dict[int, int] = {}
    for measuring in plan.order[: plan.announced]:
        counts[measuring.shape] = counts.get(measuring.shape, 0) + 1
    return counts


def _result_lines(plan: MeasurementPlan, done: list[MeasuredCandidate]) -> Iterator[str]:
    kept = [m for m in done if m.time_us is not None]
    failed = [m for m in done if m.time_us is None and m.status != "skipped"]
    skipped = len(done) - len(kept) - len(failed)
    yield f"{len(kept)} times kept, {len(failed)} measurements failed, {skipped} not begun"
    for i, best in sorted(_best(done).items()):
        times = plan.shapes[i].times
        before = f"{times.best_us:.2f} us measured" if times.best_us else f"{plan.shapes[i].now_us:.2f} us expected"
        yield f"  {plan.shapes[i].problem.label}: {best:.2f} us, before {before}"


def _best(done: list[MeasuredCandidate]) -> Mapping[int, float]:
    best: dict[int, float] = {}
    for m in done:
        if m.time_us is not None:
            best[m.shape] = min(m.time_us, best.get(m.shape, m.time_us))
    return best


def _plain(plan: MeasurementPlan, budget_s: float | None, done: list[MeasuredCandidate]) -> dict[str, Any]:
    counts = _counts(plan)
    return {
        "schema": SCHEMA, "budget_s": budget_s,
        "expected_s": sum(m.cost_s for m in plan.order[: plan.announced]),
        "spreads": {kernel: {"spread": spread, "stored_times": n} for kernel, spread, n in plan.spreads},
        "shapes": [
            {
                "kernel": s.problem.kernel, "shape": s.problem.shape, "dtype": s.problem.dtype,
                "device": s.problem.device, "launches": s.times.weight, "now_us": s.now_us,
                "measured_us": s.times.best_us, "expected_gain_us": plan.gains_us[i],
                "expected_gain": plan.gains_us[i] / s.now_us, "measurements": counts.get(i, 0),
            }
            for i, s in enumerate(plan.shapes)
        ],
        "refused": [{"kernel": item.kernel, "shape": dict(item.shape), "reason": r} for item, r in plan.refused],
        "measured": [
            {
                "shape": m.shape, "config": m.config.as_dict(), "time_us": m.time_us, "status": m.status,
                "reason": m.reason,
            }
            for m in done if m.status != "skipped"
        ],
    }  # fmt: skip
