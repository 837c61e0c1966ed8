"""What a kernel says about itself, once: routes, command line, batch files, docs and exporters follow from it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from warpplan.planner.errors import Infeasible, InvalidShape, UnknownName
from warpplan.planner.values.device import Device

Shape = tuple[int | str, ...]
"""The sizes in the order of a declaration's fields, then ``"name=value"`` for each option that is not at its default,
in declared order: ``(4096, 4096, 4096)`` or ``(4096, 4096, 4096, "layout=nn")``. One computation has one shape."""

MAX_ELEMENTS = 2**31
"""Of one tensor: what 32-bit coordinates reach."""
MAX_LIST_CHARACTERS = 2000
"""Of an option's list of whole numbers, as text: 256 numbers of six digits fit. The service keeps answers under their
shapes, and PostgreSQL takes no more than 2,704 bytes in a row of an index."""


@dataclass(frozen=True)
class ShapeField:
    """One size of a shape: whole numbers from ``least`` to ``greatest``, both allowed.

    ``meaning`` is a few words for people.
    """

    name: str
    meaning: str
    least: int = 1
    greatest: int = MAX_ELEMENTS


@dataclass(frozen=True)
class ShapeOption:
    """A choice that belongs to a shape beside its sizes, such as how an operand lies in memory.

    Its value is text, one of ``choices``; ``default`` is one of them, and is what an absent option means. With
    ``whole_numbers`` the value may also be a list of whole numbers of 0 or more, ``[1, 2, 3]`` or ``"1,2,3"``, or one
    number; how many there must be is for the kernel to say.
    """

    name: str
    meaning: str
    choices: tuple[str, ...]
    default: str
    whole_numbers: bool = False

    def __post_init__(self) -> None:
        if self.default not in self.choices:
            raise ValueError(f"the default {self.default!r} of {self.name} is none of {', '.join(self.choices)}")

    @property
    def expected(self) -> str:
        """What a value may be, in words."""
        more = ", or whole numbers such as 1,2,3" if self.whole_numbers else ""
        return f"expected {', '.join(self.choices)}{more}"

    def parse(self, value: object) -> str:
        """The one text of ``value``; ``None`` is the default. Raises :class:`InvalidShape` naming the option."""
        if value is None:
            return self.default
        text = value.strip() if isinstance(value, str) else None
        if text in self.choices:
            return text
        if self.whole_numbers:
            numbers = _whole_numbers(text.split(",") if text is not None else value)
            if numbers is not None:
                return self._listed(numbers)
        raise InvalidShape(
            f"{self.name}={_shown(value)} is unknown: {self.expected}",
            field=self.name, value=value, limit=list(self.choices),
        )  # fmt: skip

    def _listed(self, numbers: Sequence[int]) -> str:
        largest = max(numbers)
        if largest > MAX_ELEMENTS:
            raise InvalidShape(
                f"{self.name} holds {_shown(largest)}: expected {MAX_ELEMENTS} or less each",
                field=self.name, value=largest, limit=MAX_ELEMENTS,
            )  # fmt: skip
        text = ",".join(map(str, numbers))
        if len(text) > MAX_LIST_CHARACTERS:
            raise InvalidShape(
                f"{self.name} is a list of {len(text)} characters: expected {MAX_LIST_CHARACTERS} or less, or one of "
                f"{', '.join(self.choices)}",
                field=self.name, value=len(text), limit=MAX_LIST_CHARACTERS,
            )  # fmt: skip
        return text


@dataclass(frozen=True)
class Declaration:
    """A kernel's name, what it computes, the fields of a shape in order, its dtypes by torch's names, example shapes.

    ``options`` are what a shape says beside its sizes; no two fields or options share a name. ``shown_first`` orders
    the constants of a configuration where one is printed; the rest follow by name.
    """

    name: str
    description: str
    fields: tuple[ShapeField, ...]
    dtypes: tuple[str, ...]
    examples: tuple[Shape, ...]
    shown_first: tuple[str, ...] = ()
    options: tuple[ShapeOption, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.parameters)) < len(self.parameters):
            raise ValueError(f"{self.name} declares a name twice: {', '.join(self.parameters)}")

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(field.name for field in self.fields)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the fields, then those of the options: all that a shape can be given by."""
        return (*self.dimensions, *(option.name for option in self.options))

    def sizes(self, shape: Shape) -> tuple[int, ...]:
        """The sizes of ``shape`` in the order of the fields, without its options."""
        return tuple(size for size in shape if not isinstance(size, str))

    def named(self, shape: Shape) -> dict[str, int | str]:
        """``shape`` by the names of its fields, then of the options that are not at their defaults. It is what
        :meth:`parse_shape` reads back."""
        return {**dict(zip(self.dimensions, self.sizes(shape), strict=True)), **options_of(shape)}

    def chosen(self, shape: Shape) -> dict[str, str]:
        """The value of every option at ``shape``, defaults filled in."""
        return {option.name: option.default for option in self.options} | options_of(shape)

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
            "options": [{**asdict(o), "choices": list(o.choices)} for o in self.options],
            "examples": [self.named(shape) for shape in self.examples],
        }

    def require_dtype(self, dtype: str) -> None:
        """Raise :class:`UnknownName` for a dtype that the kernel does not have."""
        if dtype not in self.dtypes:
            raise UnknownName("dtype", dtype, self.dtypes)

    def require_wgmma(self, device: Device) -> None:
        """Raise :class:`Infeasible` for a device without the tensor cores' instructions that the kernel is made of."""
        if not device.has_wgmma:
            raise Infeasible(
                f"{self.name} runs on Hopper alone (wgmma, capability 9.0), not on {device.name}: ask for a Hopper GPU",
                field="device", value=device.name, limit="capability 9.0",
            )  # fmt: skip

    def parse_shape(self, given: Mapping[str, object]) -> Shape:
        """The one shape that sizes and options by their names make. Sizes are whole numbers, and text such as "4096" is
        accepted; an option that is absent is at its default.

        Raises :class:`InvalidShape` naming the first field or option that is missing, unknown or out of its range, its
        value and what it may be.
        """
        for name in given:
            if name not in self.parameters:
                kind = "dimension or option" if self.options else "dimension"
                raise InvalidShape(
                    f"{self.name} has no {kind} {name!r}: expected {', '.join(self.parameters)}",
                    field=str(name), value=given[name], limit=list(self.parameters),
                )  # fmt: skip
        sizes = tuple(_size(self.name, field, given.get(field.name)) for field in self.fields)
        values = tuple((option, option.parse(given.get(option.name))) for option in self.options)
        return (*sizes, *(f"{option.name}={value}" for option, value in values if value != option.default))


def options_of(shape: Shape) -> dict[str, str]:
    """The options of ``shape`` by name: those that are not at their defaults."""
    pairs = (word.partition("=") for word in shape if isinstance(word, str))
    return {name: value for name, _, value in pairs}


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
        raise InvalidShape(f"{name}={_shown(value)} is not a whole number", field=name, value=value, limit=field.least)
    if value < field.least:
        raise InvalidShape(
            f"{name}={value} is too small: expected {field.least} or more", field=name, value=value, limit=field.least
        )
    if value > field.greatest:
        raise _too_large(field, value)
    return value


def _whole_numbers(value: object) -> list[int] | None:
    """``value``, one whole number or a list of them, which may be text such as "128", as a list; ``None`` where it is
    none."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, list | tuple) or not value:
        return None
    numbers = [int(v) if isinstance(v, str) and re.fullmatch(r"\s*[0-9]{1,20}\s*", v) else v for v in value]
    whole = all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in numbers)
    return numbers if whole else None


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except ValueError:
        # Python prints no number of thousands of digits.
        return "(too long to show)"
    return shown if len(shown) <= 60 else f"{shown[:59]}…"


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
