"""``warpplan calibrate`` on a store of times that other constants have made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from warpplan.planner.values import codec
from warpplan.planner.values.device import device
from warpplan.planner.values.profile import Profile
from warpplan.profiler.embedded import embedded
from warpplan.profiler.profile_files import load, save
from warpplan.service.cli.app import main
from warpplan.service.store.answer_store import Store
from warpplan.service.store.measured_times import Measurement
from warpplan.service.store.stored_values import Environment, environment_of
from warpplan.service.workflow.configure import Workflow
from warpplan.service.workflow.profiles import Profiles
from warpplan.service.workflow.request import Item

DEVICE = "NVIDIA H200"
SHAPES = [
    (512, 512, 512), (4096, 4096, 512), (128, 8192, 4096), (2048, 2048, 2048), (8192, 1024, 8192), (1000, 3000, 1032),
]  # fmt: skip
VERSIONS = ("driver", "cuda", "triton", "torch")


def environment(**changes: str) -> Environment:
    identity = embedded(DEVICE).identity
    return environment_of({**{name: getattr(identity, name) for name in VERSIONS}, "gpu": DEVICE, **changes})


def changed(profile: Profile, part: float) -> Profile:
    """``profile`` with constants of the GEMM that are too large or too small by ``part``."""
    signs = np.random.default_rng(18).choice([-1.0, 1.0], 500)
    found = profile.calibration("gemm")
    assert found is not None
    pairs = zip(found.constants, signs, strict=False)
    others = tuple((name, value * (1.0 + part * sign)) for (name, value), sign in pairs)
    rest = tuple(c for c in profile.calibrations if c.kernel != "gemm")
    return replace(profile, calibrations=(*rest, replace(found, constants=others)))


def measured(path: Path, of: Environment, shapes: list[tuple[int, int, int]] = SHAPES, scale: float = 1.0) -> None:
    """Keep what the embedded profile predicts, as measured: of every tenth candidate, because neighbours are alike."""
    workflow = Workflow()
    reports = []
    for m, n, k in shapes:
        problem, ranked = workflow.candidates(Item("gemm", (("M", m), ("N", n), ("K", k))), 120)
        reports += [Measurement(problem, r.config, scale * r.prediction.time_us, 9, of) for r in ranked[::10]]
    store = Store.open(path)
    store.measurements.record(reports)
    store.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of times, and a profile whose constants are 15 % off."""
    path = tmp_path_factory.mktemp("calibrate")
    measured(path / "s.sqlite", environment())
    measured(path / "s.sqlite", environment(driver="999.1"), scale=3.0)
    measured(path / "s.sqlite", environment_of({}), scale=5.0)
    save(changed(embedded(DEVICE), 0.15), path / "off.json")
    return path


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, object]:
    out = folder / "report.json"
    with pytest.MonkeyPatch.context() as patch, out.open("w") as stream:
        patch.setattr("sys.stdout", stream)
        arguments = ["--store", f"{folder}/s.sqlite", "--profile", f"{folder}/off.json", "--out", f"{folder}/new.json"]
        assert main(["calibrate", *arguments, "--json"]) == 0
    return json.loads(out.read_text())


def test_a_profile_that_is_off_is_brought_back(folder: Path, report: dict[str, object]) -> None:
    (one,) = report["calibrations"]  # type: ignore[misc]
    assert (one["name"], one["calibrated"], one["shapes"], one["configurations"]) == ("gemm", True, 6, 72)
    assert one["after"]["median_error"] < 0.5 * one["before"]["median_error"]


def test_times_of_other_machines_and_of_unknown_ones_are_left_out(report: dict[str, object]) -> None:
    assert report["measured"] == 72
    left = report["left_out"]
    assert isinstance(left, list)
    assert sorted(entry["environment"].get("driver", "") for entry in left) == ["", "999.1"]
    assert [entry["measured"] for entry in left] == [72, 72]


def test_the_new_profile_names_its_parent_and_makes_new_plans(folder: Path, report: dict[str, object]) -> None:
    old, new = load(folder / "off.json"), load(folder / "new.json")
    assert (new.parent, report["parent"]) == (codec.key(old), codec.key(old))
    assert report["profile"] == codec.key(new) != codec.key(old)
    assert (new.identity, new.costs) == (old.identity, old.costs)
    item = Item("gemm", (("M", 512), ("N", 512), ("K", 512)))
    store = Store.open(folder / "plans.sqlite")
    before = Workflow(store, Profiles(old)).configure(item)
    after = Workflow(store, Profiles.load(folder / "new.json")).configure(item)
    assert (after.kind, after.profile) == ("planned", codec.key(new))
    again = Workflow(store, Profiles(old)).configure(item)
    assert (again.kind, again.profile, again.body) == ("exact", codec.key(old), replace(before, kind="exact").body)
    store.close()


def test_a_profile_that_fits_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The times are the embedded profile's own: no constants predict them better."""
    out = folder / "none.json"
    assert main(["calibrate", "--store", f"{folder}/s.sqlite", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "gemm: 72 configurations of 6 shapes: kept as it is: on unseen shapes the median error would be" in printed
    assert f"stays as it is; {out} is not written" in printed
    assert not out.exists()


def test_few_shapes_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured(tmp_path / "s.sqlite", environment(), SHAPES[:3])
    assert main(["calibrate", "--store", f"{tmp_path}/s.sqlite"]) == 0
    assert "kept as it is: 3 shapes were measured, 5 are needed" in capsys.readouterr().out


def test_another_environment_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured(tmp_path / "s.sqlite", environment(driver="999.1"), SHAPES[:3])
    store = ["calibrate", "--store", f"{tmp_path}/s.sqlite"]
    assert main(store) == 2
    said = capsys.readouterr().err
    assert "but 36 with cuda=13.0 driver=999.1" in said
    assert said.count("\n") == 1
    assert main([*store, "--environment", "driver=999.1"]) == 0
    assert "36 measured configurations of NVIDIA H200 with cuda=13.0 driver=999.1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--environment", "driver"], "write NAME=VALUE"),
        (["--environment", "gpu=x"], "expected one of driver, cuda, triton, torch"),
        (["--kernel", "gem"], "unknown kernel 'gem'"),
        (["--device", "TPU"], "TPU"),
        ([], "has no measured time of NVIDIA H200 with"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Store.open(tmp_path / "empty.sqlite").close()
    assert main(["calibrate", "--store", f"{tmp_path}/empty.sqlite", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_device_is_the_profiles(folder: Path) -> None:
    assert device(load(folder / "off.json").identity.gpu).name == DEVICE
