"""``warpplan calibrate``: the constants of a profile fitted anew to what jobs measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warpplan.planner.errors import InvalidInput
from warpplan.service.cli.shared_options import DeviceName, Json, ProfileFile, StorePlace, print_json, require_store

if TYPE_CHECKING:
    from warpplan.profiler.recalibrate import Fit, Recalibration
    from warpplan.service.calibration.calibrate import CalibrationReport

Out = Annotated[Path | None, typer.Option(help="File for the new profile; without it nothing is written.")]
Environments = Annotated[
    list[str] | None,
    typer.Option(
        "--environment",
        metavar="NAME=VALUE",
        help="Take times measured under this driver, cuda, triton or torch, not the profile's; may be given again.",
    ),
]


def calibrate(
    store: StorePlace = "warpplan.sqlite",
    device: DeviceName = None,
    profile: ProfileFile = None,
    out: Out = None,
    kernel: Annotated[list[str] | None, typer.Option(help="A kernel to calibrate; all that were measured.")] = None,
    environment: Environments = None,
    as_json: Json = False,
) -> None:
    """Fit the time model of a profile anew to the times in a store, and write it as a new profile.

    Each calibration is tried on shapes that it was not fitted to; where it predicts them no better than the old one,
    the old one stays. Serve the new profile with `warpplan serve --profile`: its plans are new plans.
    """
    from warpplan.kernels import registry
    from warpplan.planner.values import codec
    from warpplan.profiler.profile_files import save
    from warpplan.service.calibration.calibrate import calibrate as run
    from warpplan.service.store.answer_store import Store
    from warpplan.service.workflow.profiles import Profiles

    for name in kernel or ():
        registry.kernel(name)
    profiles = Profiles.given(profile, device)
    source = profiles.of(profiles.default_device)
    versions = dict(_version(word) for word in environment or ())
    require_store(store)
    opened = Store.open(store)
    try:
        report = run(opened, source, kernels=kernel or (), versions=versions)
    finally:
        opened.close()
    if out is not None and report.profile is not None:
        save(report.profile, out)
    key = codec.key(report.profile) if report.profile is not None else None
    if as_json:
        return print_json(_as_json(report, key, out))
    for line in _lines(report):
        print(line)
    if key is None:
        print(f"the profile {report.parent[:12]} stays as it is" + (f"; {out} is not written" if out else ""))
    elif out is None:
        print(f"profile {key[:12]}, calibrated from {report.parent[:12]}: name a file with --out to keep it")
    else:
        print(f"{out}: profile {key[:12]}, calibrated from {report.parent[:12]}")
    return None


def _version(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not name or not value:
        raise InvalidInput(
            f"--environment {word!r}: write NAME=VALUE, such as triton=3.6.0", field="environment", value=word
        )
    return name, value


def _lines(report: CalibrationReport) -> list[str]:
    from warpplan.service.calibration.calibrate import environment_line

    lines = [f"{report.used} measured configurations of {report.device} with {environment_line(report.environment)}"]
    lines += [f"  left out: {count} with {environment_line(e)}" for e, count in report.others]
    return lines + [_line(r) for r in report.calibrations]


def _line(r: Recalibration) -> str:
    what = f"{r.name}: {r.configurations} configurations of {r.shapes} shapes"
    what += f", {r.outliers} outliers left out" if r.outliers else ""
    if r.before is None or r.after is None:
        return f"{what}: kept as it is: {r.reason}"
    unseen = (
        f"on unseen shapes the median error is {r.after.error:.2%} after {r.before.error:.2%}, the first choice "
        f"{r.after.regret:.2%} from the best after {r.before.regret:.2%}"
    )
    return f"{what}: kept as it is: {r.reason}" if r.calibration is None else f"{what}: calibrated: {unseen}"


def _as_json(report: CalibrationReport, key: str | None, out: Path | None) -> dict[str, Any]:
    return {
        "parent": report.parent, "profile": key, "out": str(out) if out and key else None, "device": report.device,
        "environment": dict(report.environment), "measured": report.used,
        "left_out": [{"environment": dict(e), "measured": count} for e, count in report.others],
        "calibrations": [
            {
                "name": r.name, "shapes": r.shapes, "configurations": r.configurations, "outliers": r.outliers,
                "reason": r.reason, "calibrated": r.calibration is not None,
                "before": _fit(r.before), "after": _fit(r.after),
            }
            for r in report.calibrations
        ],
    }  # fmt: skip


def _fit(fit: Fit | None) -> dict[str, float] | None:
    return None if fit is None else {"median_error": fit.error, "regret": fit.regret}
