"""Neighbouring elements of a tile that one thread holds, read off the tile's layout.

``#ttg.blocked`` says it; a ``#ttg.slice`` has what its parent has along the dimensions that it keeps; the registers of
a ``#ttg.linear`` count as far as each doubles the one before. Of another layout nothing is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

_NUMBERS = re.compile(r"\[([\d, ]*)\]")


def neighbours(encoding: str, aliases: Iterable[str], rank: int) -> tuple[int, int]:
    """The dimension along which a thread of a tile with the layout ``encoding`` holds most neighbours, and how many;
    ``aliases`` are the module's, as printed. (last dimension, 1) where the layout does not say."""
    named = dict(line.partition(" = ")[::2] for line in aliases)
    each = _per_dimension(encoding, named)
    if each is None or len(each[0]) != rank:
        return rank - 1, 1
    counts, order = each
    dim = order[0]
    return dim, counts[dim]


def _per_dimension(encoding: str, named: dict[str, str]) -> tuple[list[int], list[int]] | None:
    """Neighbours of a thread along each dimension, and the dimensions from the fastest on."""
    text = named.get(encoding, encoding)
    if text.startswith("#ttg.blocked<"):
        return _list(text, "sizePerThread"), _list(text, "order")
    if text.startswith("#ttg.slice<"):
        found = re.match(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>$", text)
        parent = _per_dimension(found[2], named) if found is not None else None
        if found is None or parent is None:
            return None
        cut = int(found[1])
        kept = [n for i, n in enumerate(parent[0]) if i != cut]
        return kept, [dim - (dim > cut) for dim in parent[1] if dim != cut]
    if text.startswith("#ttg.linear<"):
        found = re.search(r"register = (\[.*?\]\]|\[\])", text)
        bases = json.loads(found[1]) if found is not None else []
        if not bases:
            return None
        fastest = max(range(len(bases[0])), key=lambda dim: bases[0][dim])
        counts = [1] * len(bases[0])
        for basis in bases:
            if basis[fastest] != counts[fastest] or sum(basis) != basis[fastest]:
                break
            counts[fastest] *= 2
        return counts, [fastest, *(dim for dim in range(len(counts)) if dim != fastest)]
    return None


def _list(text: str, name: str) -> list[int]:
    found = _NUMBERS.match(text.partition(f"{name} = ")[2])
    assert found is not None, text
    return [int(n) for n in found[1].split(",")]
