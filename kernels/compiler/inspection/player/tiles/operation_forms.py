"""Operations made ready for being executed many times: operands, result types, attributes read once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from warpplan.kernels.compiler.inspection.finished import plain_operands
from warpplan.kernels.compiler.inspection.player.tiles.element_types import ElementType, element_type
from warpplan.kernels.compiler.ttgir.ir import CLOSING, OPENING, IrOperation, Module, Region, is_value, tokenize
from warpplan.kernels.compiler.ttgir.parsing import parse_operation
from warpplan.kernels.compiler.ttgir.source_locations import SourceLocations

_SHAPED = re.compile(r"((?:\d+x)*)(.+)", re.DOTALL)
_SCALAR = re.compile(r"i\d+|index|bf16|tf32|f\d+\w*")
_KINDS = ("tensor", "!ttg.memdesc", "!tt.tensordesc", "!tt.ptr")


@dataclass(frozen=True)
class PrintedType:
    """A type as printed: ``kind`` is "tensor", "!ttg.memdesc", "!tt.tensordesc", "!tt.ptr" or "scalar"; ``shape`` is
    () but for the first three; ``element`` the element's name, of a pointer what it points to."""

    kind: str
    shape: tuple[int, ...]
    element: str

    @property
    def held(self) -> ElementType:
        """The type of its values: a pointer's are addresses."""
        return element_type("index" if self.kind == "!tt.ptr" else self.element)

    @property
    def pointee(self) -> ElementType:
        """What it points to, or its elements do."""
        if self.kind == "!tt.ptr":
            return element_type(self.element)
        return element_type(self.element.removeprefix("!tt.ptr<").partition(">")[0].partition(",")[0])


def read_type(text: str) -> PrintedType:
    """The type that ``text`` prints."""
    text = text.strip()
    for kind in _KINDS:
        if text.startswith(kind + "<"):
            inner = text[len(kind) + 1 : -1]
            if inner.startswith("tensor<"):
                inner = inner[len("tensor<") :]
            depth, end = 0, len(inner)
            for i, character in enumerate(inner):
                depth += (character == "<") - (character == ">")
                if (character == "," and depth == 0) or depth < 0:
                    end = i
                    break
            if kind == "!tt.ptr":
                return PrintedType(kind, (), inner[:end])
            match = _SHAPED.fullmatch(inner[:end])
            assert match is not None
            return PrintedType(kind, tuple(int(n) for n in match.group(1).split("x") if n), match.group(2))
    return PrintedType("scalar", (), text)


@cache
def read_types(text: str) -> tuple[PrintedType, ...]:
    """Every type in ``text``, the outermost ones, in order."""
    found: list[PrintedType] = []
    tokens, i = tokenize(text), 0
    while i < len(tokens):
        if tokens[i] in _KINDS and i + 1 < len(tokens) and tokens[i + 1] == "<":
            depth, j = 0, i + 1
            while True:
                depth += (tokens[j] == "<") - (tokens[j] == ">")
                j += 1
                if depth == 0:
                    break
            found.append(read_type("".join(tokens[i:j])))
            i = j
        else:
            if _SCALAR.fullmatch(tokens[i]):
                found.append(read_type(tokens[i]))
            i += 1
    return tuple(found)


@cache
def _result_types(signature: str) -> tuple[PrintedType, ...]:
    """The types of the results: those after the arrow, or the last."""
    tokens = tokenize(signature)
    depth, start = 0, None
    for i, token in enumerate(tokens):
        depth += (token in OPENING) - (token in CLOSING)
        if depth == 0 and token in ("->", "to"):
            start = i + 1
    return read_types(signature)[-1:] if start is None else read_types("".join(tokens[start:]))


@dataclass(eq=False)
class ReadyOperation:
    """An operation read once. ``operands`` are those in front of its types, a reduction's body left out; ``memory``
    keeps what its implementation read of it (a loop taken apart, a constant)."""

    operation: IrOperation
    line: str
    memory: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = self.operation.name.strip('"')
        self.defined = self.operation.defined

    @cached_property
    def operands(self) -> list[str]:
        tokens = self.operation.tokens
        if self.operation.name.startswith('"'):
            tokens = tokens[: tokens.index(")")]
            return [t for t in tokens if is_value(t)]
        return [t for t in tokens if is_value(t)]

    @cached_property
    def plain_operands(self) -> list[str]:
        """Those before ``deps`` and attributes."""
        return plain_operands(self.operation)

    @cached_property
    def text(self) -> str:
        """Its own text, regions left out."""
        return "".join(part for part in self.operation.parts if isinstance(part, str))

    @cached_property
    def attributes(self) -> dict[str, str]:
        """Also those of an operation printed in MLIR's generic form."""
        found = dict(self.operation.attributes)
        for key, value in re.findall(r"[<{,\s](\w+) = ([^,{}<>]+?)(?= : |[,}>])", self.text):
            found.setdefault(key, value)
        return found

    @cached_property
    def types(self) -> tuple[PrintedType, ...]:
        return read_types(self.operation.signature)

    @cached_property
    def results(self) -> tuple[PrintedType, ...]:
        """The type of each result."""
        if not self.types:  # `arith.constant true`
            return (PrintedType("scalar", (), "i1"),) * len(self.defined)
        after = _result_types(self.operation.signature)
        return after * len(self.defined) if len(after) == 1 else after

    @property
    def result(self) -> PrintedType:
        return self.results[0]

    @cached_property
    def body(self) -> tuple[list[str], list[ReadyOperation]]:
        """Of a reduction or scan: its region's arguments and operations, which are printed inside round brackets."""
        inside = self.text[self.text.index("({") + 2 : self.text.rindex("})")]
        label, *lines = [line.strip() for line in inside.split("\n") if line.strip()]
        arguments = [token for token in tokenize(label) if is_value(token)]
        return arguments, [ReadyOperation(parse_operation(line), self.line) for line in lines]

    def number(self, attribute: str, default: int = 0) -> int:
        """The whole number that an attribute is."""
        value = self.attributes.get(attribute)
        return default if value is None else int(value.split(":")[0].split()[0])

    def numbers(self, attribute: str) -> list[int]:
        """``array<i32: 1, 0>`` as a list."""
        match = re.search(rf"{attribute}\s*=\s*array<i\d+:\s*([-\d, ]*)>", self.text)
        assert match is not None, self.text
        return [int(n) for n in match.group(1).split(",")]


class ReadyCode:
    """A module's kernel with its operations read once, whoever executes them."""

    def __init__(self, module: Module) -> None:
        self.module, self.function = module, module.function
        self._lines = SourceLocations(module).lines_in(module.function)
        self._regions: dict[int, list[ReadyOperation]] = {}

    def of(self, region: Region) -> list[ReadyOperation]:
        """The operations of ``region``."""
        made = self._regions.get(id(region))
        if made is None:
            made = [ReadyOperation(op, self._lines.get(id(op), "")) for op in region.operations]
            self._regions[id(region)] = made
        return made

    @cached_property
    def parameters(self) -> list[tuple[str, PrintedType]]:
        """The kernel's arguments, by name."""
        head = "".join(part for part in self.function.parts if isinstance(part, str))
        found = re.findall(r"(%[\w.$-]+): ", head)
        kinds = re.split(r"%[\w.$-]+: ", head[head.index("(") :])[1:]
        return [(name, read_types(kind)[0]) for name, kind in zip(found, kinds, strict=True)]
