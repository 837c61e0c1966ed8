"""How many elements of a vector each thread holds whose layout is a row or a column of a product's accumulator.

    #mma = #ttg.nvidia_mma<{versionMajor = 3, …, warpsPerCTA = [4, 1], instrShape = [16, 64, 32]}>
    tensor<64xf32, #ttg.slice<{dim = 0, parent = #mma}>>      one row: 16 of its 64 columns a thread

Of a row of an accumulator a thread holds two of each eight columns of its warp, of a column two of each 16 rows (PTX
ISA, "Register fragments" of mma.sync and wgmma): threads of other rows hold the same columns again. Triton loads a
vector in that layout where it would have to change it otherwise, an element at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SLICE = re.compile(r"#ttg\.slice<\{dim = ([01]), parent = (#\w+)\}>")
_ACCUMULATOR = re.compile(r"(#\w+) = #ttg\.nvidia_mma<\{.*\bwarpsPerCTA = \[(\d+), (\d+)\]")
_HELD, _ROWS, _COLUMNS = 2, 16, 8


def elements_of_slice(encoding: str, shape: tuple[int, ...], aliases: Iterable[str]) -> int:
    """Each thread's elements of a vector of ``shape`` with the layout ``encoding``; 0 for any other layout. ``aliases``
    are the module's, as printed."""
    found = _SLICE.fullmatch(encoding)
    if found is None or len(shape) != 1:
        return 0
    warps = {name[1]: (int(name[2]), int(name[3])) for line in aliases if (name := _ACCUMULATOR.match(line))}
    if found[2] not in warps:
        return 0
    rows, columns = warps[found[2]]
    of_warps = _COLUMNS * columns if found[1] == "0" else _ROWS * rows
    return _HELD * max(1, shape[0] // of_warps)
