"""Sizes and configurations as words of the command line: ``M=4096 N=4096``, ``BLOCK_M=64,128 num_warps=4,8``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from warpplan.planner.errors import InvalidInput
from warpplan.planner.values.tuning import TuningConfig
from warpplan.service.tuning.size_formulas import MOST_VALUE, whole_number

MOST_CONFIGS = 2_000
"""Configurations at most: each takes a few tenths of a second."""
OPTIONS = ("num_warps", "num_stages", "num_ctas")
SHOWN = 80
"""Letters of a refused word that its error repeats."""


def space(text: str) -> tuple[TuningConfig, ...]:
    """The configurations of ``"BLOCK_M=64,128 BLOCK_N=128 num_warps=4,8 num_stages=3"``: every combination.

    Raises :class:`InvalidInput` for a word that is none, and for more than :data:`MOST_CONFIGS`.
    """
    lists: dict[str, list[int]] = {}
    for word in text.split():
        name, equals, values = word.partition("=")
        numbers = [number for v in values.split(",") if (number := _size(v)) is not None]
        if not equals or not name.isidentifier() or name in lists or len(numbers) <= values.count(","):
            raise InvalidInput(
                f"--space {word[:SHOWN]!r}: expected NAME=NUMBER,NUMBER once a name, such as BLOCK_M=64,128, of "
                f"numbers up to {MOST_VALUE}",
                field="space", value=word, limit=MOST_VALUE,
            )  # fmt: skip
        lists[name] = list(dict.fromkeys(numbers))
    if (count := math.prod(map(len, lists.values()))) > MOST_CONFIGS:
        raise InvalidInput(
            f"--space: {count} configurations, at most {MOST_CONFIGS}", field="space", value=count, limit=MOST_CONFIGS
        )
    found = []
    for chosen in product(*lists.values()):
        one = dict(zip(lists, chosen, strict=True))
        kwargs = tuple((name, value) for name, value in one.items() if name not in OPTIONS)
        found.append(TuningConfig(kwargs, one.get("num_warps", 4), one.get("num_stages", 3), one.get("num_ctas", 1)))
    return tuple(found)


def shape_named(words: Sequence[str]) -> dict[str, int]:
    """``["M=4096", "N=4096"]`` as sizes by name. Raises :class:`InvalidInput`."""
    found: dict[str, int] = {}
    for word in words:
        name, equals, value = word.partition("=")
        size = _size(value)
        if not equals or not name.isidentifier() or size is None or name in found:
            raise InvalidInput(
                f"--shapes: {word[:SHOWN]!r}: expected NAME=NUMBER once a name, such as M=4096, of numbers up to "
                f"{MOST_VALUE}",
                field="shapes", value=word, limit=MOST_VALUE,
            )  # fmt: skip
        found[name] = size
    return found


def _size(text: str) -> int | None:
    """A whole number without a sign."""
    return None if text.startswith("-") else whole_number(text)
