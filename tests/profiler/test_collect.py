"""Collecting with real children that stream scripted records: they crash, hang, fail, are interrupted as probes are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warpplan.kernels.isolate import IsolatedResult, run_isolated
from warpplan.planner.errors import InvalidInput, MalformedFile, MeasurementFailed, UnknownName
from warpplan.profiler import collect as module
from warpplan.profiler.additions import REFERENCES
from warpplan.profiler.collect import collect, partial_path
from warpplan.profiler.probes import points
from warpplan.profiler.probes.points import FAMILIES
from warpplan.profiler.profile_files import load, save
from warpplan.profiler.records import profile_of

from .machines import IDENTITY, MACHINE, record, records

SCRIPT = """
import json, os, time
def stream(steps):
    for step in steps:
        if step == "abort":
            os.abort()
        if step == "hang":
            time.sleep(600)
        yield step
"""


class Machine:
    """Stands in for the GPU: says who it is, and plays each point in a real child, with the trouble asked for."""

    def __init__(self, trouble: dict[str, str], identity: dict[str, str] | None = None) -> None:
        self.trouble, self.identity = trouble, identity or MACHINE
        self.children = 0
        self.measured: list[str] = []
        self.interrupt_at: str | None = None
        self.scale = 1.0

    def __call__(self, target: str, args: Any = (), **keywords: Any) -> IsolatedResult:
        if target.endswith(":machine"):
            return run_isolated("builtins:dict", [list(self.identity.items())], **keywords)
        assert target == "warpplan.profiler.probes:measure"
        family, skip = args
        self.children += 1
        steps: list[Any] = []
        for point in points(family):
            if point.label in skip:
                continue
            trouble = self.trouble.get(point.label)
            steps += [{"start": point.label}, record(point, self.scale)]
            if trouble in ("abort", "hang"):
                steps.append(trouble)
                break
            if trouble == "die before":
                steps = [*steps[:-2], "abort"]
                break
            steps.append({"failed": point.label, "reason": trouble} if trouble else {"done": point.label})
        code = f"[exec({SCRIPT!r}, globals()), stream(__import__('json').loads({json.dumps(steps)!r}))][1]"
        listener = keywords.pop("on_item")

        def heard(item: Any) -> None:
            if "start" in item:
                if item["start"] == self.interrupt_at:
                    raise KeyboardInterrupt
                self.measured.append(item["start"])
            listener(item)

        return run_isolated("builtins:eval", [code], on_item=heard, **keywords)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    stand_in = Machine({})
    monkeypatch.setattr(module, "run_isolated", stand_in)
    return stand_in


LACKING = [FAMILIES["wgmma"][-1].label, *(p.label for p in FAMILIES["gather"])]
HANDOFFS = [p.label for p in points("handoff")]


def test_a_profile_is_written_with_all_points_and_its_identity(machine: Machine, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    seen: list[tuple[int, int, str]] = []
    profile = collect(out, probes=["handoff", "ceilings"], progress=lambda *a: seen.append(a))
    assert load(out) == profile
    assert not partial_path(out).exists()
    assert (profile.identity.gpu, profile.identity.command) == ("NVIDIA H200", "warpplan profile --out p.json")
    assert len(profile.costs.entries) == 3
    assert profile.costs.lookup("handoff", scope="group_to_warp").latency.count == 80
    assert profile.failures == profile.notes == ()
    total = 2 * (len(points("handoff")) + len(points("ceilings")))
    assert [s[:2] for s in seen] == [(n, total) for n in range(total + 1)]


@pytest.mark.parametrize(
    ("trouble", "reason"), [("abort", "SIGABRT"), ("hang", "no answer for 2 s"), ("no memory", "no memory")]
)
def test_a_point_that_misbehaves_is_a_failure_and_the_rest_is_measured(
    machine: Machine, tmp_path: Path, trouble: str, reason: str
) -> None:
    machine.trouble = {HANDOFFS[1]: trouble}
    profile = collect(tmp_path / "p.json", probes=["handoff"], passes=1, time_limit_s=2.0)
    assert [f.probe for f in profile.failures] == [HANDOFFS[1]]
    assert reason in profile.failures[0].reason
    assert sorted(e.label for e in profile.costs.entries) == sorted({*HANDOFFS} - {HANDOFFS[1]})


def test_a_child_that_cannot_start_fails_its_family_once(machine: Machine, tmp_path: Path) -> None:
    machine.trouble = {HANDOFFS[0]: "die before"}
    with pytest.raises(MeasurementFailed, match="nothing could be measured: crash: killed by SIGABRT"):
        collect(tmp_path / "p.json", probes=["handoff"], passes=1)
    assert machine.children == 1


def test_a_gpu_that_hangs_on_everything_is_not_waited_for_point_by_point(machine: Machine, tmp_path: Path) -> None:
    machine.trouble = {p.label: "abort" for p in points("tma")}
    with pytest.raises(MeasurementFailed):
        collect(tmp_path / "p.json", probes=["tma"], passes=1)
    assert machine.children == module.CONSECUTIVE_FAILURES


def test_an_interrupted_run_keeps_what_it_has(machine: Machine, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    machine.interrupt_at = HANDOFFS[2]
    with pytest.raises(KeyboardInterrupt):
        collect(out, probes=["handoff"], passes=1)
    assert not out.exists()
    assert len(json.loads(partial_path(out).read_text())["done"]) == 2
    machine.interrupt_at, machine.measured = None, []
    assert len(collect(out, probes=["handoff"], passes=1).costs.entries) == 3
    assert machine.measured == [HANDOFFS[2]]


def test_starting_afresh_forgets_the_unfinished_run(machine: Machine, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    machine.interrupt_at = HANDOFFS[2]
    with pytest.raises(KeyboardInterrupt):
        collect(out, probes=["handoff"], passes=1)
    machine.interrupt_at, machine.measured = None, []
    collect(out, probes=["handoff"], passes=1, resume=False)
    assert machine.measured == HANDOFFS


def test_an_unfinished_run_of_another_machine_is_refused(machine: Machine, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    machine.interrupt_at = HANDOFFS[1]
    with pytest.raises(KeyboardInterrupt):
        collect(out, probes=["handoff"], passes=1)
    machine.identity = MACHINE | {"driver": "590.2"}
    with pytest.raises(InvalidInput, match=r"driver 580\.1.*not mixed: delete the file or do not resume"):
        collect(out, probes=["handoff"], passes=1)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"schema": "warpplan/profile-1"}', '{"schema": "warpplan/profile-partial-1"}']
)
def test_a_broken_unfinished_file_is_named(machine: Machine, tmp_path: Path, text: str) -> None:
    out = tmp_path / "p.json"
    partial_path(out).write_text(text)
    with pytest.raises(MalformedFile, match=r"p\.json\.partial"):
        collect(out, probes=["handoff"])


def test_passes_that_disagree_are_noted(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drifting(*args: Any, **keywords: Any) -> IsolatedResult:
        machine.scale = 1.0 + 0.2 * machine.children
        return machine(*args, **keywords)

    monkeypatch.setattr(module, "run_isolated", drifting)
    profile = collect(tmp_path / "p.json", probes=["ceilings"])
    assert any("launch_us: 1e+12 once and 1.2e+12 the other time (20% apart)" in note for note in profile.notes)
    assert dict(profile.ceilings)["launch_us"].p50 == pytest.approx(1.1e12)


def test_a_machine_without_gpu_says_what_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run_isolated", lambda *a, **k: IsolatedResult("error", None, "no GPU", 0.1))
    with pytest.raises(MeasurementFailed, match=r"cannot be profiled: no GPU; it takes an NVIDIA GPU and `pip install"):
        collect(tmp_path / "p.json")


def test_bad_requests(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="unknown probe 'x'"):
        collect(tmp_path / "p.json", probes=["x"])
    with pytest.raises(InvalidInput, match="0 passes"):
        collect(tmp_path / "p.json", passes=0)
    with pytest.raises(InvalidInput, match="cannot be written"):
        collect(tmp_path / "missing" / "p.json")


def _recorded(path: Path) -> Path:
    """A profile that lacks some points of two families."""
    whole = profile_of(IDENTITY, [records()])
    entries = tuple(e for e in whole.costs.entries if e.label not in LACKING)
    save(replace(whole, costs=replace(whole.costs, entries=entries)), path)
    return path


def test_only_what_a_recorded_profile_lacks_is_added_to_it(machine: Machine, tmp_path: Path) -> None:
    old, out = _recorded(tmp_path / "old.json"), tmp_path / "new.json"
    machine.identity = MACHINE | {"driver": "590.2"}
    seen: list[tuple[int, int, str]] = []
    profile = collect(out, passes=1, add_to=old, progress=lambda *a: seen.append(a))
    assert sorted(machine.measured) == sorted([*(p.label for p in REFERENCES.values()), *LACKING])
    assert seen[-1][:2] == (len(machine.measured), len(machine.measured))
    assert load(out) == profile
    assert profile.identity == load(old).identity
    assert len(profile.costs.entries) == len(load(old).costs.entries) + len(LACKING)
    assert not partial_path(out).exists()
    machine.measured = []
    assert collect(old, add_to=out) == profile == load(old)
    assert machine.measured == []


def test_nothing_is_measured_for_a_profile_of_other_software(machine: Machine, tmp_path: Path) -> None:
    old, out = _recorded(tmp_path / "old.json"), tmp_path / "new.json"
    machine.identity = MACHINE | {"triton": "3.9.0"}
    with pytest.raises(InvalidInput, match=r"recorded with triton 3\.6\.0, here it is 3\.9\.0"):
        collect(out, add_to=old)
    assert machine.measured == []
    assert not out.exists()
    assert not partial_path(out).exists()


def test_a_refused_addition_is_measured_afresh_the_next_time(machine: Machine, tmp_path: Path) -> None:
    old, out = _recorded(tmp_path / "old.json"), tmp_path / "new.json"
    machine.scale = 1.1
    with pytest.raises(InvalidInput, match=r"\+10\.0% where 2% is the limit"):
        collect(out, passes=1, add_to=old)
    assert not out.exists()
    machine.scale = 1.0
    assert collect(out, passes=1, add_to=old).notes


def test_a_new_recording_of_a_known_gpu_keeps_its_calibrations():
    from warpplan.profiler.collect import recorded_calibrations
    from warpplan.profiler.embedded import available, embedded

    (known, *_) = available()
    assert recorded_calibrations(known) == embedded(known).calibrations != ()
    assert recorded_calibrations("NVIDIA Imaginary") == ()
