"""GPU: plain kernels compiled by a scheme and as they are, traced with Proton operation by operation.

    python benchmarks/trace_compiler.py --out benchmarks/results

The records are put into the finished TTGIR; the source is not changed. Writes ``compiler_traces_h200.json``: for each
kernel and scheme the cycles of each operation over all warps and of each warp, the initiation interval of the loop, the
part of it that consumers wait, and measured cycles next to those that the planner's costs say. Recording costs each
scope some cycles: ``recording_cycles`` is what an empty one shows.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tl_cases
from results_file import head, write
from tl_case import Case, Setting, options, source

from warpplan.kernels.compiler.analysis.capture import Body, capture
from warpplan.kernels.compiler.costing.loop_graph import Shape
from warpplan.kernels.compiler.strategy.hopper import HopperStrategy
from warpplan.kernels.isolate import run_isolated
from warpplan.planner.errors import MeasurementFailed, WarpplanError
from warpplan.profiler.embedded import embedded
from warpplan.profiler.operations import beside_costs, read_operations
from warpplan.profiler.traces import BUFFER_BYTES_PER_WARP, recording_cycles, trace_costs

DEVICE = "NVIDIA H200"
TIME_LIMIT_S = 120.0
GEMM = Setting({"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64}, 8, 3)
ATTENTION = Setting({"D": 128, "BLOCK_M": 128, "BLOCK_N": 128, "CAUSAL": False}, 8, 2)
"""Few tiles: a whole grid's trace is tens of megabytes."""
TRACED: tuple[tuple[str, Setting, HopperStrategy | None], ...] = (
    ("gemm", GEMM, HopperStrategy(2, (3,))),
    ("gemm", GEMM, None),
    ("attention", ATTENTION, HopperStrategy(2, (2,))),
    ("attention", ATTENTION, None),
)


def case_of(name: str) -> Case:
    """The kernel at a size of a few tiles."""
    return tl_cases.gemm("2d", 512, 1024, 4096) if name == "gemm" else tl_cases.attention(1, 4, 1024, 128, False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    recording = recording_cycles()
    result = {**head("compiler_traces", DEVICE), "recording_cycles": recording, "rows": []}
    for name, setting, scheme in TRACED:
        row: dict[str, Any] = {
            "kernel": name, "setting": str(setting), "scheme": str(scheme) if scheme else "as it is"
        }  # fmt: skip
        try:
            row |= traced(name, setting, scheme, recording)
        except WarpplanError as error:
            row["failed"] = str(error)
        result["rows"].append(row)
        print(name, row["scheme"], row.get("failed") or [(b["operation"], b["ratio"]) for b in row["beside_costs"]])
    write(arguments.out / "compiler_traces_h200.json", result)


def traced(name: str, setting: Setting, scheme: HopperStrategy | None, recording: float) -> dict[str, Any]:
    """One row, from a child that may hang. Raises :class:`MeasurementFailed`."""
    with tempfile.TemporaryDirectory() as folder:
        given = [folder, name, dict(setting.constants), setting.warps, setting.stages, scheme and scheme.to_json()]
        found = run_isolated("trace_compiler:trace_in_process", given, time_limit_s=TIME_LIMIT_S)
        if found.status != "ok":
            raise MeasurementFailed(f"tracing {name}: {found.reason}")
        path = Path(found.value)
        measured = read_operations(path)
        row: dict[str, Any] = {"operations": [asdict(m) for m in measured]}
        try:
            summary = trace_costs(path)
            row |= {"ii": asdict(summary.ii), "exposed_wait": round(summary.exposed_wait, 3)}
        except MeasurementFailed as error:  # no product twice in one warp's last records
            row["ii_failed"] = str(error)
    shape = Shape(specialized=False, warps=setting.warps)
    if scheme is not None:
        shape = Shape(scheme.consumers, scheme.warps, in_flight=bool(scheme.in_flight))
    rows = beside_costs(measured, main_loop(name, setting), shape, embedded(DEVICE).costs, recording)
    return row | {"beside_costs": [{**asdict(b), "ratio": round(b.ratio, 3)} for b in rows]}


def main_loop(name: str, setting: Setting) -> Body:
    """The loop that loads and multiplies, as the planner sees it; needs no GPU."""
    from triton.backends.compiler import GPUTarget

    from warpplan.kernels.compiler.pipeline import cut

    text = cut(source(case_of(name), setting), GPUTarget("cuda", 90, 32), options(setting)).text
    return next(loop for loop in capture(text).loops if loop.of_kind("tma_load") and loop.of_kind("dot"))


def trace_in_process(
    folder: str, name: str, constants: dict[str, Any], warps: int, stages: int, scheme: dict[str, Any] | None
) -> str:
    """The child's part: compile with records, launch once, check, write the trace and answer its path."""
    import os

    os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "cache")
    import tl_launch
    import torch
    import triton
    import triton.profiler as proton
    from triton import knobs

    from warpplan.kernels.compiler.inspection import instrument
    from warpplan.kernels.compiler.strategy.stage_hook import compile_with

    case, setting = case_of(name), Setting(constants, warps, stages)
    plan = HopperStrategy(**{**scheme, "depths": tuple(scheme["depths"])}) if scheme else None
    # The producer's one warp is rounded up to a warp group.
    total = warps if plan is None else plan.consumers * plan.warps + 4
    mode = proton.mode.Default(
        optimizations="clock32,time_shift", buffer_type="global", buffer_size=total * BUFFER_BYTES_PER_WARP
    )
    made, reference = tl_launch.checked(case)
    stem = str(Path(folder) / "trace")
    proton.start(stem, data="trace", backend="instrumentation", mode=mode)
    if plan is not None:
        compiled = compile_with(
            source(case, setting), tl_launch.TARGET, options(setting), plan, folder, edit=instrument.instrument
        )
    else:
        knobs.runtime.add_stages_inspection_hook = instrument.hook()
        compiled = triton.compile(source(case, setting), target=tl_launch.TARGET, options=options(setting))
    tl_launch.direct(compiled, case, setting, made)()
    torch.cuda.synchronize()
    proton.finalize()
    error = ((made[case.output].float() - reference.float()).norm() / reference.float().norm()).item()
    if not error < tl_launch.NORM_ERROR:
        raise MeasurementFailed(f"the recorded kernel is wrong: relative error {error:g}")
    return f"{stem}.chrome_trace"


if __name__ == "__main__":
    main()
