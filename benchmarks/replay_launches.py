"""No GPU: launches without a partition, predicted for every setting that was measured on an H200, beside their times.

    python benchmarks/replay_launches.py [WORDS]

The measured ones are the unplanned runs of ``results/compiler_schemes_h200.json``. Writes
``results/launch_replay_h200.json``, unless words choose some cases by how their names begin: for each kernel and shape
Kendall's τ of predicted against measured times over its settings, and the measured time of the best, of the one
predicted to be best, and of the best of the first four. Every second case is for training: constants are fitted on
those alone.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_compiler import geometric_mean
from results_file import head
from scipy.stats import kendalltau
from tl_case import Case, Setting, source
from tl_cases import all_cases
from triton.backends.compiler import GPUTarget

from warpplan.kernels.compile import CompiledReport, compile_report
from warpplan.kernels.compiler.analysis.capture import capture
from warpplan.kernels.compiler.costing.pipelined.kernel_facts import facts_of
from warpplan.kernels.compiler.costing.pipelined.launch_time import LaunchFacts, LaunchModel
from warpplan.kernels.compiler.costing.pipelined.launch_traffic import launch_memory
from warpplan.kernels.compiler.paper.paper_programs import PaperKernel
from warpplan.kernels.compiler.pipeline.cutting import cut
from warpplan.planner.values.device import H200
from warpplan.profiler.embedded import embedded

RESULTS = Path(__file__).with_name("results")
FIRST = 4
SPLITS = ("train", "heldout")


_reports: dict[tuple[str, int, int], CompiledReport] = {}


def assembled(made: Any, setting: Setting) -> CompiledReport:
    """What ptxas makes of a kernel's source, which several cases share."""
    key = made.hash(), setting.warps, setting.stages
    if key not in _reports:
        options = {"num_warps": setting.warps, "num_stages": setting.stages}
        _reports[key] = compile_report(made, options, 90, what=str(setting))
    return _reports[key]


def predicted_us(case: Case, setting: Setting) -> float:
    """The predicted time of ``case`` under ``setting``, infinite where it does not fit."""
    made, options = source(case, setting), {"num_warps": setting.warps, "num_stages": setting.stages}
    text, report = cut(made, GPUTarget("cuda", 90, 32), options).text, assembled(made, setting)
    facts, kernel = facts_of(capture(text)), PaperKernel(text)
    model = LaunchModel(facts, embedded(H200.name), H200)
    x, y, z = (*case.grid(setting), 1, 1)[:3]
    launch = LaunchFacts(
        float(x * y * z), (0.0,) * len(facts.loops), setting.stages, registers=report.registers,
        spill_bytes=report.spill_bytes, shared_bytes=report.shared_bytes, serialized=report.wgmma_serialized,
    )  # fmt: skip
    resident = model.resident(launch)
    if not resident:
        return float("inf")
    sizes = {name: value for name, value in case.arguments(setting).items() if isinstance(value, int)}
    memory = launch_memory(kernel, sizes, (x, y, z), H200, resident * H200.sm_count)
    cold = min(1.0, memory.dram_loaded_bytes / memory.loaded_bytes) if memory.loaded_bytes else 1.0
    return model.time(replace(launch, trips=memory.trips, dram_bytes=memory.dram_bytes, cold=cold)).time_us


def replay(case: Case, measured: dict[int, float], split: str) -> dict[str, Any]:
    predicted = {index: predicted_us(case, case.settings[index]) for index in measured}
    order = sorted(predicted, key=lambda i: (round(predicted[i], 3), case.settings[i].warps, i))
    best = min(measured.values())
    errors = [abs(predicted[i] / measured[i] - 1) for i in measured if predicted[i] != float("inf")]
    tau = float(kendalltau([measured[i] for i in order], [predicted[i] for i in order]).statistic)
    return {
        "kernel": case.kernel.__name__,
        "case": case.name,
        "split": split,
        "settings": len(measured),
        "best_us": best,
        "chosen_us": measured[order[0]],
        "best_of_first_us": min(measured[i] for i in order[:FIRST]),
        "median_error": round(statistics.median(errors), 4) if errors else None,
        "kendall_tau": None if math.isnan(tau) else round(tau, 4),
        "rows": [
            {"setting": str(case.settings[i]), "predicted_us": predicted[i], "measured_us": measured[i]} for i in order
        ],
    }


def summarised(rows: list[dict[str, Any]]) -> dict[str, float | None] | None:
    """The best time over those of the first predicted and of the best of the first four, as geometric means; medians of
    τ, where settings differ, and of the time error."""
    if not rows:
        return None
    taus = [r["kendall_tau"] for r in rows if r["kendall_tau"] is not None]
    return {
        "cases": len(rows),
        "best_over_chosen": round(geometric_mean([r["best_us"] / r["chosen_us"] for r in rows]), 4),
        "best_over_first_four": round(geometric_mean([r["best_us"] / r["best_of_first_us"] for r in rows]), 4),
        "kendall_tau": statistics.median(taus) if taus else None,
        "median_error": statistics.median(r["median_error"] for r in rows),
    }


def main() -> None:
    recorded = json.loads((RESULTS / "compiler_schemes_h200.json").read_text())
    times: dict[str, dict[int, float]] = {}
    for row in recorded["rows"]:
        if row["scheme"] is None and row["status"] == "ok":
            times.setdefault(row["case"], {})[row["setting"]] = row["us"]
    rows: list[dict[str, Any]] = []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="how names of cases begin")
    families = tuple(parser.parse_args().words)
    measured = [case for case in all_cases() if len(times.get(case.name, {})) > 1]
    for number, case in enumerate(measured):
        if families and not case.name.startswith(families):
            continue
        rows.append(replay(case, times[case.name], SPLITS[number % 2]))
        r = rows[-1]
        print(
            f"{r['split']} {case.name}: best/chosen {r['best_us'] / r['chosen_us']:.3f}, of four "
            f"{r['best_us'] / r['best_of_first_us']:.3f}, tau {r['kendall_tau']}, error {r['median_error']}",
            flush=True,
        )
    summary = {split: summarised([r for r in rows if r["split"] == split]) for split in SPLITS}
    print(json.dumps(summary))
    if families:
        return
    found = {"measured": recorded["date"], "summary": summary, "rows": rows}
    result = {**head("launch_replay", recorded["device"]), **found}
    (RESULTS / "launch_replay_h200.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
