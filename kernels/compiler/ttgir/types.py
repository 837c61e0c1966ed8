"""Types as TTGIR prints them, as values: tensors, shared memory, TMA descriptors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from warpplan.kernels.compiler.ttgir.ir import MalformedIR, split_list, tokenize

_DIMENSIONS = re.compile(r"((?:\d+x)*)(.+)", re.DOTALL)


@dataclass(frozen=True)
class ShapedType:
    """``tensor<…>``, ``!ttg.memdesc<…>`` or ``!tt.tensordesc<…>``: ``kind`` is what stands before the bracket,
    ``shape`` its dimensions, ``element`` the element type as printed, ``rest`` what follows the first comma (encoding,
    memory space, ``mutable``, allocation shape). A descriptor that prints its block as a tensor has ``nested`` set."""

    kind: str
    shape: tuple[int, ...]
    element: str
    rest: tuple[str, ...] = ()
    nested: bool = False

    def __str__(self) -> str:
        inner = ", ".join(("x".join([*map(str, self.shape), self.element]), *self.rest))
        return f"{self.kind}<tensor<{inner}>>" if self.nested else f"{self.kind}<{inner}>"

    @property
    def encoding(self) -> str:
        return self.rest[0] if self.rest else ""

    @property
    def element_bits(self) -> int:
        """Bits of one element; pointers have 64. Raises :class:`MalformedIR` for a type without a size."""
        if self.element.startswith("!tt.ptr"):
            return 64
        match = re.match(r"(?:bf|f|i|ui|si)(\d+)", self.element)
        if match is None:
            raise MalformedIR(f"element type {self.element!r} of {self}: expected a type of known size", field="ttgir")
        return int(match.group(1))

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.element_bits // 8

    def with_shape(self, shape: tuple[int, ...]) -> ShapedType:
        return replace(self, shape=shape)


def parse_type(text: str) -> ShapedType | None:
    """The shaped type that ``text`` is, or ``None`` for a scalar, a pointer or a token."""
    text = text.strip()
    for kind in ("tensor", "!ttg.memdesc", "!tt.tensordesc"):
        if text.startswith(kind + "<") and text.endswith(">"):
            inner, nested = text[len(kind) + 1 : -1], False
            if inner.startswith("tensor<"):
                inner, nested = inner[len("tensor<") : -1], True
            first, *rest = split_list(inner)
            match = _DIMENSIONS.fullmatch(first)
            assert match is not None
            shape = tuple(int(n) for n in match.group(1).split("x") if n)
            return ShapedType(kind, shape, match.group(2), tuple(rest), nested)
    return None


def find_types(text: str) -> list[str]:
    """Every shaped type in ``text``, outermost ones, in order."""
    found, tokens, i = [], tokenize(text), 0
    while i < len(tokens):
        if tokens[i] in ("tensor", "!ttg.memdesc", "!tt.tensordesc") and i + 1 < len(tokens) and tokens[i + 1] == "<":
            depth, j = 0, i + 1
            while True:
                depth += (tokens[j] == "<") - (tokens[j] == ">")
                j += 1
                if depth == 0:
                    break
            found.append("".join(tokens[i:j]))
            i = j
        else:
            i += 1
    return found
