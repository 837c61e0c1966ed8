"""Rows of a benchmark that may be interrupted and may run in several processes.

Every finished row is appended to ``NAME.partial.jsonl`` next to the result ``NAME.json``; a run that finds such a file
goes on where it stopped. Processes (``--shard 1/2``, ``--shard 2/2``) share it. The first line holds the settings: rows
that were measured with others do not mix.
"""

from __future__ import annotations

import argparse
import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from results_file import read_rows, write

Row = dict[str, Any]
T = TypeVar("T")


class RowStore:
    """Finished rows, by the values of the columns ``key``. Raises :class:`SystemExit` where the file that is there
    comes from a run with other ``settings``, unless ``fresh`` says to begin anew."""

    def __init__(self, out: Path, key: Sequence[str], settings: Row, *, fresh: bool = False) -> None:
        self.out, self.key = out, tuple(key)
        self.partial = out.with_suffix(".partial.jsonl")
        self.partial.parent.mkdir(parents=True, exist_ok=True)
        with self._locked() as file:
            lines = file.read().splitlines()
            if fresh or not lines:
                file.seek(0)
                file.truncate()
                file.write(json.dumps(settings) + "\n")
            elif json.loads(lines[0]) != settings:
                raise SystemExit(
                    f"{self.partial} holds rows of a run with {lines[0]}, not {json.dumps(settings)}: "
                    "use the same options, or --fresh to begin anew"
                )

    def rows(self) -> dict[tuple[Any, ...], Row]:
        """What is there; a later row replaces an earlier one of the same key. Nothing where all have been written."""
        if not self.partial.exists():
            return {}
        with self._locked() as file:
            return self._read(file)

    def add(self, row: Row) -> dict[tuple[Any, ...], Row]:
        """Keeps ``row``; all that are there by now, those of other processes too."""
        with self._locked() as file:
            file.seek(0, 2)
            file.write(json.dumps(row) + "\n")
            file.seek(0)
            return self._read(file)

    def beside_recorded(self) -> list[Row]:
        """What is there, each in the place of its row of the result file, and that file's other rows."""
        recorded = read_rows(self.out) if self.out.is_file() else []
        known = {tuple(row[name] for name in self.key): row for row in recorded}
        return list({**known, **self.rows()}.values())

    def write(self, head: Row, rows: Sequence[Row], *, complete: bool) -> None:
        """The result file, of these rows; where they are all, the partial file goes."""
        with self._locked():
            write(self.out, {**head, "rows": list(rows)})
            if complete:
                self.partial.unlink(missing_ok=True)

    def _read(self, file: Any) -> dict[tuple[Any, ...], Row]:
        rows = [json.loads(line) for line in file.read().splitlines()[1:]]
        return {tuple(row[name] for name in self.key): row for row in rows}

    @contextmanager
    def _locked(self) -> Iterator[Any]:
        with self.partial.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            if not text.endswith("\n"):  # Cut off with the process that wrote it.
                file.truncate(len(text[: text.rfind("\n") + 1].encode()))
            file.seek(0)
            yield file


def add_arguments(parser: argparse.ArgumentParser, out: Path, what: str) -> None:
    """The options that every resumable benchmark has."""
    parser.add_argument("--only", nargs="*", default=[], help=f"parts of the {what}' names")
    parser.add_argument(
        "--shard", type=shard, default=(1, 1), metavar="I/N", help=f"every N-th of the {what}, from I on"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what an interrupted run has left")
    parser.add_argument("--out", type=Path, default=out)


def shard(text: str) -> tuple[int, int]:
    """``I/N`` with 1 ≤ I ≤ N."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with 1 <= I <= N")
    return int(index), int(count)


def of_shard(tasks: Sequence[T], part: tuple[int, int]) -> list[T]:
    """This process's share of the tasks."""
    index, count = part
    return list(tasks[index - 1 :: count])
