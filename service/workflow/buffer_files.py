"""Files of buffers in MiniMalloc's format: ``id,lower,upper,size``, each buffer live during [lower, upper).

Columns come in any order; ``alignment`` is one more that may be there. An answer has ``offset`` added.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from warpplan.planner.errors import MalformedFile
from warpplan.planner.packing.offsets import PackingBlock
from warpplan.service.workflow.text_files import read_bytes, source_name

REQUIRED = ("id", "lower", "upper", "size")
OPTIONAL = ("alignment",)
MAX_ROWS = 20_000
MAX_ID = 200
"""Characters of an id: messages name buffers, one line each."""
MAX_VALUE = 2**53
"""Beyond it sums would leave 64 bits, and no memory has so many bytes."""


def read_buffers(path: str, capacity: int) -> tuple[PackingBlock, ...]:
    """The buffers in ``path`` ("-" is standard input), in the file's order.

    Raises :class:`MalformedFile` naming the line and the element: a column that is missing, unknown or given twice, an
    id that is empty, longer than :data:`MAX_ID` or given twice, a number that is no whole number of 0 or more, a life
    that ends before it begins, a buffer larger than ``capacity`` bytes, more than :data:`MAX_ROWS` buffers.
    """
    source = source_name(path)
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + error.object[: error.start].count(b"\n")
        raise MalformedFile(source, f"not UTF-8: byte {error.object[error.start]:#04x}", line=line) from None
    return tuple(_blocks(source, text, capacity))


def write_buffers(blocks: Sequence[PackingBlock], offsets: Sequence[int]) -> str:
    """The CSV of ``blocks`` with their offsets, lines ending in a line feed."""
    aligned = any(block.alignment != 1 for block in blocks)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*REQUIRED, *(OPTIONAL if aligned else ()), "offset"))
    for block, offset in zip(blocks, offsets, strict=True):
        alignment = (block.alignment,) if aligned else ()
        writer.writerow((block.id, block.lower, block.upper, block.size, *alignment, offset))
    return text.getvalue()


def _blocks(source: str, text: str, capacity: int) -> Iterator[PackingBlock]:
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: list[str] = []
    seen: dict[str, int] = {}
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise MalformedFile(source, f"not CSV: {error}", line=rows.line_num) from None
        if row is None:
            break
        if not any(value.strip() for value in row):
            continue
        if not columns:
            columns = _columns(source, rows.line_num, row)
            continue
        block = _block(source, rows.line_num, columns, row, capacity)
        if block.id in seen:
            reason = f"buffer {block.id!r} was given in line {seen[block.id]} already: ids must be unique"
            raise MalformedFile(source, reason, line=rows.line_num, field="id")
        if len(seen) == MAX_ROWS:
            raise MalformedFile(source, f"more than {MAX_ROWS} buffers: split the file", line=rows.line_num)
        seen[block.id] = rows.line_num
        yield block
    if not columns:
        raise MalformedFile(source, f"is empty: expected the header {','.join(REQUIRED)}", field="header")


def _columns(source: str, line: int, row: Sequence[str]) -> list[str]:
    columns = [value.strip() for value in row]
    expected = f"expected {','.join(REQUIRED)} and optionally {','.join(OPTIONAL)}"
    for column in columns:
        if column not in (*REQUIRED, *OPTIONAL):
            raise MalformedFile(source, f"unknown column {column[:40]!r}: {expected}", line=line, field="header")
        if columns.count(column) > 1:
            raise MalformedFile(source, f"column {column!r} is given twice: {expected}", line=line, field="header")
    for column in REQUIRED:
        if column not in columns:
            raise MalformedFile(source, f"column {column!r} is missing: {expected}", line=line, field="header")
    return columns


def _block(source: str, line: int, columns: Sequence[str], row: Sequence[str], capacity: int) -> PackingBlock:
    if len(row) != len(columns):
        reason = f"{len(row)} columns, the header has {len(columns)} ({','.join(columns)})"
        raise MalformedFile(source, reason, line=line)
    fields = {column: value.strip() for column, value in zip(columns, row, strict=True)}
    name = fields["id"]
    if not name:
        raise MalformedFile(source, "a buffer without an id: give it one", line=line, field="id")

    if len(name) > MAX_ID:
        reason = f"buffer {name[:20]!r}… has an id of {len(name)} characters: expected at most {MAX_ID}"
        raise MalformedFile(source, reason, line=line, field="id")

    def wrong(field: str, expected: str) -> MalformedFile:
        reason = f"buffer {name!r} has {field} {fields[field][:40]!r}: expected {expected}"
        return MalformedFile(source, reason, line=line, field=field)

    def whole(field: str, least: int) -> int:
        text = fields[field]
        # Not int() alone: it takes "1_000" and full-width digits, and refuses thousands of digits with other words.
        if not (text.isascii() and text.isdecimal() and len(text) <= 40) or not least <= int(text) <= MAX_VALUE:
            raise wrong(field, f"a whole number from {least} to {MAX_VALUE}")
        return int(text)

    lower, upper, size = whole("lower", 0), whole("upper", 0), whole("size", 0)
    alignment = whole("alignment", 1) if fields.get("alignment") else 1
    if upper < lower:
        raise wrong("upper", f"no less than its lower, {lower}")
    if size > capacity:
        raise wrong("size", f"no more than the capacity of {capacity} bytes")
    return PackingBlock(name, lower, upper, size, alignment)
