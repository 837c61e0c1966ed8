"""``warpplan ws``: what warp specialisation does to one kernel of a file, and why not where it does nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from warpplan.planner.errors import InvalidInput
from warpplan.service.cli.shared_options import Json, ProfileFile, print_json, user_output_on_stderr

if TYPE_CHECKING:
    from warpplan.kernels.compiler.inspection.barrier_check import BarrierReport
    from warpplan.kernels.compiler.inspection.list_inspection import InspectedConfig
    from warpplan.service.views.sections import Section
    from warpplan.service.workflow.specialization import Inspection

HANGS = 1
"""Exit status of a kernel in which a cause of hangs was found."""
MOST_SCHEMES = 8

KernelSpec = Annotated[str, typer.Argument(help="FILE.py:kernel or package.module:kernel; the file is run.")]
Signature = Annotated[str, typer.Option(help='Types and constexprs: "a=bf16[128,64], c_ptr=*bf16, M=i32:16, BM=128".')]
Target = Annotated[int, typer.Option(help="Compute capability, major times 10 plus minor: 90 or 100.")]
SchemeText = Annotated[
    str,
    typer.Option(
        "--scheme",
        help="best, stock (Triton's own lowering), or CONSUMERSxWARPS:SLOTS such as 2x4:3; on sm_100 apart:SLOTS, "
        "apart:SLOTS:single, together:SLOTS or found:SLOTS; or a scheme as this command shows it, also as JSON.",
    ),
]


def ws(
    kernel: KernelSpec,
    signature: Signature,
    target: Target = 90,
    scheme: SchemeText = "best",
    warps: Annotated[int, typer.Option(min=1, max=32, help="The num_warps that the kernel is launched with.")] = 4,
    stages: Annotated[int, typer.Option(min=1, max=16, help="The num_stages that the kernel is launched with.")] = 3,
    profile: ProfileFile = None,
    as_json: Json = False,
) -> int | None:
    """Show a Triton kernel's loops as graphs, the plan, where each line goes, and its barriers. Needs no GPU.

    Says why what is not specialised is not, and checks the finished kernel's barriers for known causes of hangs: exit
    status 1 where one is found. Of a kernel under @triton.autotune whose constexprs the signature leaves open, the list
    is ranked, and the configuration that is predicted best is shown.
    """
    from warpplan.kernels.compiler.inspection.list_inspection import inspect_list, list_of
    from warpplan.service.views.text import section_lines
    from warpplan.service.workflow.profiles import Profiles
    from warpplan.service.workflow.specialization import (
        BLACKWELL,
        HOPPER,
        innermost,
        inspect_kernel,
        layers_at,
        to_json,
    )

    if target not in (HOPPER, BLACKWELL):
        raise InvalidInput(f"target {target}: expected {HOPPER} or {BLACKWELL}", field="target", value=target)
    profiles = Profiles.given(profile)
    costs = profiles.of(profiles.default_device).profile
    with user_output_on_stderr():
        layers = layers_at(kernel)
        configs = list_of(layers, signature) if target == HOPPER else []
        listed = inspect_list(layers, configs, signature, costs) if configs else ()
        if listed:
            signature, warps, stages = listed[0].signature, listed[0].warps, listed[0].stages
        found = inspect_kernel(
            innermost(layers, kernel), signature, costs, target=target, scheme=scheme, warps=warps, stages=stages
        )  # fmt: skip
    if as_json:
        print_json({**to_json(found), "list": [list_json(each) for each in listed]})
    else:
        for line in section_lines(list_section(listed)) if listed else ():
            print(line)
        print(f"{found.kernel}: {len(found.captured.loops)} loops on sm_{found.target}")
        for section in sections(found):
            print()
            for line in section_lines(section):
                print(line)
    return HANGS if found.barriers is not None and found.barriers.findings else None


def list_section(listed: Sequence[InspectedConfig]) -> Section:
    """The configurations of an autotuned kernel, by predicted time over that of the best of them as it is."""
    from warpplan.service.views.sections import Section

    alone = [each.alone_us for each in listed if each.alone_us is not None]

    def relative(us: float | None) -> str:
        return f"{us / min(alone):.2f}" if us is not None and alone else ""

    rows = tuple(
        (
            each.config.replace("num_ctas: 1, ", "").replace(", maxnreg: None", ""),
            shortened(str(each.strategy or each.reason)), relative(each.planned_us), relative(each.alone_us),
        )
        for each in listed
    )  # fmt: skip
    head = ("configuration", "best scheme", "its time", "as it is")
    notes = (
        "Predicted times of equal work, over that of the best configuration as it is. What follows is of the first.",
    )
    return Section("Configurations, best first", head, rows, notes)


def shortened(text: str) -> str:
    """``text``, or as much of it as a column holds."""
    return text if len(text) < 60 else text[:57] + "..."


def list_json(each: InspectedConfig) -> dict[str, object]:
    """One configuration as plain values."""
    return {**asdict(each), "strategy": None if each.strategy is None else each.strategy.to_json()}


def sections(found: Inspection) -> Iterator[Section]:
    """What there is to show, as titled tables."""
    from warpplan.kernels.compiler.exceptions import by_reason
    from warpplan.service.views.sections import Section, certificate

    for loop in found.captured.loops:
        rows = tuple(
            (
                w.id, w.kind, "x".join(map(str, w.shape)) or "scalar", w.buffer_bytes or "", ", ".join(w.names),
                "estimated" if w.id in found.estimated else "measured",
            )
            for w in loop.work
        )  # fmt: skip
        trips = f", {loop.trips} iterations" if loop.trips is not None else ""
        flows = [
            f"{f.src} -> {f.dst}{f', {f.distance} later' * (f.distance > 0)}{' (order)' * (f.kind != 'data')}"
            for f in loop.flows
        ]
        inside = f", inside {loop.parent}" if loop.parent else ""
        head = ("operation", "kind", "tile", "bytes", "operations of TTGIR", "cost")
        yield Section(f"Loop {loop.id}{trips}{inside}", head, rows, tuple(flows))
    if found.captured.obstacles:
        told = dict.fromkeys(f"{o.loop or found.kernel}: {o}" for o in found.captured.obstacles)
        yield Section("Why not", notes=tuple(told))
    if found.captured.remarks:
        yield Section(
            "What it does without", notes=tuple(dict.fromkeys(f"{o.loop}: {o}" for o in found.captured.remarks))
        )
    if found.captured.stores_kept:
        yield Section("Stores and additions that stay", notes=tuple(map(str, found.captured.stores_kept)))
    # What all gains are over is shown wherever it stands.
    shown = [r for i, r in enumerate(found.ranked) if i < MOST_SCHEMES or r.scheme is None]
    ranked = tuple(
        (
            str(r.scheme) if r.scheme else "left alone", "/".join(map(str, r.ii_cycles)),
            round(r.predicted_cycles) or "", f"{r.gain:.2f}", shortened(r.reason),
        )
        for r in shown
    )  # fmt: skip
    more = len(found.ranked) - len(shown)
    note = (f"and {more} more: --json has all",) if more else ()
    yield Section("Schemes, best first", ("scheme", "II", "cycles a tile", "gain", "what binds"), ranked, note)
    if found.refused:
        yield Section("Could not be lowered", notes=tuple(by_reason(found.refused)))
    chosen = str(found.chosen.scheme) if found.chosen.scheme else "Triton's own lowering"
    where = tuple(
        (
            _joined(p.lines), p.operation, ", ".join(p.partitions), p.stage if p.stage is not None else "",
            p.cycle if p.cycle is not None else "", p.buffer,
        )
        for p in found.placed
    )  # fmt: skip
    head = ("line", "operation", "partition", "stage", "cycle", "buffer")
    yield Section(f"Where each line goes: {chosen}", head, where)
    if found.optimality:
        each = zip(found.captured.loading, found.optimality, strict=True)
        yield Section("Any other partition or order", notes=tuple(f"{loop.id}: {certificate(o)}" for loop, o in each))
    if found.barriers is None:
        yield Section("Barriers", notes=(f"the kernel could not be finished: {found.failure}",))
    else:
        yield from _barriers(found.barriers, _roles(found))


def _roles(found: Inspection) -> dict[str, str]:
    """The plan's names of the finished kernel's partitions, which Triton numbers: consumers, then the producer."""
    from warpplan.kernels.compiler.strategy.hopper import PRODUCER

    names = [partition.name for partition in found.chosen.plans[0].partitions] if found.chosen.plans else []
    finished = [name for name, _ in found.barriers.partitions] if found.barriers else []
    is_plain = len(names) == len(finished) and names[-1:] == [PRODUCER]
    return dict(zip(finished, names, strict=True)) if is_plain else {}


def _joined(lines: tuple[str, ...]) -> str:
    """``file.py:12, 14``: the file's name once where it is one."""
    files = {line.partition(":")[0] for line in lines}
    if len(files) != 1:
        return ", ".join(lines)
    numbers = sorted({int(line.partition(":")[2]) for line in lines})
    return f"{files.pop()}:{', '.join(map(str, numbers))}"


def _barriers(report: BarrierReport, roles: Mapping[str, str]) -> Iterator[Section]:
    from warpplan.service.views.sections import Section

    rows = []
    for barrier in report.barriers:
        inits = [use.amount for use in barrier.uses if use.kind == "init"]
        for name, warps in report.partitions:
            counts = [barrier.count(kind, name) for kind in ("expect", "copy", "arrive", "wait")]
            if any(counts):
                sizes = {use.amount for use in barrier.uses if use.kind == "expect" and use.partition == name}
                known = f"{roles[name]}, {name}" if name in roles else name
                rows.append((
                    barrier.name, barrier.role, inits[0] if inits else "none", f"{known} ({warps} warps)", *counts,
                    "/".join(map(str, sorted(sizes))), barrier.phases,
                ))  # fmt: skip
    head = ("barrier", "role", "init", "partition", "expects", "copies", "arrives", "waits", "bytes", "phases")
    yield Section("Barriers", head, tuple(rows), () if rows else ("none",))
    clean = f"none of the known causes; {report.played} waits played"
    yield Section("Causes of hangs", notes=tuple(map(str, report.findings)) or (clean,))
