"""Answers as lines for people."""

from __future__ import annotations

from collections.abc import Iterator

from warpplan.kernels import registry
from warpplan.kernels.declaration import Declaration
from warpplan.planner.values.plan import Outcome
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.workflow.answers import ConfigAnswer

HEADER = (
    f"{'name':<28} {'kernel':<8} {'shape':<28} {'dtype':<9} {'us':>10} {'TFLOP/s':>8} {'bound by':<9} configuration"
)


def kernel_lines(declared: Declaration) -> Iterator[str]:
    """What a kernel declares: a line for it, one for each size and option, one with an example."""
    sizes, dtypes = " ".join(declared.dimensions), ", ".join(declared.dtypes)
    yield f"{declared.name:<16} sizes {sizes}, dtypes {dtypes}: {declared.description}"
    for field in declared.fields:
        yield f"  {field.name:<14} {field.meaning}, {field.least} to {field.greatest}"
    for option in declared.options:
        more = ", or whole numbers such as 1,2,3" if option.whole_numbers else ""
        yield f"  {option.name:<14} {option.meaning}: {' | '.join(option.choices)}{more}, default {option.default}"
    example = " ".join(f"{name}={size}" for name, size in declared.named(declared.examples[0]).items())
    yield f"  such as        warpplan plan {declared.name} {example}"


def row(name: str, answer: ConfigAnswer) -> str:
    """One line under :data:`HEADER`; a time that was measured has an asterisk."""
    time_us = answer.time_us
    tflops, bound = None, "-"
    if answer.prediction is not None and answer.measured is not None:
        # The same work in another time.
        tflops = answer.prediction.tflops * answer.prediction.time_us / answer.measured.time_us
    elif answer.prediction is not None:
        tflops, bound = answer.prediction.tflops, answer.prediction.bound_by
    return (
        f"{name or '-':<28} {answer.problem.kernel:<8} {answer.problem.shape_text:<28} {answer.problem.dtype:<9} "
        f"{_number(time_us, 2) + ('*' if answer.measured else ''):>10} {_number(tflops, 1):>8} {bound:<9} "
        f"{config_line(answer.config, answer.problem.kernel)}"
    )


def details(answer: ConfigAnswer) -> Iterator[str]:
    """One answer at length."""
    identity = answer.identity
    yield f"{answer.problem.label} on {answer.problem.device}"
    yield f"  configuration  {config_line(answer.config, answer.problem.kernel)}"
    if answer.prediction:
        p = answer.prediction
        yield f"  predicted      {p.time_us:.2f} us, {p.tflops:.1f} TFLOP/s, bound by {p.bound_by}"
    if answer.measured:
        m = answer.measured
        versions = "".join(f", {name} {word}" for name, word in m.environment if name != "gpu")
        yield f"  measured       {m.time_us:.2f} us over {m.samples} runs, {m.date[:10]}{versions}"
    if answer.plan:
        yield from _plan_lines(answer.plan)
    yield f"  profile        {answer.profile[:12]}, {identity.gpu}, driver {identity.driver}, {identity.date}"
    yield f"  planner        {answer.planner}"
    yield f"  match          {answer.kind}{', kept' if answer.kept else ', not kept: ' + answer.notice}"


def config_line(config: TuningConfig, kernel: str) -> str:
    """``SCHEME=single BLOCK_M=128 … num_warps=8``: first what the kernel declares as first, Triton's rarer fields where
    they are set."""
    first = registry.kernel(kernel).declaration.shown_first
    kwargs = sorted(config.kwargs, key=lambda pair: (first.index(pair[0]) if pair[0] in first else len(first), pair))
    fields = [*kwargs, ("num_warps", config.num_warps), ("num_stages", config.num_stages)]
    if config.num_ctas != 1:
        fields.append(("num_ctas", config.num_ctas))
    if config.maxnreg is not None:
        fields.append(("maxnreg", config.maxnreg))
    return " ".join(f"{name}={int(value) if isinstance(value, bool) else value}" for name, value in fields)


def _plan_lines(outcome: Outcome) -> Iterator[str]:
    plan = outcome.plan
    if plan is None:
        yield f"  plan           {outcome.status}: {outcome.reason}"
        return
    ii = f"II {plan.schedule.ii_cycles} cycles (bound {outcome.bound})"
    yield f"  plan           {outcome.status}, {ii}, {plan.smem_bytes} B of shared memory"
    for partition in plan.partitions:
        yield (
            f"    partition    {partition.name}: {partition.warps} warps, {partition.registers} registers, "
            f"{', '.join(partition.ops)}"
        )
    for channel in plan.channels:
        yield f"    channel      {channel.name}: depth {channel.depth} of {channel.slot_bytes} B"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
