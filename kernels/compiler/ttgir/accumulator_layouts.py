"""Layouts of wgmma's accumulators that spread a tile over threads alike, under one name.

    #mma  = #ttg.nvidia_mma<{versionMajor = 3, …, warpsPerCTA = [8, 1], instrShape = [16, 128, 16]}>
    #mma1 = #ttg.nvidia_mma<{versionMajor = 3, …, warpsPerCTA = [8, 1], instrShape = [16, 64, 16]}>

A thread holds the same two of each eight columns however many columns an instruction has (PTX ISA, "Register fragments
for wgmma"). A conversion between the two numbers registers anew and moves nothing; no instruction of it is left in SASS
(Triton 3.6.0).
"""

from __future__ import annotations

import re

_WGMMA = re.compile(
    r"^(#\w+) = #ttg\.nvidia_mma<\{versionMajor = 3, versionMinor = \d+, warpsPerCTA = \[(\d+), 1\], "
    r"instrShape = \[16, \d+, \d+\]\}>\n", re.MULTILINE,
)  # fmt: skip


def with_one_accumulator_layout(text: str) -> str:
    """TTGIR ``text``, for reading, with one alias for all layouts of accumulators whose rows as many warps share."""
    first: dict[str, str] = {}
    renamed: dict[str, str] = {}
    for name, warps in _WGMMA.findall(text):
        known = first.setdefault(warps, name)
        if known != name:
            renamed[name] = known
    if not renamed:
        return text
    kept = _WGMMA.sub(lambda found: "" if found[1] in renamed else found[0], text)
    return re.sub(r"#\w+", lambda found: renamed.get(found[0], found[0]), kept)
