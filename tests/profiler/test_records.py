from __future__ import annotations

from pathlib import Path

import pytest

from warpplan.planner.errors import InvalidInput, MalformedFile, UnknownName
from warpplan.planner.values import codec
from warpplan.profiler import embedded as embedded_module
from warpplan.profiler.embedded import available, embedded
from warpplan.profiler.probes.points import Point
from warpplan.profiler.profile_files import load, save
from warpplan.profiler.records import profile_of

from .machines import IDENTITY, record, records

STORE = Point.of("tma_store", bytes=8192)


def test_passes_widen_the_spread_and_never_narrow_it() -> None:
    first, second = record(STORE), record(STORE)
    first["cost"]["latency"] = {"p50": 100.0, "p90": 130.0, "count": 40}
    second["cost"]["latency"] = {"p50": 120.0, "p90": 125.0, "count": 30}
    second["cost"]["issue"] = None
    (entry,) = profile_of(IDENTITY, [[first], [second]]).costs.entries
    assert (entry.cost.latency.p50, entry.cost.latency.p90, entry.cost.latency.count) == (110.0, 130.0, 70)
    assert entry.cost.issue.count == 40


def test_rates_keep_the_lowest_and_highest_of_all_passes() -> None:
    rates = [
        [{"ceiling": "copy_bytes_per_s", "rate": {"p50": p50, "p10": p10, "p90": p90, "count": 20}}]
        for p50, p10, p90 in ((4.0, 3.8, 4.1), (4.2, 4.1, 4.3))
    ]
    ((name, rate),) = profile_of(IDENTITY, rates).ceilings
    assert (name, rate.p50, rate.p10, rate.p90, rate.count) == ("copy_bytes_per_s", 4.1, 3.8, 4.3, 40)


def test_the_order_of_measurement_does_not_show_in_the_profile() -> None:
    assert profile_of(IDENTITY, [records()]) == profile_of(IDENTITY, [records()[::-1]])


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    profile = profile_of(IDENTITY, [records(), records(1.01)], notes=("a note",))
    path = tmp_path / "p.json"
    save(profile, path)
    assert load(path) == profile
    assert list(tmp_path.iterdir()) == [path]


def test_files_that_are_no_profiles_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    with pytest.raises(InvalidInput, match=r"p\.json cannot be read: No such file"):
        load(path)
    path.write_text('{"schema":\n "warpplan/profile-1",\n')
    with pytest.raises(MalformedFile, match=r"p\.json:\d: not JSON"):
        load(path)
    path.write_text('{"schema": "warpplan/profile-1"}')
    with pytest.raises(MalformedFile, match="identity"):
        load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(MalformedFile):
        load(path)


def test_a_full_disk_or_missing_folder_leaves_no_half_file(tmp_path: Path) -> None:
    profile = profile_of(IDENTITY, [records()])
    with pytest.raises(InvalidInput, match="cannot be written"):
        save(profile, tmp_path / "missing" / "p.json")
    for folder in (tmp_path, Path(), Path("/")):
        with pytest.raises(InvalidInput, match="cannot be written: Is a directory"):
            save(profile, folder)
    assert list(tmp_path.iterdir()) == []


def test_a_device_without_an_embedded_profile_lists_those_that_have_one() -> None:
    with pytest.raises(UnknownName) as caught:
        embedded("NVIDIA B200")
    assert caught.value.limit == list(available())


@pytest.mark.parametrize("device", available())
def test_an_embedded_profile_is_of_its_device_and_complete(device: str) -> None:
    profile = embedded(device)
    assert profile.identity.gpu == device
    assert profile.failures == ()
    assert embedded(device) is profile
    assert codec.from_json(codec.to_json(profile)) == profile


def test_an_embedded_profile_is_found_by_the_devices_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = profile_of(IDENTITY, [records()])
    (tmp_path / "data").mkdir()
    save(profile, tmp_path / "data" / "nvidia_h200.json")
    monkeypatch.setattr(embedded_module.resources, "files", lambda _: tmp_path)
    for function in (available, embedded):
        function.cache_clear()
    try:
        assert available() == ("NVIDIA H200",)
        assert embedded("NVIDIA H200") == profile
        with pytest.raises(UnknownName, match="expected one of NVIDIA H200"):
            embedded("NVIDIA B200")
    finally:
        for function in (available, embedded):
            function.cache_clear()
