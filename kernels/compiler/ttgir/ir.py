"""TTGIR as Triton prints it: read into a tree, edited, printed back.

Triton's Python bindings can walk a module but not build or move operations, so an edited module goes through its text:
``parse(str(module))``, edits, ``str(tree)``, ``triton._C.libtriton.ir.parse_mlir_module``. Every operation has its own
assembly format, but all share one outer shape, and that is all the grammar there is here:

    operation := [result {, result} '='] name { token | region } 'loc' '(' … ')'
    region    := '{' newline { '^' label | operation } '}'

An attribute dictionary is a brace that does not end its line. What lies between is kept as tokens, white space among
them, so that an operation nobody touched prints as it was read. Needs neither Triton nor torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from warpplan.planner.errors import InvalidInput

_TOKEN = re.compile(
    r"""
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<value>%[\w$.-]+(?:\#\d+)?)
    | (?P<name>[@\#!^][\w$.-]+|[A-Za-z_][\w$.]*)
    | (?P<number>-?\d[\w.]*(?:[+-]\d+)?)
    | (?P<arrow>->)
    | (?P<newline>\n[ \t]*)
    | (?P<space>[ \t]+)
    | (?P<other>.)
    """,
    re.VERBOSE,
)
OPENING, CLOSING = frozenset("([{<"), frozenset(")]}>")


class MalformedIR(InvalidInput):
    """The text is not a module as Triton prints it."""


def tokenize(text: str) -> list[str]:
    """``text`` cut into tokens, white space included: joined they give ``text`` again."""
    return [match.group() for match in _TOKEN.finditer(text)]


def is_value(token: str) -> bool:
    return token.startswith("%")


def pack_of(value: str) -> str:
    """``%x`` of ``%x#1``: the name under which several results of one operation are defined."""
    return value.split("#", 1)[0]


@dataclass
class Region:
    """The operations between two braces; ``label`` is the header of its block with the arguments, if printed."""

    operations: list[IrOperation] = field(default_factory=list)
    label: str = ""

    def walk(self) -> Iterator[IrOperation]:
        """Every operation in it, outer before inner, in order."""
        for operation in self.operations:
            yield operation
            for region in operation.regions:
                yield from region.walk()


@dataclass
class IrOperation:
    """One operation. ``results`` as defined (``%x`` or ``%x:3``); ``parts`` are its tokens and regions in order, from
    after the name to before the location; ``location`` the text inside ``loc(…)``."""

    name: str
    results: tuple[str, ...] = ()
    parts: list[str | Region] = field(default_factory=list)
    location: str = "unknown"

    @property
    def regions(self) -> list[Region]:
        return [part for part in self.parts if isinstance(part, Region)]

    @property
    def tokens(self) -> list[str]:
        """Its own tokens, white space and regions left out."""
        return [part for part in self.parts if isinstance(part, str) and not part.isspace()]

    @property
    def operands(self) -> list[str]:
        """Every value its head names, in order: operands, and for a loop also what its header defines."""
        return [token for token in self.tokens if is_value(token)]

    @property
    def defined(self) -> list[str]:
        """The names that its results go by: ``%x``, or ``%x#0``, ``%x#1`` … of a pack."""
        names = []
        for result in self.results:
            name, _, count = result.partition(":")
            names += [f"{name}#{i}" for i in range(int(count))] if count else [name]
        return names

    @property
    def result(self) -> str:
        """Its only result."""
        (name,) = self.defined
        return name

    def result_in(self, names: set[str]) -> bool:
        """Whether one of its results is among ``names``."""
        return not names.isdisjoint(self.defined)

    @property
    def signature(self) -> str:
        """What follows its last colon outside of brackets: the types."""
        tokens = [part for part in self.parts if isinstance(part, str)]
        depth, start = 0, None
        for i, token in enumerate(tokens):
            depth += (token in OPENING) - (token in CLOSING)
            if token == ":" and depth == 0:
                start = i + 1
        return "" if start is None else "".join(tokens[start:]).strip()

    @property
    def attributes(self) -> dict[str, str]:
        """Its attribute dictionary (the first brace outside of brackets): name to printed value, "" for a unit."""
        span = self._dictionary()
        if span is None:
            return {}
        entries = split_list("".join(str(part) for part in self.parts[span[0] + 1 : span[1]]))
        pairs = (entry.partition("=") for entry in entries if entry)
        return {name.strip().strip('"'): value.strip() for name, _, value in pairs}

    def set_attribute(self, name: str, value: str = "") -> None:
        """Write ``name = value`` (a unit where ``value`` is empty) into its dictionary, made where there is none."""
        self._write(self.attributes | {name: value})

    def drop_attribute(self, name: str) -> None:
        attributes = self.attributes
        if attributes.pop(name, None) is not None:
            self._write(attributes)

    def _write(self, attributes: Mapping[str, str]) -> None:
        quoted = {n if re.fullmatch(r"[A-Za-z_][\w$.]*", n) else f'"{n}"': v for n, v in attributes.items()}
        text = ", ".join(f"{n} = {v}" if v else n for n, v in quoted.items())
        new: list[str | Region] = list(tokenize("{" + text + "}")) if attributes else []
        span = self._dictionary()
        if span is not None:
            self.parts[span[0] : span[1] + 1] = new
        elif any(isinstance(part, Region) for part in self.parts):
            self.parts += [" ", *new]  # a loop prints its dictionary after its region
        else:
            at = self._before_types()
            self.parts[at:at] = [" ", *new]

    def _dictionary(self) -> tuple[int, int] | None:
        """Positions of the braces of its attribute dictionary in ``parts``."""
        depth, start = 0, None
        for i, part in enumerate(self.parts):
            if not isinstance(part, str):
                continue
            if part == "{" and depth == 0:
                start = i
            depth += (part in OPENING) - (part in CLOSING)
            if part == "}" and depth == 0 and start is not None:
                return start, i
        return None

    def _before_types(self) -> int:
        depth = 0
        for i, part in enumerate(self.parts):
            if isinstance(part, str):
                depth += (part in OPENING) - (part in CLOSING)
                if part == ":" and depth == 0:
                    return i - 1 if i and str(self.parts[i - 1]).isspace() else i
        return len(self.parts)

    def walk(self) -> Iterator[IrOperation]:
        yield self
        for region in self.regions:
            yield from region.walk()

    def substituted(self, names: Mapping[str, str], *, deep: bool = True) -> IrOperation:
        """A copy in which each value that ``names`` has, as it is written (``%x#1``), reads as it says there. Regions
        are copied too, or taken over as they are where not ``deep``."""

        def region(old: Region) -> Region:
            if not deep:
                return old
            label = "".join(names.get(token, token) for token in tokenize(old.label))
            return Region([operation.substituted(names) for operation in old.operations], label)

        parts = [names.get(p, p) if isinstance(p, str) else region(p) for p in self.parts]
        return IrOperation(self.name, self.results, parts, self.location)

    def text(self, indent: str = "") -> str:
        head = f"{', '.join(self.results)} = " if self.results else ""
        pieces = [indent, head, self.name]
        for part in self.parts:
            if isinstance(part, str):
                pieces.append(part)
                continue
            pieces.append("{\n")
            if part.label:
                pieces.append(f"{indent}{part.label}\n")
            pieces += [f"{operation.text(indent + '  ')}\n" for operation in part.operations]
            pieces.append(indent + "}")
        return "".join(pieces).rstrip() + f" loc({self.location})"


@dataclass
class Module:
    """A printed module: the aliases before it, its one outermost operation, the locations after it."""

    aliases: list[str]
    operation: IrOperation
    locations: list[str]

    def __str__(self) -> str:
        return "\n".join([*self.aliases, self.operation.text(), *self.locations, ""])

    def walk(self) -> Iterator[IrOperation]:
        return self.operation.walk()

    @property
    def function(self) -> IrOperation:
        """The kernel: the one public function."""
        for operation in (o for region in self.operation.regions for o in region.operations):
            if operation.name == "tt.func" and "public" in operation.tokens:
                return operation
        raise MalformedIR("the module has no public tt.func: expected one kernel", field="ttgir")

    def alias(self, text: str, stem: str = "shared") -> str:
        """The alias of the attribute ``text``, defined here under a new name where there is none."""
        for line in self.aliases:
            name, _, value = line.partition(" = ")
            if value == text:
                return name
        taken = {line.partition(" = ")[0] for line in self.aliases}
        name = next(n for i in range(len(taken) + 1) if (n := f"#{stem}{i or ''}") not in taken)
        self.aliases.append(f"{name} = {text}")
        return name


def split_list(text: str) -> list[str]:
    """``text`` cut at its commas outside of brackets and strings, each piece stripped."""
    pieces, depth, current = [], 0, ""
    for token in tokenize(text):
        depth += (token in OPENING) - (token in CLOSING)
        if token == "," and depth == 0:
            pieces.append(current.strip())
            current = ""
        else:
            current += token
    return [*pieces, current.strip()] if current.strip() or pieces else []
