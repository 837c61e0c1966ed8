"""Keys of Inductor's lookup table as text, and the file that holds a table; without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpplan.planner.errors import InvalidInput, MalformedFile
from warpplan.service.feeds.inductor.mm_problem import InputNode, MmProblem, plain_product, problem_of
from warpplan.service.feeds.inductor.table_file import TableFile, digest, load_table, save_table
from warpplan.service.feeds.machine_here import Machine
from warpplan.service.feeds.provenance import EntryProvenance

SIZES = st.integers(1, 1 << 20)
KEY = "((torch.bfloat16, [4096, 512], [512, 1]), (torch.bfloat16, [512, 1024], [1, 512]))+mm"
BIASED = (
    "((torch.float16, [1024], [1]), (torch.float16, [8, 512], [512, 1]), (torch.float16, [512, 1024], [1, 512]))"
    "+alpha=1&beta=1+addmm"
)
TABLE = {f"NVIDIA H200+{KEY}": [{"template_id": "triton::mm", "BLOCK_M": 64}]}
MADE = EntryProvenance(
    "inductor", digest(TABLE), "NVIDIA H200", "570.86", "p", "1", (("torch", "2.13.0"),), "2026-01-02"
)


@given(SIZES, SIZES, SIZES, st.sampled_from(["nt", "nn", "tn", "tt"]))
def test_a_key_is_read_as_it_is_written(m: int, n: int, k: int, layout: str) -> None:
    problem = plain_product(m, n, k, "bfloat16", layout)
    assert problem_of(problem.key()) == problem
    assert problem.key("NVIDIA H200") == f"NVIDIA H200+{problem.key()}"
    assert (problem.m, problem.n, problem.k) == (m, n, k)


def test_torchs_own_keys() -> None:
    assert plain_product(4096, 1024, 512, "bfloat16").key() == KEY
    biased = problem_of(BIASED)
    assert (biased.operation, biased.m, biased.n, biased.k, biased.dtype) == ("addmm", 8, 1024, 512, "float16")
    assert (biased.scalars, biased.key()) == ("alpha=1&beta=1", BIASED)


@pytest.mark.parametrize(
    "text",
    ["", "mm", KEY[:-3], KEY.replace("+mm", "+bmm"), KEY.replace("[512, 1024]", "[511, 1024]"), f"NVIDIA H200+{KEY}",
     KEY.replace("4096", "-1"), KEY.replace(", (", ";("), str(MmProblem("mm", (InputNode("x", (1,), (1,)),)).key())],
)  # fmt: skip
def test_what_is_no_product_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        problem_of(text)


def test_the_file_is_read_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "table.json"
    save_table(path, TableFile(MADE, TABLE))
    assert load_table(path) == TableFile(MADE, TABLE)
    assert [p.name for p in path.parent.iterdir()] == ["table.json"]


ADDING = """
import sys, time
from pathlib import Path
from warpplan.service.feeds.inductor.table_file import TableFile, add_to_table, digest
from warpplan.service.feeds.provenance import EntryProvenance

out, own, other = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
(out / own).touch()
while not (out / other).exists():
    time.sleep(0.001)
for number in range(40):
    table = {f"{own}{number}": [{"template_id": "triton::mm"}]}
    made = TableFile(EntryProvenance("inductor", digest(table), "NVIDIA H200"), table)
    assert add_to_table(out / "table.json", made) == ((), "")
"""


def test_two_processes_that_add_at_once_lose_nothing(tmp_path: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", ADDING, str(tmp_path), *names]) for names in (("a", "b"), ("b", "a"))
    ]
    assert [process.wait(timeout=60) for process in started] == [0, 0]
    assert set(load_table(tmp_path / "table.json").table) == {f"{own}{number}" for own in "ab" for number in range(40)}


@pytest.mark.parametrize("damage", ["cut", "edited", "no object", "other schema", "no versions", "nested", "missing"])
def test_a_damaged_file_says_so(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "table.json"
    save_table(path, TableFile(MADE, TABLE))
    text = path.read_text()
    fields = json.loads(text)
    damaged = {
        "cut": text[:-40], "edited": text.replace("64", "32"), "no object": "[]", "nested": "[" * 100_000,
        "other schema": json.dumps({**fields, "schema": "x"}), "no versions": json.dumps({**fields, "versions": 1}),
    }  # fmt: skip
    if damage == "missing":
        path.unlink()
    else:
        path.write_text(damaged[damage])
    with pytest.raises(MalformedFile, match=str(path)):
        load_table(path)


@pytest.mark.parametrize(
    ("machine", "versions", "changed"),
    [
        (Machine(("NVIDIA H100",), "570.86"), {}, "the GPU"),
        (Machine(("NVIDIA H200",), "580.10"), {}, "the driver"),
        (Machine(), {"torch": "2.14.0"}, "torch .was 2.13.0, is 2.14.0"),
    ],
)
def test_what_changed_makes_it_stale(machine: Machine, versions: dict[str, str], changed: str) -> None:
    import re

    reason = TableFile(MADE, TABLE).stale(machine, versions)
    assert re.search(changed, reason)
    assert "2026-01-02" in reason


def test_what_is_not_known_is_not_compared() -> None:
    assert TableFile(MADE, TABLE).stale(Machine(), {}) == ""
    assert TableFile(MADE, TABLE).stale(Machine(("NVIDIA H200", "NVIDIA L4"), "570.86"), {"torch": "2.13.0"}) == ""
