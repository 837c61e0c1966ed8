"""EntryProvenance beside an entry: read back as written, gone with the entry's next state, and what makes it stale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.service.feeds.machine_here import Machine
from warpplan.service.feeds.provenance import (
    LOCK_FILE,
    EntryProvenance,
    beside,
    digest_of,
    keep_replaced,
    measured,
    one_writer,
    planned,
    read_beside,
    why_unknown,
    write_beside,
    write_whole,
)

H200 = Machine(("NVIDIA H200",), "570.86")
PLANNED = planned(
    "triton", device="NVIDIA H200", driver="570.86", profile="p" * 64, planner="1.0", versions={"triton": "3.6.0"}
)


def written(path: Path, found: EntryProvenance, data: bytes = b"entry") -> Path:
    path.write_bytes(data)
    write_beside(path, replace(found, digest=digest_of(data)))
    return path


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_it_is_read_as_it_is_written(tmp_path_factory: pytest.TempPathFactory, device: str, planner: str) -> None:
    path = tmp_path_factory.mktemp("entry") / "entry.json"
    found = replace(PLANNED, device=device, planner=planner, digest=digest_of(b"entry"))
    assert read_beside(written(path, found)) == found


def test_an_entry_that_changed_since_has_none(tmp_path: Path) -> None:
    path = written(tmp_path / "entry.json", PLANNED)
    path.write_bytes(b"tuned by the job")
    assert read_beside(path) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"schema": "warpplan/provenance-1"}', "null"])
def test_a_damaged_one_is_none(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "entry.json", PLANNED)
    beside(path).write_text(text)
    assert read_beside(path) is None
    assert "is damaged" in why_unknown(path)


def test_why_nobody_knows_what_an_entry_is_for(tmp_path: Path) -> None:
    path = written(tmp_path / "entry.json", PLANNED)
    assert why_unknown(path) == ""
    path.write_bytes(b"tuned by the job")
    assert "it was changed since its provenance entry.json.warpplan.json was written" in why_unknown(path)
    beside(path).unlink()
    assert "is missing: no entry.json.warpplan.json" in why_unknown(path)


@pytest.mark.parametrize(
    ("machine", "versions", "changed"),
    [
        (H200, {}, ""),
        (Machine(), {}, ""),
        (H200, {"triton": "3.6.0", "torch": "2.13.0"}, ""),
        (Machine(("NVIDIA H100",), "570.86"), {}, "the GPU (was NVIDIA H200, is NVIDIA H100)"),
        (Machine(("NVIDIA H200",), "580.10"), {}, "the driver (was 570.86, is 580.10)"),
        (H200, {"triton": "3.9.0"}, "triton (was 3.6.0, is 3.9.0)"),
    ],
)
def test_what_changed_is_named(machine: Machine, versions: dict[str, str], changed: str) -> None:
    reason = PLANNED.stale(machine, versions)
    assert reason.endswith(changed)
    assert bool(reason) == bool(changed)


def test_what_a_job_measured_is_for_its_machine() -> None:
    found = measured("triton", b"entry", H200)
    assert (found.device, found.driver, found.profile) == ("NVIDIA H200", "570.86", "")
    assert measured("triton", b"entry", Machine(("A", "B"), "1")).device == "", "which of the two is not known"


def test_a_reader_finds_the_old_file_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_whole(path, b"old")
    with path.open("rb") as reader:
        write_whole(path, b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    (path.parent / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_whole(path.parent / "folder", b"x")
    assert len(list(path.parent.iterdir())) == 2, "what could not be put in place is removed"


def test_a_file_that_is_replaced_is_kept_once(tmp_path: Path) -> None:
    path = tmp_path / "entry.json"
    assert keep_replaced(path) == keep_replaced(tmp_path / "nothing" / "entry.json") == ()
    path.write_bytes(b"tuned")
    assert keep_replaced(path, b"tuned") == ()
    (copy,) = keep_replaced(path, b"planned")
    assert keep_replaced(path) == (copy,)
    assert Path(copy).read_bytes() == path.read_bytes() == b"tuned"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["entry.json", Path(copy).name]


def test_a_second_writer_waits_for_so_long_and_no_longer(tmp_path: Path) -> None:
    out = tmp_path / "new"
    with one_writer(out):
        with (
            pytest.raises(TimeoutError, match=r"another export has been writing there for 0.05 s"),
            one_writer(out, 0.05),
        ):
            pass
        (out / LOCK_FILE).chmod(0o444)
        with pytest.raises(TimeoutError), one_writer(out, 0.0):
            pass
    with one_writer(out, 0.0):
        assert [path.name for path in out.iterdir()] == [LOCK_FILE]
