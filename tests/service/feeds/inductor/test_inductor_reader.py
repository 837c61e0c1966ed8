"""Torch's own lookups hit the exported table: unmodified, as on a machine with the GPU, which there is none of here."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (no GPU): make test-feeds installs it")
pytest.importorskip("triton", reason="needs triton (no GPU): make test-feeds installs it")

from torch._inductor import config
from torch._inductor.lookup_table.choices import LookupTableChoices
from torch._inductor.virtualized import V

from warpplan.planner.errors import InvalidInput, MalformedFile, StoreError
from warpplan.planner.values.device import device
from warpplan.profiler.embedded import embedded
from warpplan.service.cli.app import main
from warpplan.service.feeds import ExportRow, FeedRequest
from warpplan.service.feeds.inductor import choices, paper_torch, table_feed
from warpplan.service.feeds.inductor.choices import PlannedChoices, usable_table
from warpplan.service.feeds.inductor.mm_problem import plain_product, problem_of
from warpplan.service.feeds.inductor.table_file import FILE_NAME, load_table
from warpplan.service.feeds.machine_here import Machine

H200 = device("NVIDIA H200")
PROFILE = embedded("NVIDIA H200")
SHAPES = [(1024 * m, 1024 * n, 512 * k) for m in (1, 2, 4) for n in (1, 4) for k in (1, 2, 4, 8)]
PROBLEMS = [plain_product(*shape, "bfloat16") for shape in SHAPES]


def request(out: Path, shapes: list[Any] | None = None, **changes: Any) -> FeedRequest:
    rows = [ExportRow(tuple(s), "bfloat16", "NVIDIA H200", PROFILE) for s in (SHAPES if shapes is None else shapes)]
    given = {"rows": lambda: rows, "planner": "1.0+abc", **changes}
    return FeedRequest(out, "NVIDIA H200", PROFILE, **given)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("inductor")
    report = table_feed.export(request(out))
    assert len(report.entries) == len(SHAPES) == 24
    return out


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    (tmp_path / FILE_NAME).write_bytes((exported / FILE_NAME).read_bytes())
    return tmp_path


@pytest.fixture
def inductor() -> Iterator[None]:
    """Torch's choices put back as they were."""
    before = config.inductor_choices_class
    handler = V.choices
    yield
    config.inductor_choices_class = before
    V.set_choices_handler(handler)


def edit(out: Path, **changes: Any) -> None:
    path = out / FILE_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_torchs_stock_reader_hits_every_key(exported: Path) -> None:
    table = dict(load_table(exported / FILE_NAME).table)
    with paper_torch.pretending(H200), config.patch({"lookup_table.table": table}):
        found = paper_torch.looked_up(LookupTableChoices(), PROBLEMS)
    assert sum(any("BLOCK_M" in entry for entry in entries) for entries in found) == 24
    for problem, entries in zip(PROBLEMS, found, strict=True):
        tile, aten = entries if "BLOCK_M" in entries[0] else entries[::-1]
        written = next(e for e in table[problem.key(H200.name)] if "BLOCK_M" in e)
        assert tile == {k: v for k, v in written.items() if k != "template_hash"}
        assert aten == {"template_id": "aten::mm"}


def test_inductor_would_compile_that_tile_alone(exported: Path) -> None:
    """One step further than the lookup: torch's own candidates for a product, made from the entry."""
    table = {
        key: [e for e in entries if "BLOCK_M" in e] for key, entries in load_table(exported / FILE_NAME).table.items()
    }
    made: list[Any] = []

    class Noting(PlannedChoices):
        def lookup_template_configs(self, kernel_inputs: Any, op_name: str, *more: Any) -> Any:
            found = super().lookup_template_configs(kernel_inputs, op_name, *more)
            from torch._inductor.kernel.mm import mm_template

            made.extend(self._create_lookup_choices(found, [mm_template], kernel_inputs, op_name))
            return found

    with paper_torch.pretending(H200):
        paper_torch.looked_up(Noting(table), PROBLEMS[:3])
    assert len(made) == 3
    for problem, candidate in zip(PROBLEMS, made, strict=False):
        kwargs = candidate.params.to_kwargs()
        (entry,) = table[problem.key(H200.name)]
        assert {name: kwargs[name] for name in table_feed.TILE_FIELDS} == {n: entry[n] for n in table_feed.TILE_FIELDS}


def test_verify_says_hit(exported: Path) -> None:
    report = table_feed.verify(request(exported))
    assert report.all_hit
    assert {e.reason for e in report.entries} == {""}
    (later,) = {e.reason for e in table_feed.verify(request(exported, planner="2.0")).entries}
    assert "not today's planner" in later


def test_what_was_not_exported_is_a_miss_with_its_reason(exported: Path) -> None:
    (entry,) = table_feed.verify(request(exported, shapes=[(1024, 1024, 640)])).entries
    assert (entry.hit, entry.config) == (False, None)
    assert "no entry for these sizes" in entry.reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"digest": "0"}, "digest does not match"),
        ({"versions": {"torch": "2.12.0"}}, "stale: .* torch .was 2.12.0"),
        ({"versions": {"torch": "2.13.0", "triton": "3.5.0"}}, "stale: .* triton .was 3.5.0"),
    ],
)
def test_a_damaged_or_stale_table_is_a_miss_of_all(copy: Path, changes: dict[str, Any], reason: str) -> None:
    edit(copy, **changes)
    entries = table_feed.verify(request(copy)).entries
    assert not any(e.hit for e in entries)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(entries[0].reason)
    with pytest.warns(RuntimeWarning, match="not used"):
        assert usable_table(copy, Machine()) == {}, "nor does the job use it"


def test_an_entry_for_another_template_or_gpu_is_a_miss_with_its_reason(copy: Path) -> None:
    path = copy / FILE_NAME
    found = load_table(path)
    first, second, *_ = (p.key(H200.name) for p in PROBLEMS)
    table = {**found.table, first: [{**found.table[first][0], "template_hash": "0" * 64}]}
    table[second.replace("H200", "H100 80GB HBM3")] = table.pop(second)
    edit(copy, table=table, digest=table_feed.digest(table))
    one, two, *rest = table_feed.verify(request(copy)).entries
    assert (one.hit, two.hit, all(e.hit for e in rest)) == (False, False, True)
    assert "another state of torch's template" in one.reason
    assert "another GPU" in two.reason


def test_a_table_of_another_gpu_or_driver_is_not_used_in_the_job(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "warn_once", lambda text: said.append(text))
    said: list[str] = []
    edit(copy, driver="570.86")
    assert usable_table(copy, Machine(("NVIDIA H200",), "570.86"))
    assert usable_table(copy, Machine(("NVIDIA H100 80GB HBM3",), "570.86")) == {}
    assert usable_table(copy, Machine(("NVIDIA H200",), "580.10")) == {}
    assert ["the GPU" in said[0], "the driver" in said[1]] == [True, True]


def test_a_depth_that_is_cut_short_is_masked_whatever_the_table_says() -> None:
    """A wrong EVEN_K would give wrong products."""
    whole, cut = plain_product(1024, 1024, 1024, "bfloat16"), plain_product(1024, 1024, 1000, "bfloat16")
    entry = {"template_id": "triton::mm", "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "EVEN_K": True}
    table = {problem.key(H200.name): [entry] for problem in (whole, cut)}
    with paper_torch.pretending(H200):
        ((one,), (two,)) = paper_torch.looked_up(PlannedChoices(table), [whole, cut])
    assert (one["EVEN_K"], two["EVEN_K"]) == (True, False)


def test_keys_that_a_job_asked_for_are_exported(tmp_path: Path) -> None:
    biased = problem_of(
        "((torch.bfloat16, [1024], [1]), (torch.bfloat16, [2048, 512], [512, 1]), "
        "(torch.bfloat16, [512, 1024], [1, 512]))+alpha=1&beta=1+addmm"
    )
    keys = tmp_path / "keys.txt"
    with paper_torch.pretending(H200):
        paper_torch.looked_up(PlannedChoices({}, keys), [PROBLEMS[0], biased, PROBLEMS[0]])
    assert keys.read_text().splitlines() == [PROBLEMS[0].key(), biased.key()]
    keys.write_bytes("\ufeff".encode() + keys.read_bytes())
    with keys.open("a") as file:
        file.write("((torch.int8, [8, 8], [8, 1]), (torch.int8, [8, 8], [8, 1]))+int_mm\n")
    asked = request(tmp_path, consumer=str(keys), arguments={"aten": False})
    report = table_feed.export(asked)
    assert [e.key for e in report.entries] == [(p.key(H200.name),) for p in (PROBLEMS[0], biased)]
    assert len(report.skipped) == 1
    assert [len(entries) for entries in load_table(tmp_path / FILE_NAME).table.values()] == [1, 1], "ATen left out"
    assert table_feed.verify(asked).all_hit


@pytest.mark.parametrize("command", ["export", "verify"])
def test_a_bad_line_of_shapes_is_named_and_costs_no_other(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shapes.csv").write_text("M,N,K\nmany,64,64\n1024,1024,512\n64\n2048,1024,512\n")
    words = ("shapes.csv", "--target", "inductor", "--out", "tables")
    assert main(["export", *words]) == 2
    capsys.readouterr()
    assert main([command, *words, "--json"]) == 2
    said = capsys.readouterr()
    assert len(json.loads(said.out)["entries"]) == 2
    assert [line for line in said.err.splitlines() if line.startswith("warpplan: ")] == [
        "warpplan: error: shapes.csv:2: M='many' is not a whole number",
        "warpplan: error: shapes.csv:4: 1 columns, the header has 3 (M,N,K)",
        "warpplan: error: 2 of 4 lines could not be planned, named above",
    ]
    Path("shapes.csv").write_text("M,N,K\n0,64,64\n")
    assert main([command, "shapes.csv", "--target", "inductor", "--out", "none"]) == 2
    assert "1 of 1 lines could not be planned, named above" in capsys.readouterr().err
    assert not Path("none").exists()
    for kernel, told in (("vector_add", "bundled holds no shape of vector_add"), ("nothing", "unknown kernel 'not")):
        assert main([command, "bundled", "--target", "inductor", "--out", "none", "--kernel", kernel]) == 2
        assert told in capsys.readouterr().err


def test_rows_that_tma_cannot_address_are_exported_from_shapes_as_from_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor's template has no TMA. One tile is enough: each is assembled."""
    monkeypatch.setattr(paper_torch, "listed_tiles", lambda problem: (paper_torch.MmTile(64, 64, 32, 4, 2),))
    (tmp_path / "shapes.csv").write_text("M,N,K,dtype\n1000,3000,777,float16\n")
    (tmp_path / "keys.txt").write_text(plain_product(1000, 3000, 777, "float16").key())
    words = ["export", "--target", "inductor", "--device", H200.name]
    assert main([*words, str(tmp_path / "shapes.csv"), "--out", str(tmp_path / "shapes")]) == 0
    assert main([*words, "--consumer", str(tmp_path / "keys.txt"), "--out", str(tmp_path / "keys")]) == 0
    assert main(["verify", *words[1:], str(tmp_path / "shapes.csv"), "--out", str(tmp_path / "shapes")]) == 0
    one, two = (load_table(tmp_path / out / FILE_NAME).table for out in ("shapes", "keys"))
    assert one == two
    assert len(one) == 1


def test_export_tells_which_product_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paper_torch, "listed_tiles", lambda problem: (paper_torch.MmTile(64, 64, 32, 4, 2),))
    said: list[tuple[int, int, str]] = []
    table_feed.export(request(tmp_path, SHAPES[:2], progress=lambda *told: said.append(told)))
    assert said == [(0, 2, "1024x1024x512 bfloat16"), (1, 2, "1024x1024x1024 bfloat16")]
    (tmp_path / "shapes.csv").write_text("M,N,K\n1024,1024,512\n")
    assert main(["export", str(tmp_path / "shapes.csv"), "--target", "inductor", "--out", str(tmp_path)]) == 0
    assert "1024x1024x512" not in capsys.readouterr().err, "stderr is no terminal here"
    stderr = io.StringIO()
    stderr.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stderr)
    assert main(["export", str(tmp_path / "shapes.csv"), "--target", "inductor", "--out", str(tmp_path)]) == 0
    assert "1024x1024x512 bfloat16" in stderr.getvalue()


def test_entries_of_an_earlier_planner_stay_and_verify_says_so(tmp_path: Path) -> None:
    for number, planner in enumerate(["1", "1", "2"]):
        report = table_feed.export(request(tmp_path, shapes=[SHAPES[number]], planner=planner))
        assert (len(load_table(tmp_path / FILE_NAME).table), report.kept) == (number + 1, ())
    asked = request(tmp_path, shapes=SHAPES[:3], planner="2")
    reasons = [entry.reason for entry in table_feed.verify(asked).entries]
    assert reasons == ["planned by 1, not today's planner"] * 2 + [""]
    table_feed.export(request(tmp_path, shapes=SHAPES[:1], planner="2"))
    assert [entry.reason for entry in table_feed.verify(asked).entries] == ["", reasons[0], ""], "exported anew"


@pytest.mark.parametrize(
    ("older", "now", "made_for"),
    [
        ({"driver": "570.86"}, "580.10", "driver 570.86"),
        ({"driver": "570.86"}, "", "driver 570.86"),
        ({"versions": {"torch": "2.11.0"}}, "", "torch 2.11.0"),
        ({"device": "NVIDIA H100 80GB HBM3"}, "", "NVIDIA H100 80GB HBM3"),
    ],
)
def test_a_table_for_something_else_is_kept_beside(
    copy: Path, monkeypatch: pytest.MonkeyPatch, older: dict[str, Any], now: str, made_for: str
) -> None:
    edit(copy, **older)
    before = (copy / FILE_NAME).read_bytes()
    monkeypatch.setattr(table_feed, "machine_here", lambda: Machine(("NVIDIA H200",), now))
    report = table_feed.export(request(copy, shapes=SHAPES[:1]))
    (kept,) = report.kept
    assert Path(kept).read_bytes() == before
    assert f"  kept {kept}: it was made for {made_for}" in report.lines()
    found = load_table(copy / FILE_NAME)
    assert (len(found.table), found.provenance.driver) == (1, now)


def test_a_table_of_no_known_driver_is_added_to(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_feed, "machine_here", lambda: Machine(("NVIDIA H200",), "580.10"))
    assert table_feed.export(request(copy, shapes=[(1024, 1024, 640)])).kept == ()
    found = load_table(copy / FILE_NAME)
    assert (len(found.table), found.provenance.driver) == (25, "580.10")


@pytest.mark.parametrize("damage", [b'{"hand-tuned": "x"}\n', b"\xff", None])
def test_a_file_that_was_not_exported_is_kept_beside(copy: Path, damage: bytes | None) -> None:
    path = copy / FILE_NAME
    before = damage or path.read_bytes().replace(b'"num_warps": 4', b'"num_warps": 2')
    path.write_bytes(before)
    report = table_feed.export(request(copy, shapes=SHAPES[:1]))
    (kept,) = report.kept
    assert re.fullmatch(rf"{FILE_NAME}\.replaced-[0-9a-f]{{12}}", Path(kept).name)
    assert Path(kept).read_bytes() == before
    assert any("was not exported, or was changed since" in line for line in report.lines())
    assert len(load_table(path).table) == 1


def test_what_cannot_be_exported_says_why(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="nothing to export"):
        table_feed.export(request(tmp_path, shapes=[]))
    with pytest.raises(InvalidInput, match="aten=true or aten=false"):
        table_feed.export(request(tmp_path, arguments={"other": 1}))
    bad = tmp_path / "keys.txt"
    bad.write_text("nonsense\n")
    with pytest.raises(MalformedFile, match=r"keys.txt:1"):
        table_feed.export(request(tmp_path, consumer=str(bad)))
    bad.write_bytes(b"mm\xff\n")
    with pytest.raises(MalformedFile, match=r"keys.txt: not UTF-8: byte 0xff"):
        table_feed.export(request(tmp_path, consumer=str(bad)))
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        table_feed.export(request(tmp_path / "file", shapes=SHAPES[:1]))
    monkeypatch.setattr(table_feed, "TESTED", ("2.10.0",))
    with pytest.raises(InvalidInput, match=r"Tested: 2.10.0. Give --untested"):
        table_feed.verify(request(exported))
    assert table_feed.verify(request(exported, untested=True)).all_hit


def test_one_import_turns_it_on(exported: Path) -> None:
    """In a process of its own, as a job does it."""
    script = (
        "import torch, warpplan.service.feeds.inductor.choices as c\n"
        "from torch._inductor import config\n"
        "from torch._inductor.virtualized import V\n"
        "assert isinstance(V.choices, c.PlannedChoices) and config.inductor_choices_class\n"
        "print(len(V.choices._get_lookup_table()), config.inductor_choices_class().uuid())\n"
        "config.save_config_portable()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={**__import__("os").environ, choices.TABLE_VARIABLE: str(exported)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, uuid = done.stdout.split()
    assert count == "24"
    assert uuid == f"warpplan-{load_table(exported / FILE_NAME).provenance.digest}"


def test_without_a_table_inductor_chooses_as_ever(tmp_path: Path, inductor: None) -> None:
    before = V.choices
    with pytest.warns(RuntimeWarning, match="not used"):
        assert not choices.install(tmp_path / "none.json")
    assert V.choices is before
