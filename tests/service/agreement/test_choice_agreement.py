"""Records of ranks compared: any order of the files gives one verdict, and what is no record says so."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpplan.planner.errors import InvalidInput, MalformedFile
from warpplan.service.agreement.choice_agreement import compare_ranks, difference_lines, ranks_text
from warpplan.service.agreement.choice_files import RankRecord, agreed_text, read_agreed, read_record
from warpplan.service.agreement.choice_record import ChoiceDiffers, ChoiceRecord
from warpplan.service.agreement.rank_choices import ChoiceKey, RankChoices, config_text

SHAPE = {"M": 512, "N": 1024, "K": 2048}
GEMM = ("gemm", SHAPE, "bfloat16", "NVIDIA H200")


def config(warps: int | None) -> dict[str, int] | None:
    return None if warps is None else {"num_warps": warps}


def record(folder: Path, rank: int, lookups: list[tuple[int, int, int | None]], *, close: bool = True) -> Path:
    """The file of a rank that made ``lookups``: (step, M, warps of the answer or ``None``)."""
    made = ChoiceRecord(folder, rank=rank, strict=False, agreed=None)
    for step, m, warps in lookups:
        made.begin_step(step)
        made.note("gemm", {**SHAPE, "M": m}, "bfloat16", "NVIDIA H200", config(warps))
    if close:
        made.close()
    return folder / f"rank-{rank:05d}.jsonl"


def verdict(records: list[RankRecord], **options: bool) -> tuple[object, ...]:
    found = compare_ranks(records, **options)
    return found.ranks, found.difference, list(found.choices), found.unshared, found.last_step


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def by_step(lookups: list[tuple[int, int, int | None]]) -> list[tuple[int, int, int | None]]:
    return sorted(lookups, key=lambda lookup: lookup[0])


LOOKUPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.sampled_from([None, 4, 8])), max_size=6)


class TestVerdict:
    @settings(max_examples=60, deadline=None)
    @given(data=st.data(), ranks=st.lists(LOOKUPS.map(by_step),
                                          min_size=1, max_size=4), same=st.booleans())  # fmt: skip
    def test_any_order_of_the_files_gives_the_same_verdict(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, ranks: list[list[tuple[int, int, int]]],
        same: bool,
    ) -> None:  # fmt: skip
        folder = tmp_path_factory.mktemp("ranks")
        # A rank that looks nothing up leaves no file.
        paths = [record(folder, rank, lookups) for rank, lookups in enumerate(ranks) if lookups]
        records = [read_record(path) for path in paths]
        if not records:
            return
        shuffled = data.draw(st.permutations(records))
        assert verdict(records, same_lookups=same) == verdict(shuffled, same_lookups=same)

    @settings(max_examples=60, deadline=None)
    @given(lookups=LOOKUPS.filter(bool), other=LOOKUPS.filter(bool))
    def test_ranks_agree_where_they_were_told_alike_at_every_step(
        self, tmp_path_factory: pytest.TempPathFactory, lookups: list[tuple[int, int, int]],
        other: list[tuple[int, int, int]],
    ) -> None:  # fmt: skip
        """Against the plain meaning: play both ranks lookup by lookup and compare all they launched with."""
        folder = tmp_path_factory.mktemp("ranks")
        told = [by_step(lookups), by_step(other)]
        records = [read_record(record(folder, rank, ls)) for rank, ls in enumerate(told)]
        found = compare_ranks(records).difference
        differing = []
        for step in sorted({step for ls in told for step, _, _ in ls}):
            for m in (1, 2, 3):
                used = []
                for ls in told:
                    before = [w for s, size, w in ls if size == m and s < step]
                    now = [w for s, size, w in ls if size == m and s == step] or before[-1:]
                    used.append([w for i, w in enumerate(now) if i == 0 or w != now[i - 1]])
                if all(used) and used[0] != used[1]:
                    differing.append((step, str(m)))
        assert (found is None) == (not differing)
        if found is not None:
            assert found.step == differing[0][0]
            assert (found.step, dict(found.key.shape)["M"]) in differing

    def test_the_first_difference_is_named(self, tmp_path: Path) -> None:
        told = [(0, 1, 4), (0, 2, 4), (7, 2, 8)]
        paths = [record(tmp_path, rank, told) for rank in (0, 1, 2)]
        paths.append(record(tmp_path, 3, [(0, 1, 4), (0, 2, 4), (7, 1, 4), (8, 1, 8)]))
        difference = compare_ranks([read_record(path) for path in paths]).difference
        assert difference is not None
        assert difference_lines(difference) == [
            "step 7: gemm K=2048 M=2 N=1024 bfloat16 on NVIDIA H200",
            '  ranks 0-2, lookup 3: {"num_warps":8}',
            '  rank 3, lookup 2: {"num_warps":4}',
        ]

    def test_no_answer_differs_from_an_answer(self, tmp_path: Path) -> None:
        paths = [record(tmp_path, 0, [(0, 1, 4)]), record(tmp_path, 1, [(0, 1, None)])]
        difference = compare_ranks([read_record(path) for path in paths]).difference
        assert difference is not None
        assert difference_lines(difference)[2] == "  rank 1, lookup 1: no answer"

    def test_stages_that_ask_for_other_shapes_agree_unless_the_same_lookups_are_wanted(self, tmp_path: Path) -> None:
        records = [read_record(record(tmp_path, rank, [(0, 1, 4), (0, 2 + rank, 8)])) for rank in (0, 1)]
        found = compare_ranks(records)
        assert found.difference is None
        assert [(dict(key.shape)["M"], ranks) for key, ranks in found.unshared] == [("2", (0,)), ("3", (1,))]
        strict = compare_ranks(records, same_lookups=True).difference
        assert strict is not None
        assert difference_lines(strict)[2] == "  rank 1: did not ask"

    def test_a_killed_rank_is_compared_up_to_its_last_line(self, tmp_path: Path) -> None:
        paths = [record(tmp_path, 0, [(0, 1, 4), (5, 1, 8)]), record(tmp_path, 1, [(0, 1, 4)], close=False)]
        with pytest.raises(MalformedFile, match="rank 1 has no end"):
            read_record(paths[1])
        with paths[1].open("a") as file:
            file.write('{"step": 9, "lo')
        with pytest.raises(MalformedFile, match=r"its last line is not whole: .* --partial compares"):
            read_record(paths[1])
        records = [read_record(path, partial=True) for path in paths]
        assert compare_ranks(records, partial=True).difference is None

    def test_records_of_two_jobs_are_not_compared(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "3")
        first = [read_record(record(tmp_path / "a", rank, [(0, 1, 4)])) for rank in (0, 1)]
        with pytest.raises(InvalidInput, match="3 ranks, and 1 are missing, such as rank 2"):
            compare_ranks(first)
        assert compare_ranks(first, partial=True).difference is None
        with pytest.raises(InvalidInput, match="are both of rank 0"):
            compare_ranks([*first, first[0], read_record(record(tmp_path / "b", 0, [(0, 1, 4)]))])
        monkeypatch.setenv("SLURM_JOB_ID", "77")
        other = read_record(record(tmp_path / "b", 2, [(0, 1, 4)]))
        with pytest.raises(InvalidInput, match=r"job '77' and .* '': they are of two jobs"):
            compare_ranks([*first, other])
        beyond = read_record(record(tmp_path / "b", 5, [(0, 1, 4)]))
        with pytest.raises(InvalidInput, match="is of rank 5, but the job has 3 ranks"):
            compare_ranks([beyond])

    def test_ranks_are_told_in_runs(self) -> None:
        assert ranks_text([0, 1, 2, 5, 7, 8]) == "ranks 0-2, 5, 7-8"
        assert ranks_text([3]) == "rank 3"


class TestFiles:
    def test_every_cut_is_noticed(self, tmp_path: Path) -> None:
        path = record(tmp_path, 0, [(0, 1, 4), (1, 2, 8), (2, 1, 8)])
        whole = path.read_bytes()
        read_record(path)
        ends = {i + n for i, byte in enumerate(whole) if byte == 10 for n in (0, 1)}
        for length in sorted({*range(0, len(whole), 7), *ends} - {len(whole)}):
            path.write_bytes(whole[:length])
            with pytest.raises(MalformedFile):
                read_record(path)

    def test_a_line_that_is_lost_changed_or_moved_is_noticed(self, tmp_path: Path) -> None:
        path = record(tmp_path, 0, [(0, 1, 4), (0, 2, 8), (2, 1, 8)])
        lines = path.read_text().splitlines(keepends=True)
        for changed in (
            [*lines[:2], *lines[3:]],
            [lines[0], lines[2], lines[1], *lines[3:]],
            [*lines[:2], lines[2].replace('"num_warps":8', '"num_warps":4'), *lines[3:]],
            [*lines, *lines[1:]],
        ):
            path.write_text("".join(changed))
            with pytest.raises(MalformedFile, match=r"rank-00000\.jsonl:\d: "):
                read_record(path)

    def test_a_byte_order_mark_is_no_part_of_a_file(self, tmp_path: Path) -> None:
        path = record(tmp_path, 0, [(0, 1, 4)])
        agreed = tmp_path / "agreed.json"
        agreed.write_text(agreed_text(compare_ranks([read_record(path)]).choices, [0]))
        before = read_record(path), read_agreed(agreed).digest
        for file in (path, agreed):
            file.write_bytes("\ufeff".encode() + file.read_bytes())
        assert (read_record(path), read_agreed(agreed).digest) == before

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("", "is empty"),
            ("M,N,K\n1,2,3\n", "not JSON"),
            ("[]\n", "not a JSON object"),
            ('{"schema": "warpplan/plan-1"}\n', "expected warpplan/choices-1"),
            ('{"schema": "warpplan/choices-1", "rank": -1, "world": 0}\n', "rank is -1"),
            ('{"schema": "warpplan/choices-1", "rank": true, "world": 0}\n', "rank is True"),
        ],
    )
    def test_foreign_files_are_told_in_one_line(self, tmp_path: Path, text: str, told: str) -> None:
        path = tmp_path / "other.jsonl"
        path.write_text(text)
        with pytest.raises(MalformedFile, match=told):
            read_record(path)
        path.write_bytes(b"\xff\xfe\x00")
        with pytest.raises(MalformedFile, match="UTF-8"):
            read_record(path)
        with pytest.raises(MalformedFile, match="No such file"):
            read_record(tmp_path / "absent")
        with pytest.raises(MalformedFile, match="Is a directory"):
            read_record(tmp_path)

    def test_what_was_agreed_is_read_back(self, tmp_path: Path) -> None:
        choices = RankChoices()
        choices.put(ChoiceKey.of(*GEMM), config_text(config(8)))
        choices.put(ChoiceKey.of("gemm", {"M": "1"}, "float16", "NVIDIA H100"), config_text(None))
        path = tmp_path / "agreed.json"
        path.write_text(agreed_text(choices, (0, 1)))
        assert list(read_agreed(path)) == [(ChoiceKey.of(*GEMM), config_text(config(8)))]
        path.write_text(path.read_text().replace('"num_warps": 8', '"num_warps": 4'))
        with pytest.raises(MalformedFile, match="it was changed"):
            read_agreed(path)
        path.write_text(json.dumps({"schema": "warpplan/choices-1"}))
        with pytest.raises(MalformedFile, match="expected warpplan/agreed-1"):
            read_agreed(path)


class TestRecord:
    def test_the_digest_does_not_depend_on_the_order(self) -> None:
        lookups = [(1, 4), (2, 8), (1, 8), (3, 4)]
        final = dict(lookups)
        digests = set()
        for order in (lookups, sorted(final.items()), sorted(final.items(), reverse=True)):
            made = ChoiceRecord(None, rank=None, strict=False, agreed=None)
            for m, warps in order:
                made.note("gemm", {"M": m}, "bfloat16", "d", config(warps))
            digests.add(made.digest)
        assert len(digests) == 1

    def test_questions_that_are_spelt_differently_are_one(self) -> None:
        given = {"M": " 0512", "K": "2048", "N": 1024, "sizes": [1, 2]}
        same = ChoiceKey.of("gemm", {**SHAPE, "sizes": "1,2"}, "bfloat16", "d")
        assert ChoiceKey.of("gemm", given, "bfloat16", "d") == same

    def test_a_rank_that_is_not_known_or_taken_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="needs the rank"):
            ChoiceRecord(tmp_path, rank=None, strict=False, agreed=None).note(*GEMM, config(4))
        first = ChoiceRecord(tmp_path, rank=1, strict=False, agreed=None)
        first.note(*GEMM, config(4))
        with pytest.raises(InvalidInput, match="written by another process or client"):
            ChoiceRecord(tmp_path, rank=1, strict=False, agreed=None).note(*GEMM, config(4))
        first.close()
        first.close()
        assert len(read_record(tmp_path / "rank-00001.jsonl").lines) == 1
        (tmp_path / "file").write_text("")
        with pytest.raises(InvalidInput, match="cannot be written"):
            ChoiceRecord(tmp_path / "file", rank=1, strict=False, agreed=None).note(*GEMM, config(4))

    def test_an_agreed_file_that_is_missing_is_named_before_what_else_is(self, tmp_path: Path) -> None:
        path = tmp_path / "nope.json"
        for strict in (False, True):
            with pytest.raises(MalformedFile, match=r"nope\.json"):
                ChoiceRecord(None, rank=None, strict=strict, agreed=path)
        path.write_text(agreed_text(RankChoices(), (0,)))
        with pytest.raises(InvalidInput, match="add strict=True"):
            ChoiceRecord(None, rank=None, strict=False, agreed=path)

    def test_steps_ascend(self) -> None:
        made = ChoiceRecord(None, rank=None, strict=False, agreed=None)
        made.begin_step(4)
        made.begin_step(4)
        made.begin_step(None)
        with pytest.raises(InvalidInput, match="step 4 comes before step 5"):
            made.begin_step(4)

    @pytest.mark.parametrize("number", [1.5, float("nan"), True, "0", -1])
    def test_ranks_and_steps_are_whole_numbers(self, tmp_path: Path, number: Any) -> None:
        with pytest.raises(InvalidInput, match=r"rank is .*: expected a whole number from 0 on"):
            ChoiceRecord(tmp_path, rank=number, strict=False, agreed=None)
        with pytest.raises(InvalidInput, match=r"step is .*: expected a whole number from 0 on"):
            ChoiceRecord(None, rank=None, strict=False, agreed=None).begin_step(number)

    def test_a_lookup_after_the_end_goes_on_with_the_record(self, tmp_path: Path) -> None:
        made = ChoiceRecord(tmp_path, rank=0, strict=False, agreed=None)
        made.note(*GEMM, config(4))
        made.close()
        made.begin_step(1)
        made.note(*GEMM, config(8))
        with pytest.raises(MalformedFile, match="the record of rank 0 has no end"):
            read_record(tmp_path / "rank-00000.jsonl")
        made.close()
        found = read_record(tmp_path / "rank-00000.jsonl")
        choices = [(line.step, line.choice) for line in found.lines]
        assert choices == [(0, config_text(config(4))), (1, config_text(config(8)))]

    def test_a_job_of_absurdly_many_ranks(self, tmp_path: Path) -> None:
        path = record(tmp_path, 0, [(0, 1, 4)])
        path.write_text(path.read_text().replace('"world":0', '"world":' + "9" * 30))
        with pytest.raises(InvalidInput, match=r"are missing, such as rank 1"):
            compare_ranks([read_record(path)])
        assert compare_ranks([read_record(path)], partial=True).difference is None

    def test_a_strict_rank_takes_no_other_choice(self, tmp_path: Path) -> None:
        choices = RankChoices()
        choices.put(ChoiceKey.of(*GEMM), config_text(config(8)))
        agreed = tmp_path / "agreed.json"
        agreed.write_text(agreed_text(choices, (0,)))
        made = ChoiceRecord(None, rank=None, strict=True, agreed=agreed)
        for answer, told in ((4, 'the ranks agreed on {"num_warps":8}'), (None, "the service gave no answer")):
            with pytest.raises(ChoiceDiffers, match=told):
                made.note(*GEMM, config(answer))
        made.note(*GEMM, config(8))
        other = ("gemm", {"M": 1}, "bfloat16", "d")
        made.note(*other, config(4))
        made.note(*other, config(4))
        with pytest.raises(ChoiceDiffers, match=r'before it was \{"num_warps":4\}'):
            made.note(*other, config(8))
        with pytest.raises(InvalidInput, match="add strict=True"):
            ChoiceRecord(None, rank=None, strict=False, agreed=agreed)

    def test_a_forked_rank_begins_with_what_was_chosen_before(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "0")
        made = ChoiceRecord(tmp_path, rank=None, strict=False, agreed=None)
        made.note(*GEMM, config(4))
        child = os.fork()
        if child == 0:
            os.environ["RANK"] = "1"
            made.note("gemm", {"M": 1}, "bfloat16", "d", config(8))
            made.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        made.close()
        own, forked = (read_record(tmp_path / f"rank-0000{rank}.jsonl") for rank in (0, 1))
        assert [line.choice for line in own.lines] == [config_text(config(4))]
        assert [line.choice for line in forked.lines] == [config_text(config(4)), config_text(config(8))]

    def test_a_full_disk_ends_the_record_and_not_the_job(self, caplog: pytest.LogCaptureFixture) -> None:
        if not Path("/dev/full").exists():
            pytest.skip("needs /dev/full")
        made = ChoiceRecord(None, rank=None, strict=False, agreed=None)
        made._file = os.open("/dev/full", os.O_WRONLY)
        made.note(*GEMM, config(4))
        made.note(*GEMM, config(8))
        made.close()
        assert [r.message for r in caplog.records] == ["the record of choices ends here: No space left on device"]
