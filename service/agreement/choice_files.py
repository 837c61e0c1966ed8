"""The files of agreement: a rank's record as JSON Lines, and the choices that all ranks agreed on as one object.

A record has a header, a line for each choice that is new or another than before, and an end::

    {"schema": "warpplan/choices-1", "rank": 0, "world": 8, "job": "1234"}
    {"step": 0, "lookup": 1, "kernel": "gemm", "shape": {…}, "dtype": …, "device": …, "config": {…},
     "used_before": false, "digest": "…"}
    {"end": true, "step": 900, "lookup": 21600, "digest": "…"}

``digest`` is that of all choices in effect after the line, so that a line that was lost or changed is noticed. A rank
that was killed, or still runs, has written no end. A byte order mark before the first line is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpplan.planner.errors import MalformedFile
from warpplan.service.agreement.rank_choices import NO_ANSWER, ChoiceKey, RankChoices, config_text

RECORD, AGREED = "warpplan/choices-1", "warpplan/agreed-1"
MAX_BYTES = 256 * 2**20
"""Of one file. A choice takes some 500 bytes, and a job has thousands."""
_CUT = "the rank still runs, was killed, or the file was cut; --partial compares what there is"


@dataclass(frozen=True)
class RecordHeader:
    """``world`` is how many ranks the job has, 0 where it did not say; ``job`` its name, empty where it has none."""

    rank: int
    world: int = 0
    job: str = ""


@dataclass(frozen=True)
class ChoiceLine:
    """A rank's choice for ``key``, made in ``step`` at its lookup number ``lookup``, from 1. ``used_before`` says that
    the rank had been given another choice for the key in the same step."""

    step: int
    lookup: int
    key: ChoiceKey
    choice: str
    used_before: bool


@dataclass(frozen=True)
class RankRecord:
    """One file: the choices of ``header.rank`` in the order in which they were made, known up to ``last_step``."""

    path: str
    header: RecordHeader
    lines: tuple[ChoiceLine, ...]
    last_step: int
    ended: bool


def header_text(header: RecordHeader) -> str:
    return _line({"schema": RECORD, "rank": header.rank, "world": header.world, "job": header.job})


def choice_text(line: ChoiceLine, digest: str) -> str:
    return _line(
        {
            "step": line.step, "lookup": line.lookup, **line.key.as_dict(), "config": json.loads(line.choice),
            "used_before": line.used_before, "digest": digest,
        }
    )  # fmt: skip


def end_text(step: int, lookup: int, digest: str) -> str:
    return _line({"end": True, "step": step, "lookup": lookup, "digest": digest})


def read_records(paths: Sequence[Path], *, partial: bool = False) -> list[RankRecord]:
    """The records in ``paths``. With ``partial`` those of ranks that ended before their first line was whole are left
    out, unless all did. Raises :class:`MalformedFile` as :func:`read_record` does."""
    begun = [path for path in paths if not partial or any(line.endswith("\n") for line in _lines(path)[:1])]
    return [read_record(path, partial=partial) for path in begun or paths]


def read_record(path: Path, *, partial: bool = False) -> RankRecord:
    """The record in ``path``. With ``partial`` it may have no end, and half of a last line.

    Raises :class:`MalformedFile` with the line for a file that is no record, was cut or was changed.
    """
    lines = _lines(path)
    if partial and lines and not lines[-1].endswith("\n"):
        lines.pop()
    header = _header(path, lines)
    if not lines[-1].endswith("\n"):
        raise MalformedFile(path, f"its last line is not whole: {_CUT}", line=len(lines), field="record")
    reader = _RecordReader(path)
    for number, text in enumerate(lines[1:], 2):
        reader.take(number, text)
    if not reader.ended and not partial:
        raise MalformedFile(
            path, f"the record of rank {header.rank} has no end: {_CUT}", line=len(lines), field="record"
        )
    return RankRecord(str(path), header, tuple(reader.choices), reader.step, reader.ended)


def agreed_text(choices: RankChoices, ranks: Sequence[int]) -> str:
    """The file of what ``ranks`` agreed on. Keys without an answer are left out: there is nothing to launch with."""
    made = [{**key.as_dict(), "config": json.loads(choice)} for key, choice in choices if choice != NO_ANSWER]
    kept = RankChoices()
    for key, choice in choices:
        if choice != NO_ANSWER:
            kept.put(key, choice)
    fields = {"schema": AGREED, "ranks": list(ranks), "digest": kept.digest, "choices": made}
    return json.dumps(fields, indent=1) + "\n"


def read_agreed(path: Path) -> RankChoices:
    """The choices in a file of :func:`agreed_text`. Raises :class:`MalformedFile` where it is none, or was changed."""
    fields = _object(path, "".join(_lines(path)), None)
    if fields.get("schema") != AGREED:
        raise MalformedFile(
            path, f"its schema is {fields.get('schema')!r}: expected {AGREED}, as warpplan agree --out writes it",
            field="agreed",
        )  # fmt: skip
    choices = RankChoices()
    made = fields.get("choices")
    for entry in made if isinstance(made, list) else ():
        choices.put(_key(path, entry, None), config_text(entry.get("config")))
    if fields.get("digest") != choices.digest:
        raise MalformedFile(path, "its digest is another than that of its choices: it was changed", field="agreed")
    return choices


class _RecordReader:
    """The lines after the header, in their order."""

    def __init__(self, path: Path) -> None:
        self._path, self._choices = path, RankChoices()
        self.choices: list[ChoiceLine] = []
        self.step = self.lookup = 0
        self.ended = False

    def take(self, number: int, text: str) -> None:
        if self.ended:
            raise MalformedFile(self._path, "goes on after its end: are these two records?", line=number)
        fields = _object(self._path, text, number)
        step, lookup = (_count(self._path, fields, name, number) for name in ("step", "lookup"))
        if step < self.step or lookup < self.lookup:
            raise MalformedFile(
                self._path, f"step {step}, lookup {lookup} is before step {self.step}, lookup {self.lookup}: its lines "
                "were changed", line=number,
            )  # fmt: skip
        self.step, self.lookup = step, lookup
        self.ended = fields.get("end") is True
        if not self.ended:
            key, choice = _key(self._path, fields, number), config_text(fields.get("config"))
            self._choices.put(key, choice)
            self.choices.append(ChoiceLine(step, lookup, key, choice, fields.get("used_before") is True))
        if fields.get("digest") != self._choices.digest:
            raise MalformedFile(
                self._path, "its digest is another than that of the choices until here: a line was lost or changed",
                line=number,
            )  # fmt: skip


def _header(path: Path, lines: Sequence[str]) -> RecordHeader:
    if not lines:
        raise MalformedFile(path, f"is empty: {_CUT}")
    fields = _object(path, lines[0], 1)
    if fields.get("schema") != RECORD:
        raise MalformedFile(
            path, f"its schema is {fields.get('schema')!r}: expected {RECORD}, as Client(record=…) writes it", line=1
        )
    job = fields.get("job")
    return RecordHeader(
        _count(path, fields, "rank", 1), _count(path, fields, "world", 1), job if isinstance(job, str) else ""
    )


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise MalformedFile(path, f"is larger than {MAX_BYTES >> 20} MiB")
        return path.read_bytes().decode("utf-8-sig").splitlines(keepends=True)
    except OSError as error:
        raise MalformedFile(path, f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise MalformedFile(path, "is no text in UTF-8") from None


def _object(path: Path, text: str, line: int | None) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        # Only a record's lines have numbers, and only records can be compared in part.
        cut = "" if text.endswith("\n") else ": the file was cut" if line is None else f": {_CUT}"
        raise MalformedFile(path, f"not JSON{cut}", line=line) from None
    if not isinstance(found, dict):
        raise MalformedFile(path, "not a JSON object", line=line)
    return found


def _key(path: Path, fields: Any, line: int | None) -> ChoiceKey:
    words = ("kernel", "dtype", "device")
    shape = fields.get("shape") if isinstance(fields, dict) else None
    if not isinstance(shape, dict) or not all(isinstance(fields.get(word), str) for word in words):
        raise MalformedFile(path, "names no kernel, shape, dtype and device", line=line)
    if not isinstance(fields.get("config"), dict | None):
        raise MalformedFile(path, "has no configuration", line=line, field="config")
    return ChoiceKey.of(fields["kernel"], shape, fields["dtype"], fields["device"])


def _count(path: Path, fields: dict[str, Any], name: str, line: int) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MalformedFile(path, f"{name} is {value!r}: expected a whole number from 0 on", line=line, field=name)
    return value


def _line(fields: dict[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":")) + "\n"
