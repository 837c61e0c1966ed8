"""What ``warpplan calibrate`` gains: the recorded exhaustive tables in a store, and profiles that are off. No GPU.

    python benchmarks/bench_calibration.py --out benchmarks/results

Each round has the training shapes and four held-out ones in the store, 40 in all, and judges on the twelve others,
which the shipped profile was not fitted to either. ``fitted`` is the shipped profile, ``before`` the same with every
constant 15 % too large or too small by chance, ``after`` what ``calibrate`` makes of that one. The last row calibrates
the shipped profile itself: it must not become worse on the twelve.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gemm_table import SearchedShape, read
from results_file import head, write

from warpplan.kernels.gemm.kernel import GEMM, Gemm
from warpplan.kernels.gemm.space import tuning
from warpplan.planner.predict.time_model import Rates
from warpplan.planner.values.device import device
from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded
from warpplan.profiler.fit import MeasuredShape
from warpplan.profiler.recalibrate import Fit, missed, summed_up, with_calibration
from warpplan.service.calibration.calibrate import VERSIONS, calibrate
from warpplan.service.config_request import ConfigRequest
from warpplan.service.store.answer_store import Store
from warpplan.service.store.measured_times import Measurement
from warpplan.service.workflow.profiles import Profiles

DEVICE = "NVIDIA H200"
OFF = 0.15
SHAPES = 40


def perturbed(profile: Profile, seed: int) -> Profile:
    """``profile`` with each constant of the GEMM larger or smaller by :data:`OFF`."""
    calibration = profile.calibration("gemm")
    assert calibration is not None
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], len(calibration.constants)).tolist()
    pairs = zip(calibration.constants, signs, strict=True)
    constants = tuple((name, value * (1.0 + OFF * sign)) for (name, value), sign in pairs)
    return with_calibration(profile, replace(calibration, constants=constants))


def stored(path: str, shapes: Sequence[SearchedShape], profile: Profile) -> Store:
    """A store with every measured configuration of ``shapes``."""
    environment = tuple(sorted((name, str(getattr(profile.identity, name))) for name in VERSIONS))
    store = Store.open(path)
    for m in shapes:
        problem = ConfigRequest("gemm", GEMM.dimensions, m.shape, m.dtype, DEVICE)
        pairs = zip(m.configs, m.time_us.tolist(), strict=True)
        store.measurements.record([Measurement(problem, tuning(c), t, 1, environment) for c, t in pairs])
    return store


def judge(profile: Profile, shapes: Sequence[SearchedShape]) -> Fit:
    """How well ``profile`` predicts every configuration of ``shapes``."""
    kernel, gpu = Gemm(), device(DEVICE)
    found = []
    for m in shapes:
        configs = [tuning(c) for c in m.configs]
        rows, (work,) = kernel.device_works(configs, [m.shape], m.dtype, gpu, profile)
        kept = [i for i, config in enumerate(configs) if config in rows]
        measured = MeasuredShape(m.shape, work.take(np.array([rows[configs[i]] for i in kept])), m.time_us[kept])
        constants = kernel.time_constants(m.shape, m.dtype, profile, work.structures)
        found.append(missed(measured, Rates.of(profile, m.dtype), constants))
    return summed_up(found)


def shown(fit: Fit) -> dict[str, float]:
    return {"median_error": round(fit.error, 5), "regret": round(fit.regret, 5)}


def round_of(seed: int, table: Sequence[SearchedShape], start: Profile) -> dict[str, Any]:
    """One row: ``start`` calibrated with 40 shapes, judged on the rest."""
    fitted = embedded(DEVICE)
    order = np.random.default_rng(seed).permutation(sum(m.split == "heldout" for m in table)).tolist()
    heldout = [m for m in table if m.split == "heldout"]
    known = [m for m in table if m.split == "train"]
    known += [heldout[i] for i in order[: SHAPES - len(known)]]
    others = [m for m in heldout if all(m is not k for k in known)]
    with tempfile.TemporaryDirectory() as folder:
        store = stored(f"{folder}/s.sqlite", known, fitted)
        began = time.process_time()
        report = calibrate(store, Profiles(start).of(DEVICE))
        seconds = time.process_time() - began
        store.close()
    after = judge(report.profile or start, others)
    before, ideal = judge(start, others), judge(fitted, others)
    row = {
        "kernel": "gemm", "seed": seed, "shapes": len(known), "other_shapes": len(others),
        "configurations": report.used, "calibrated": report.profile is not None, "fitted": shown(ideal),
        "before": shown(before), "after": shown(after), "after_over_fitted": round(after.error / ideal.error, 3),
        "reason": report.calibrations[0].reason, "cpu_seconds": round(seconds, 1),
    }  # fmt: skip
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    table, fitted = read(), embedded(DEVICE)
    rows = [{"start": "perturbed", **round_of(seed, table, perturbed(fitted, seed))} for seed in arguments.seeds]
    rows.append({"start": "fitted", **round_of(arguments.seeds[0], table, fitted)})
    write(arguments.out / "calibration.json", {**head("calibration", "none"), "measured_on": DEVICE, "rows": rows})


if __name__ == "__main__":
    main()
