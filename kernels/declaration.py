"""What a kernel says about itself, once: routes, command line, batch files, docs and exporters follow from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from warpplan.planner.errors import InvalidShape, UnknownName

Shape = tuple[int, ...]

MAX_ELEMENTS = 2**31
"""Of one tensor: what 32-bit coordinates reach."""


@dataclass(frozen=True)
class ShapeField:
    """One size of a shape: whole numbers from ``least`` to ``greatest``, both allowed.

    ``meaning`` is a few words for people. ``aliases`` are what other people's kernels call the same size, in lower
    case; exporters recognise their parameters by it.
    """

    name: str
    meaning: str
    least: int = 1
    greatest: int = MAX_ELEMENTS
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConsumerNames:
    """What other people's kernels of the same computation call things; exporters map a plan by it.

    ``constants`` are (name in a plan's ``kwargs``, the names that consumers give it in upper case). Without those in
    ``required`` a plan says nothing to a consumer. ``tensors`` are parameters that are tensors by their name alone.
    """

    constants: tuple[tuple[str, tuple[str, ...]], ...] = ()
    required: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declaration:
    """A kernel's name, what it computes, the fields of a shape in order, its dtypes by torch's names, example shapes.

    ``shown_first`` orders the constants of a configuration where one is printed; the rest follow by name.
    ``consumers`` is for kernels whose plans can be exported to other people's.
    """

    name: str
    description: str
    fields: tuple[ShapeField, ...]
    dtypes: tuple[str, ...]
    examples: tuple[Shape, ...]
    shown_first: tuple[str, ...] = ()
    consumers: ConsumerNames = ConsumerNames()

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(field.name for field in self.fields)

    def named(self, shape: Shape) -> dict[str, int]:
        """The sizes of ``shape`` by their fields' names."""
        return dict(zip(self.dimensions, shape, strict=True))

    def as_dict(self) -> dict[str, object]:
        """What ``GET /v1/kernels`` and ``warpplan kernels --json`` say."""
        return {
            "name": self.name,
            "description": self.description,
            "dimensions": list(self.dimensions),
            "dtypes": list(self.dtypes),
            "fields": [
                {"name": f.name, "meaning": f.meaning, "least": f.least, "greatest": f.greatest} for f in self.fields
            ],
            "examples": [self.named(shape) for shape in self.examples],
        }

    def require_dtype(self, dtype: str) -> None:
        """Raise :class:`UnknownName` for a dtype that the kernel does not have."""
        if dtype not in self.dtypes:
            raise UnknownName("dtype", dtype, self.dtypes)

    def parse_shape(self, sizes: Mapping[str, object]) -> Shape:
        """Whole numbers in the order of the fields; text such as "4096" is accepted.

        Raises :class:`InvalidShape` naming the first field that is missing, unknown or out of its range, its value and
        what it may be.
        """
        for name in sizes:
            if name not in self.dimensions:
                raise InvalidShape(
                    f"{self.name} has no dimension {name!r}: expected {', '.join(self.dimensions)}",
                    field=str(name), value=sizes[name], limit=list(self.dimensions),
                )  # fmt: skip
        return tuple(_size(self.name, field, sizes.get(field.name)) for field in self.fields)


def _size(kernel: str, field: ShapeField, value: object) -> int:
    name = field.name
    if value is None:
        raise InvalidShape(f"{kernel} needs {name}: give it as {name}=SIZE", field=name, value=None, limit=field.least)
    if isinstance(value, str):
        if re.fullmatch(r"\s*[0-9]{21,}\s*", value):
            # Python reads no number of thousands of digits.
            raise _too_large(field, f"{value.strip()[:20]}…")
        if re.fullmatch(r"\s*-?[0-9]{1,20}\s*", value):
            value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
        raise InvalidShape(f"{name}={shown} is not a whole number", field=name, value=value, limit=field.least)
    if value < field.least:
        raise InvalidShape(
            f"{name}={value} is too small: expected {field.least} or more", field=name, value=value, limit=field.least
        )
    if value > field.greatest:
        raise _too_large(field, value)
    return value


def _too_large(field: ShapeField, value: object) -> InvalidShape:
    return InvalidShape(
        f"{field.name}={value} is too large: expected {field.greatest} or less",
        field=field.name, value=value, limit=field.greatest,
    )  # fmt: skip


def require_elements(tensor: str, rows: int, columns: int) -> None:
    """Raise :class:`InvalidShape` where a matrix has more elements than 32-bit coordinates reach."""
    if rows * columns > MAX_ELEMENTS:
        raise InvalidShape(
            f"{tensor} of {rows} x {columns} has {rows * columns} elements: at most {MAX_ELEMENTS}",
            field=tensor, value=rows * columns, limit=MAX_ELEMENTS,
        )  # fmt: skip
