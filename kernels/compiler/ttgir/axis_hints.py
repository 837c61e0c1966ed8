"""What ``tl.multiple_of``, ``tl.max_contiguous`` and ``tl.max_constancy`` promise, as attributes of an operation.

Each is one number a dimension of the result: runs of ``contiguity`` numbers that follow one another and of
``constancy`` equal ones, the first number of each run a multiple of ``divisibility`` (triton 3.6.0 to 3.9.0,
``triton/Analysis/AxisInfo.h``). Triton's analysis of axes aborts the process where the count is not the rank.
"""

from __future__ import annotations

import re

from warpplan.kernels.compiler.ttgir.ir import IrOperation

HINTS = ("tt.contiguity", "tt.divisibility", "tt.constancy")
_NUMBERS = re.compile(r"dense<\[?([\d, ]+)\]?> : tensor<(\d+)x(i\d+)>")


def shorten_hints(operation: IrOperation, dim: int, size: int) -> None:
    """Make what ``operation`` promises of its result hold for ``size`` elements along ``dim``, from any multiple of
    ``size`` on: a longer run is cut, and where it is cut only ``size`` divides its first number for sure."""
    attributes = operation.attributes
    for name in HINTS:
        found = _NUMBERS.fullmatch(attributes.get(name, ""))
        if found is None:
            continue
        numbers = [int(number) for number in found[1].split(",")]
        numbers = numbers * int(found[2]) if len(numbers) == 1 else numbers
        numbers[dim] = min(numbers[dim], size)
        operation.set_attribute(name, f"dense<[{', '.join(map(str, numbers))}]> : tensor<{found[2]}x{found[3]}>")
