"""What a rank chose: configurations by what was asked for, with one digest of all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NO_ANSWER = "null"
"""The choice of a rank that got no answer, and launches with what it has of its own."""


@dataclass(frozen=True, order=True)
class ChoiceKey:
    """What was asked for. ``shape`` is sorted by name, and whole numbers are numbers however they were written: ranks
    that ask alike have equal keys."""

    kernel: str
    shape: tuple[tuple[str, str], ...]
    dtype: str
    device: str

    @classmethod
    def of(cls, kernel: str, shape: Mapping[str, object], dtype: str, device: str) -> ChoiceKey:
        pairs = sorted((str(name), _word(value)) for name, value in shape.items())
        return cls(kernel, tuple(pairs), dtype, device)

    def as_dict(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "shape": dict(self.shape), "dtype": self.dtype, "device": self.device}

    @property
    def label(self) -> str:
        shape = " ".join(f"{name}={value}" for name, value in self.shape)
        return f"{self.kernel} {shape} {self.dtype} on {self.device}"


class RankChoices:
    """The choice in effect for each key, as canonical JSON (:func:`config_text`)."""

    def __init__(self) -> None:
        self._made: dict[ChoiceKey, str] = {}
        self._sum = 0

    @property
    def digest(self) -> str:
        """Equal for equal choices, in whatever order they were made: the sum of the SHA-256 of each (key, choice)
        modulo 2²⁵⁶ (AdHash, Bellare & Micciancio 1997). One more choice costs one hash, however many there are."""
        return f"{self._sum:064x}"

    def get(self, key: ChoiceKey) -> str | None:
        return self._made.get(key)

    def put(self, key: ChoiceKey, choice: str) -> None:
        before = self._made.get(key)
        gone = 0 if before is None else _hash(key, before)
        self._made[key] = choice
        self._sum = (self._sum - gone + _hash(key, choice)) % (1 << 256)

    def __len__(self) -> int:
        return len(self._made)

    def __iter__(self) -> Iterator[tuple[ChoiceKey, str]]:
        """By key."""
        return iter(sorted(self._made.items()))


def config_text(config: object) -> str:
    """``config`` as canonical JSON: equal configurations have equal texts."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"))


def _word(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(_word, value))
    text = str(value).strip()
    return str(int(text)) if text.isascii() and text.isdigit() and len(text) <= 20 else text


def _hash(key: ChoiceKey, choice: str) -> int:
    text = config_text([key.as_dict(), choice])
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest(), "big")
