"""TTGIR's text read into the tree of :mod:`~.ir`, by the outer shape that all operations share."""

from __future__ import annotations

import re

from warpplan.kernels.compiler.ttgir.blocks import Unstructured, structured
from warpplan.kernels.compiler.ttgir.ir import (
    CLOSING,
    OPENING,
    IrOperation,
    MalformedIR,
    Module,
    Region,
    is_value,
    tokenize,
)

MOST_NESTED = 100
"""Regions inside each other: beyond that the text is refused, before Python's own recursion limit is reached."""


def parse(text: str) -> Module:
    """Read a module that Triton printed with locations. Raises :class:`MalformedIR` with the line it stopped at."""
    lines = text.rstrip("\n").split("\n")
    first = next((i for i, line in enumerate(lines) if line.startswith(("module", '"builtin.module"'))), None)
    if first is None:
        raise MalformedIR("no module in the text: expected TTGIR as Triton prints it", field="ttgir")
    last = max(i for i in range(first, len(lines)) if not lines[i].startswith("#") and lines[i].strip())
    reader = _TextReader(tokenize("\n".join(lines[first : last + 1])), first + 1)
    operation = reader.operation()
    reader.skip_space()
    if reader.at < len(reader.tokens):
        raise reader.error("text after the module")
    return Module(lines[:first], operation, lines[last + 1 :])


def parse_operation(text: str) -> IrOperation:
    """One operation written out, with or without ``loc(…)``."""
    return _TextReader(tokenize(text if " loc(" in text else f"{text} loc(unknown)"), 1).operation()


class _TextReader:
    def __init__(self, tokens: list[str], line: int) -> None:
        self.tokens, self.at, self.first_line, self.nested = tokens, 0, line, 0

    def error(self, what: str) -> MalformedIR:
        line = self.first_line + "".join(self.tokens[: self.at]).count("\n")
        return MalformedIR(f"line {line} of the TTGIR: {what}", field="ttgir", value=line)

    def skip_space(self) -> None:
        while self.at < len(self.tokens) and self.tokens[self.at].isspace():
            self.at += 1

    def peek(self) -> str:
        if self.at >= len(self.tokens):
            raise self.error("the text ends inside an operation")
        return self.tokens[self.at]

    def next(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def operation(self) -> IrOperation:
        self.skip_space()
        results: list[str] = []
        while is_value(self.peek()):
            name = self.next()
            if self.peek() == ":":
                self.at += 1
                if not self.peek().isdecimal():
                    raise self.error(f"expected how many results {name} stands for, not {self.peek()!r}")
                name += ":" + self.next()
            results.append(name)
            self.skip_space()
            if self.next() != ",":
                break
            self.skip_space()
        if results and self.tokens[self.at - 1] != "=":
            raise self.error(f"expected '=' after {', '.join(results)}")
        self.skip_space()
        name = self.next()
        if not re.fullmatch(r'"?[A-Za-z_][\w$.]*"?', name):
            raise self.error(f"expected an operation's name, not {name!r}")
        operation = IrOperation(name, tuple(results))
        depth = 0
        while True:
            token = self.next()
            if token == "loc" and depth == 0 and self.peek() == "(":
                operation.location = self.location()
                break
            if token == "{" and depth == 0 and self.at < len(self.tokens) and self.tokens[self.at].startswith("\n"):
                operation.parts.append(self.region())
                continue
            depth += (token in OPENING) - (token in CLOSING)
            if depth < 0:
                raise self.error(f"{token!r} closes nothing in {name}")
            operation.parts.append(token)
        while operation.parts and isinstance(operation.parts[-1], str) and operation.parts[-1].isspace():
            operation.parts.pop()
        return operation

    def location(self) -> str:
        start, depth = self.at, 0
        while True:
            token = self.next()
            depth += (token == "(") - (token == ")")
            if depth == 0:
                return "".join(self.tokens[start + 1 : self.at - 1])

    def label(self) -> str:
        """``^bb1(%x: i32):``, and past the comment that names its predecessors."""
        depth, label = 0, ""
        while True:
            token = self.next()
            label += token
            depth += (token in OPENING) - (token in CLOSING)
            if token == ":" and depth == 0:
                break
        while not self.peek().startswith("\n"):
            self.at += 1
        self.skip_space()
        return label

    def region(self) -> Region:
        region = Region()
        self.nested += 1
        if self.nested > MOST_NESTED:
            raise self.error(f"more than {MOST_NESTED} regions inside each other")
        self.skip_space()
        if self.peek().startswith("^"):
            region.label = self.label()
        blocks = [region]
        while self.peek() != "}":
            if self.peek().startswith("^"):
                blocks.append(Region(label=self.label()))
                continue
            blocks[-1].operations.append(self.operation())
            self.skip_space()
        if len(blocks) > 1:
            try:
                region.operations = structured(blocks)
            except Unstructured as error:
                raise self.error(f"several blocks in one region: {error}") from None
        self.at += 1
        self.nested -= 1
        return region
