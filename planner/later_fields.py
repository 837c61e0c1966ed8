"""Fields that a value has gained since the first version of its schema.

Where such a field holds its default, neither JSON nor ``repr`` shows it: bytes, keys and recorded answers of values
that do not use it stay what they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from types import MappingProxyType
from typing import Any, TypeVar

T = TypeVar("T")
LATER: Mapping[str, bool] = MappingProxyType({"later": True})
"""Metadata of such a field, which has ``repr=False`` beside it."""


def is_shown(f: Field[Any], value: object) -> bool:
    """Whether ``f`` of a dataclass, which holds ``value``, is written."""
    return "later" not in f.metadata or value != f.default


def shows_later_fields(kind: type[T]) -> type[T]:
    """Class decorator, outside of ``dataclass``: ``repr`` ends with the later fields that are shown."""
    plain = kind.__repr__
    added = [f for f in fields(kind) if "later" in f.metadata]  # type: ignore[arg-type]

    def text(self: T) -> str:
        shown = [f"{f.name}={getattr(self, f.name)!r}" for f in added if is_shown(f, getattr(self, f.name))]
        return plain(self) if not shown else f"{plain(self)[:-1]}, {', '.join(shown)})"

    kind.__repr__ = text  # type: ignore[method-assign, assignment]
    return kind
