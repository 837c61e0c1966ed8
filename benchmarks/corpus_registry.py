"""Every entry of the corpus, in the order of its modules. Needs Triton, no torch, no GPU."""

from __future__ import annotations

import importlib
from functools import cache

import triton
from corpus_entry import BLOCK, Entry

MODULES = (
    "gemm_pointers", "gemm_blocks", "gemm_descriptors", "quantised", "experts", "attention_forward",
    "attention_serving", "attention_backward", "recurrences.linear_attention", "recurrences.delta_rule",
    "recurrences.state_spaces", "training", "norms",
)  # fmt: skip
HAS_BLOCK_POINTERS = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)
"""They are gone from the language since Triton 3.9."""


@cache
def entries() -> dict[str, Entry]:
    """By name."""
    found: dict[str, Entry] = {}
    for name in MODULES:
        for value in vars(importlib.import_module(f"corpus.{name}")).values():
            if isinstance(value, Entry) and (value.style != BLOCK or HAS_BLOCK_POINTERS):
                if value.name in found:
                    raise ValueError(f"{value.name} in corpus.{name}: two entries have this name")
                found[value.name] = value
    return found


def chosen(words: list[str]) -> list[Entry]:
    """Entries whose name, family or style contains one of the ``words``; all where there is none."""
    return [
        entry
        for entry in entries().values()
        if not words or any(word in text for word in words for text in (entry.name, entry.family, entry.style))
    ]
