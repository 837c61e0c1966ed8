"""Files of problems: CSV with a header, or JSON Lines. One line at a time; a bad line does not cost the good ones."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn

from warpplan.kernels import registry
from warpplan.planner.errors import InvalidInput, MalformedFile, WarpplanError
from warpplan.service.workflow.request import Item, example_size

Line = tuple[int, Item | WarpplanError]

MAX_LINE_BYTES = 65_536
TEXT_COLUMNS = ("kernel", "dtype", "device", "name")
SUFFIXES = (".csv", ".jsonl", ".ndjson")


def read_shapes(path: Path, kernel: str = registry.DEFAULT) -> Iterator[Line]:
    """Yield (line number from 1, :class:`Item`) for each problem, or :class:`MalformedFile` for a line that is none.

    CSV needs a header of the names of sizes and options that the kernels declare, and may have ``kernel`` (without it
    ``kernel`` is meant), ``dtype``, ``device`` and ``name``; a line of mixed kernels leaves the sizes of the others
    empty, and an option that is empty is at its default. A JSON line has the same names. Blank lines are skipped; a
    byte order mark and CRLF are accepted. Sizes and options are not judged here. A file that cannot be opened, is
    empty, has another suffix, no usable header or nothing after it raises :class:`MalformedFile` at once, before any
    line is given.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise MalformedFile(
            path, f"unknown suffix {path.suffix!r}: expected one of {', '.join(SUFFIXES)}", field="shapes"
        )
    try:
        file = path.open("rb")
    except OSError as error:
        raise MalformedFile(path, f"cannot be read: {error.strerror}", field="shapes") from None
    try:
        lines = _lines(path, file)
        first = next(lines, None)
        if first is None:
            raise MalformedFile(path, "is empty: expected at least one problem", field="shapes")
        if path.suffix.lower() == ".csv":
            number, header = first
            columns = _header(path, number, header)
            first = next(lines, None)
            if first is None:
                raise MalformedFile(path, "holds a header only: expected at least one problem", field="shapes")
            return _closing(file, (_csv_line(path, n, text, columns, kernel) for n, text in _again(first, lines)))
        return _closing(file, (_json_line(path, n, text, kernel) for n, text in _again(first, lines)))
    except BaseException:
        file.close()
        raise


def at_line(path: str | Path, line: int, error: WarpplanError) -> WarpplanError:
    """``error`` about a line of a shapes file with its place before it, where it does not have that."""
    return error if isinstance(error, MalformedFile) else MalformedFile(path, str(error), line=line, field=error.field)


def _closing(file: BinaryIO, lines: Iterator[Line]) -> Iterator[Line]:
    with file:
        yield from lines


def _again(
    first: tuple[int, str | MalformedFile], rest: Iterator[tuple[int, str | MalformedFile]]
) -> Iterator[tuple[int, str | MalformedFile]]:
    yield first
    yield from rest


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, str | MalformedFile]]:
    """Numbered lines that are not blank, as text; in bytes first, so that a bad byte spoils its own line only."""
    number = 0
    while True:
        try:
            raw = file.readline(MAX_LINE_BYTES)
        except OSError as error:
            raise MalformedFile(path, f"cannot be read: {error.strerror}", field="shapes") from None
        if not raw:
            return
        number += 1
        if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
            while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield number, MalformedFile(path, f"the line is longer than {MAX_LINE_BYTES} bytes", line=number)
            continue
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            yield (
                number,
                MalformedFile(path, f"not UTF-8: byte {raw[error.start]:#04x} at {error.start + 1}", line=number),
            )
            continue
        if text:
            yield number, text


def _header(path: Path, number: int, header: str | MalformedFile) -> list[str]:
    if isinstance(header, MalformedFile):
        raise header
    columns = [column.strip() for column in _split(path, number, header)]
    sizes = [column for column in columns if column not in TEXT_COLUMNS]
    wrong = next((c for c in columns if not c.isidentifier() or columns.count(c) > 1), None)
    if wrong is not None or not sizes:
        found = "no column of sizes" if wrong is None else f"column {wrong!r}"
        raise MalformedFile(
            path,
            f"the header {header[:80]!r} has {found}: expected each once, sizes such as {_example_header()} "
            f"and optionally {', '.join(TEXT_COLUMNS)}",
            line=number,
            field="header",
        )
    return columns


def _example_header() -> str:
    return ",".join(registry.kernel(registry.DEFAULT).declaration.dimensions)


def _csv_line(path: Path, number: int, text: str | MalformedFile, columns: list[str], kernel: str) -> Line:
    if isinstance(text, MalformedFile):
        return number, text
    try:
        values = [value.strip() for value in _split(path, number, text)]
        if len(values) != len(columns):
            raise MalformedFile(
                path, f"{len(values)} columns, the header has {len(columns)} ({','.join(columns)})", line=number
            )
        # An empty size is a missing one: the kernel says which.
        fields = {column: value for column, value in zip(columns, values, strict=True) if value}
        return number, Item.of(fields, kernel=kernel)
    except InvalidInput as error:
        return number, error


def _split(path: Path, number: int, text: str) -> list[str]:
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise MalformedFile(path, f"not CSV: {error}", line=number) from None


def _json_line(path: Path, number: int, text: str | MalformedFile, kernel: str) -> Line:
    if isinstance(text, MalformedFile):
        return number, text
    try:
        fields = json.loads(text, parse_constant=_reject_constant, object_pairs_hook=fields_once)
    except json.JSONDecodeError as error:
        return number, MalformedFile(path, f"not JSON: {error.msg} at column {error.colno}", line=number)
    except InvalidInput as error:
        return number, MalformedFile(path, str(error), line=number, field=error.field)
    except RecursionError:
        return number, MalformedFile(path, "not JSON: nested too deeply", line=number)
    except ValueError:
        # Python reads no number of thousands of digits, and says so in words for programmers.
        return number, MalformedFile(path, "not JSON that holds sizes: a number is too long", line=number)
    if not isinstance(fields, dict):
        example = json.dumps(example_size())[:-1]
        return number, MalformedFile(path, f"{text[:40]!r} is not an object such as {example}, …}}", line=number)
    try:
        return number, Item.of(fields, kernel=kernel)
    except InvalidInput as error:
        return number, MalformedFile(path, str(error), line=number, field=error.field)


def _reject_constant(name: str) -> NoReturn:
    raise InvalidInput(f"not JSON: {name} is not a size", value=name)


def fields_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The fields of a JSON object, for ``json.loads(object_pairs_hook=...)``. Raises :class:`InvalidInput` for one that
    is given twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"{twice!r} is given twice: give it once", field=twice)
    return fields
