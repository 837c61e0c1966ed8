"""A product as Inductor's lookup table names it: dtypes, sizes and strides of each input, then the operation.

    ((torch.bfloat16, [4096, 512], [512, 1]), (torch.bfloat16, [512, 1024], [1, 512]))+mm

``addmm`` has its bias before the operands and its scalars (``alpha=1&beta=1``) after all inputs. Source: torch 2.11 and
2.13, ``_inductor/lookup_table/choices.py`` (``make_lookup_key``). Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from warpplan.planner.errors import InvalidInput

OPERATIONS = ("mm", "addmm")
_INPUT = re.compile(r"\(torch\.(\w+), \[(\d+(?:, \d+)*)\], \[(\d+(?:, \d+)*)\]\)")
_KEY = re.compile(r"\((?P<inputs>\(torch\..*\)),?\)(?P<scalars>\+[^+()]*=[^+()]*)?\+(?P<op>\w+)")


@dataclass(frozen=True)
class InputNode:
    """A tensor: torch's name of its ``dtype``, its ``sizes`` and ``strides`` in elements."""

    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def __str__(self) -> str:
        return f"(torch.{self.dtype}, {list(self.sizes)}, {list(self.strides)})"


@dataclass(frozen=True)
class MmProblem:
    """A product [m, k] · [k, n] of Inductor: ``inputs`` in the operation's order, the operands last."""

    operation: str
    inputs: tuple[InputNode, ...]
    scalars: str = ""

    @property
    def m(self) -> int:
        return self.inputs[-2].sizes[0]

    @property
    def n(self) -> int:
        return self.inputs[-1].sizes[1]

    @property
    def k(self) -> int:
        return self.inputs[-2].sizes[1]

    @property
    def dtype(self) -> str:
        """Of the operands."""
        return self.inputs[-2].dtype

    @property
    def layout(self) -> str:
        """How the operands lie, as the option ``layout`` of ``gemm`` has it: "n" by rows, "t" by columns."""
        return "".join("t" if node.strides[0] == 1 and node.sizes[1] > 1 else "n" for node in self.inputs[-2:])

    def key(self, device: str = "") -> str:
        """The key in the table: of ``device``, by its full name, or of any."""
        inputs = ", ".join(map(str, self.inputs))
        comma = "," if len(self.inputs) == 1 else ""
        parts = [device, f"({inputs}{comma})", self.scalars, self.operation]
        return "+".join(part for part in parts if part)


def plain_product(m: int, n: int, k: int, dtype: str, layout: str = "nt") -> MmProblem:
    """``mm`` of two dense matrices that lie as ``layout`` says."""
    a = (k, 1) if layout[0] == "n" else (1, m)
    b = (n, 1) if layout[1] == "n" else (1, k)
    return MmProblem("mm", (InputNode(dtype, (m, k), a), InputNode(dtype, (k, n), b)))


def problem_of(key: str) -> MmProblem:
    """The product that ``key``, without a device before it, names. Raises :class:`InvalidInput` where it names none, or
    an operation that no table is written for."""
    found = _KEY.fullmatch(key.strip())
    inputs = tuple(
        InputNode(dtype, _numbers(sizes), _numbers(strides))
        for dtype, sizes, strides in _INPUT.findall(found["inputs"] if found else "")
    )
    problem = MmProblem(found["op"], inputs, (found["scalars"] or "")[1:]) if found else None
    if problem is None or len(inputs) < 2 or problem.key() != key.strip():
        raise InvalidInput(f"{key[:120]!r} is no key of Inductor's lookup table", field="key", value=key)
    if problem.operation not in OPERATIONS:
        raise InvalidInput(
            f"{problem.operation} is not planned for: expected {', '.join(OPERATIONS)}",
            field="key", value=problem.operation, limit=list(OPERATIONS),
        )  # fmt: skip
    a, b = inputs[-2:]
    if any(len(node.sizes) != 2 or len(node.strides) != 2 for node in (a, b)) or a.sizes[1] != b.sizes[0]:
        raise InvalidInput(f"{key[:120]!r} is no product of two matrices", field="key", value=key)
    return problem


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(", "))
