"""How many elements of a vector each thread holds whose layout is a row or a column of a product's accumulator.

    #mma = #ttg.nvidia_mma<{versionMajor = 3, …, warpsPerCTA = [4, 1], instrShape = [16, 64, 32]}>
    tensor<64xf32, #ttg.slice<{dim = 0, parent = #mma}>>      one row: 16 of its 64 columns a thread

Of a row of an accumulator a thread holds two of each eight columns of its warp, of a column two of each 16 rows (PTX
ISA, "Register fragments" of mma.sync and wgmma): threads of other rows hold the same columns again. Warps that share
the columns take those of one instruction each; what is left of a short vector they all hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SLICE = re.compile(r"#ttg\.slice<\{dim = ([01]), parent = (#\w+)\}>")
_ACCUMULATOR = re.compile(
    r"(#\w+) = #ttg\.nvidia_mma<\{.*\bwarpsPerCTA = \[(\d+), (\d+)\].*\binstrShape = \[(\d+), (\d+)"
)
_HELD, _TOGETHER = 2, (8, 16)
"""Elements that a thread holds, out of every 8 columns and every 16 rows."""


def elements_of_slice(encoding: str, shape: tuple[int, ...], aliases: Iterable[str]) -> int:
    """Each thread's elements of a vector of ``shape`` with the layout ``encoding``; 0 for any other layout. ``aliases``
    are the module's, as printed."""
    found = _SLICE.fullmatch(encoding)
    if found is None or len(shape) != 1:
        return 0
    layout = next((name for line in aliases if (name := _ACCUMULATOR.match(line)) and name[1] == found[2]), None)
    if layout is None:
        return 0
    by_rows = found[1] == "1"
    warps, step = (int(layout[2]), int(layout[4])) if by_rows else (int(layout[3]), int(layout[5]))
    held = -(-shape[0] // (warps * step)) * min(step, shape[0])
    return max(1, _HELD * held // _TOGETHER[by_rows])
