"""Sizes as users type them, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping

from warpplan.planner.errors import InvalidShape

MAX_ELEMENTS = 2**31


def parse_sizes(kernel: str, dimensions: tuple[str, ...], sizes: Mapping[str, object]) -> tuple[int, ...]:
    """Whole numbers of 1 or more in the order of ``dimensions``; text such as "4096" is accepted.

    Raises :class:`InvalidShape` naming the dimension, its value and what it may be.
    """
    for name in sizes:
        if name not in dimensions:
            raise InvalidShape(
                f"{kernel} has no dimension {name!r}: expected {', '.join(dimensions)}",
                field=str(name), value=sizes[name], limit=list(dimensions),
            )  # fmt: skip
    return tuple(_size(kernel, name, sizes) for name in dimensions)


def _size(kernel: str, name: str, sizes: Mapping[str, object]) -> int:
    if sizes.get(name) is None:
        raise InvalidShape(f"{kernel} needs {name}: give it as {name}=SIZE", field=name, value=None, limit=1)
    value = sizes[name]
    if isinstance(value, str):
        if re.fullmatch(r"\s*[0-9]{21,}\s*", value):
            shown = f"{value.strip()[:20]}…"  # Python reads no number of thousands of digits
            raise InvalidShape(
                f"{name}={shown} is too large: expected {MAX_ELEMENTS} or less",
                field=name, value=shown, limit=MAX_ELEMENTS,
            )  # fmt: skip
        if re.fullmatch(r"\s*-?[0-9]{1,20}\s*", value):
            value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
        raise InvalidShape(f"{name}={shown} is not a whole number", field=name, value=value, limit=1)
    if value < 1:
        raise InvalidShape(f"{name}={value} is too small: expected 1 or more", field=name, value=value, limit=1)
    if value > MAX_ELEMENTS:
        raise InvalidShape(
            f"{name}={value} is too large: expected {MAX_ELEMENTS} or less", field=name, value=value, limit=MAX_ELEMENTS
        )
    return value


def require_elements(tensor: str, rows: int, columns: int) -> None:
    """Raise :class:`InvalidShape` where a matrix has more elements than 32-bit coordinates reach."""
    if rows * columns > MAX_ELEMENTS:
        raise InvalidShape(
            f"{tensor} of {rows} x {columns} has {rows * columns} elements: at most {MAX_ELEMENTS}",
            field=tensor, value=rows * columns, limit=MAX_ELEMENTS,
        )  # fmt: skip
