"""How far neighbouring positions of a tile hold consecutive, or equal, values: what ``cp.async`` can copy at once.

Forward dataflow over the lattice (contiguity, divisor, constancy) along one dimension, as Triton's own analysis of axes
does it (``AxisInfo``, triton 3.6.0), for the operations that addresses and masks are made of. All three are powers of
two; a run starts at a multiple of its length, and ``divisor`` divides the first number of each run, an address's in
bytes. What is divided is taken to be 0 or more, and what is not known here is a run of one: never longer than what
Triton finds, for a copy that Triton finds narrower than 4 bytes does not compile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import gcd

from warpplan.kernels.compiler.analysis.value_flow import CARRIED, PLAIN, VARIABLE, Definition, definitions
from warpplan.kernels.compiler.ttgir.control import read_loop
from warpplan.kernels.compiler.ttgir.ir import IrOperation, split_list
from warpplan.kernels.compiler.ttgir.printed_shapes import result_shapes
from warpplan.kernels.compiler.ttgir.types import find_types, parse_type

MOST = 1 << 16
"""Divisor and constancy of 0 and of scalars: larger than any tile's side or vector, so that it never binds."""
_SAME = frozenset(
    {
        "arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "ttg.convert_layout", "tt.bitcast",
        "arith.bitcast",
    }
)  # fmt: skip
_LANEWISE = frozenset(
    {
        "arith.andi", "arith.ori", "arith.xori", "arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui",
        "arith.cmpi",
    }
)  # fmt: skip
_STRICT = frozenset({"slt", "ult", "sge", "uge"})
"""Comparisons of a run with a number at its end that come out alike for the whole run."""
_HINTS = {"tt.contiguity": "contiguity", "tt.divisibility": "divisor", "tt.constancy": "constancy"}
_NUMBERS = re.compile(r"dense<\[?([\d, ]+)\]?>")


@dataclass(frozen=True)
class LaneRun:
    """Along one dimension: runs of ``contiguity`` consecutive and of ``constancy`` equal values."""

    contiguity: int = 1
    divisor: int = 1
    constancy: int = 1

    def join(self, other: LaneRun) -> LaneRun:
        return LaneRun(
            gcd(self.contiguity, other.contiguity), gcd(self.divisor, other.divisor),
            gcd(self.constancy, other.constancy),
        )  # fmt: skip

    def divided(self, run: int, unit: int = 1) -> int:
        """What divides the first number of every run of ``run``, which may be shorter than its own; consecutive
        numbers are ``unit`` apart."""
        return gcd(self.divisor, run * unit) if run < self.contiguity else self.divisor


class LaneRunReader:
    """Reads the values of ``function``, whose names are unique."""

    def __init__(self, function: IrOperation) -> None:
        self.defined = definitions(function)
        self._shapes: dict[str, tuple[int, ...]] = {}
        for operation in function.walk():
            if operation is not function:
                self._shapes |= result_shapes(operation)
        self._arguments = _argument_divisors(function)
        self._known: dict[tuple[str, int], LaneRun] = {}

    def vector(self, pointers: str, mask: str, dim: int, element_bytes: int) -> int:
        """How many elements along ``dim`` lie one after the other in memory, aligned, and are copied or left out
        together; ``mask`` "" for none."""
        run = self.read(pointers, dim)
        lanes = gcd(run.contiguity, max(1, run.divisor // element_bytes))
        return gcd(lanes, self.read(mask, dim).constancy) if mask else lanes

    def read(self, name: str, dim: int) -> LaneRun:
        """The runs of the value ``name`` along ``dim``; a scalar's constancy is :data:`MOST`."""
        if (name, dim) not in self._known:
            self._known[name, dim] = LaneRun()  # of a value that is made of itself in a way not followed below
            self._known[name, dim] = self._of(name, dim)
        return self._known[name, dim]

    def _scalar(self, name: str) -> bool:
        return not self._shapes.get(name, ())

    def _of(self, name: str, dim: int) -> LaneRun:
        made = self.defined.get(name)
        if made is None:
            return LaneRun(1, self._arguments.get(name, 1), MOST)
        if made.kind == PLAIN:
            found = self._plain(name, made, dim)
        elif made.kind == VARIABLE:
            loop = read_loop(made.operation)
            found = LaneRun(1, gcd(self.read(loop.lower, 0).divisor, self.read(loop.step, 0).divisor))
        elif made.kind == CARRIED:
            found = self._carried(name, made, dim)
        else:
            sides = [self.read(source, dim) for source in made.sources]
            found = sides[0]
            for side in sides[1:]:
                found = found.join(side)
        return replace(found, contiguity=1, constancy=MOST) if self._scalar(name) else found

    def _carried(self, name: str, made: Definition, dim: int) -> LaneRun:
        """The greatest fixed point below what the loop begins with; what is read meanwhile is not remembered."""
        initial, following = made.sources
        found = self.read(initial, dim)
        while True:
            before = dict(self._known)
            self._known[name, dim] = found
            inside = read_loop(made.operation).carried[made.position][0] if made.operation.name == "scf.for" else name
            self._known[inside, dim] = found
            joined = found.join(self.read(following, dim))
            self._known = before
            if joined == found:
                return found
            found = joined

    def _plain(self, name: str, made: Definition, dim: int) -> LaneRun:
        operation = made.operation
        found = self._computed(operation, made.sources, dim)
        hints = operation.attributes
        for attribute, which in _HINTS.items():
            numbers = _NUMBERS.match(hints.get(attribute, ""))
            if numbers is not None:
                each = [int(n) for n in numbers[1].split(",")]
                found = replace(found, **{which: max(getattr(found, which), _power(each[min(dim, len(each) - 1)]))})
        return found

    def _computed(self, operation: IrOperation, sources: tuple[str, ...], dim: int) -> LaneRun:
        kind = operation.name
        if kind == "arith.constant":
            return _constant(operation)
        if kind == "tt.make_range":
            start, end = (int(operation.attributes[key].split()[0]) for key in ("start", "end"))
            return LaneRun(_power(end - start), _power(start))
        if kind == "tt.splat":
            return LaneRun(1, self.read(sources[0], 0).divisor, MOST)
        if kind == "tt.expand_dims":
            axis = int(operation.attributes["axis"].split()[0])
            return self.read(sources[0], dim - (dim > axis)) if dim != axis else self._uniform(sources[0])
        if kind == "tt.broadcast":
            source = self.read(sources[0], dim)
            alone = self._shapes[sources[0]][dim] == 1 and self._shapes[operation.result][dim] > 1
            return LaneRun(1, source.divisor, MOST) if alone else source
        if kind == "tt.trans":
            order = re.search(r"order = array<i32: ([\d, ]+)>", operation.text())
            return self.read(sources[0], int(order[1].split(",")[dim])) if order is not None else LaneRun()
        if kind in _SAME:
            return self.read(sources[0], dim)
        read = [self.read(source, dim) for source in sources]
        if kind == "tt.addptr":
            unit = _pointed_bytes(operation)
            return _added(read[0], replace(read[1], divisor=min(MOST, read[1].divisor * unit)), unit)
        if kind == "arith.addi":
            return _added(read[0], read[1], 1)
        if kind == "arith.subi":
            return _added(read[0], LaneRun(1, read[1].divided(1), read[1].constancy), 1)
        if kind == "arith.muli":
            return LaneRun(1, min(MOST, read[0].divided(1) * read[1].divided(1)), _both(read))
        return self._other(operation, kind, read)

    def _uniform(self, name: str) -> LaneRun:
        """A tile seen along a dimension of 1: nothing is known of its numbers but what divides all of them."""
        made = self.defined.get(name)
        if made is not None and made.operation.name in ("tt.splat", "arith.constant"):
            return self.read(name, 0)
        return LaneRun(1, self.read(name, 0).divided(1), MOST)

    @staticmethod
    def _other(operation: IrOperation, kind: str, read: list[LaneRun]) -> LaneRun:
        if kind in ("arith.remsi", "arith.divsi") or (kind == "arith.cmpi" and operation.tokens[0] in _STRICT):
            left, right = read
            # Within ``run`` numbers from a multiple of it on, one that it divides is not crossed.
            run = gcd(gcd(left.contiguity, left.divisor), right.divisor) if right.constancy == MOST else 1
            if kind == "arith.remsi":
                return LaneRun(run, gcd(left.divided(run), right.divisor), _both(read))
            return LaneRun(1, 1, max(run, _both(read)))
        if kind in _LANEWISE:
            return LaneRun(1, 1, _both(read))
        if kind == "arith.select":
            chosen = read[1].join(read[2])
            run = gcd(read[0].constancy, chosen.contiguity)
            return LaneRun(run, gcd(read[1].divided(run), read[2].divided(run)), _both(read))
        return LaneRun()


def _added(left: LaneRun, right: LaneRun, unit: int) -> LaneRun:
    """``left`` + ``right``: consecutive, ``unit`` apart, where one is and the other is constant."""
    contiguity = max(gcd(left.contiguity, right.constancy), gcd(left.constancy, right.contiguity))
    constancy = gcd(left.constancy, right.constancy)
    run = max(contiguity, constancy)
    return LaneRun(contiguity, gcd(left.divided(run, unit), right.divided(run, unit)), constancy)


def _both(read: list[LaneRun]) -> int:
    return gcd(*(run.constancy for run in read))


def _constant(operation: IrOperation) -> LaneRun:
    found = re.match(r"(?:dense<)?(-?\d+|true|false)>?(?:\{.*\})?(?::|$)", "".join(operation.tokens))
    if found is None:
        return LaneRun() if "dense<[" in operation.text() or 'dense<"' in operation.text() else LaneRun(1, 1, MOST)
    return LaneRun(1, _power(int(found[1])) if found[1].lstrip("-").isdigit() else 1, MOST)


def _power(number: int) -> int:
    """The largest power of two that divides ``number``, :data:`MOST` at most and of 0."""
    return gcd(number, MOST) if number else MOST


def _pointed_bytes(operation: IrOperation) -> int:
    """Bytes of what the pointers of an ``tt.addptr`` point to."""
    found = re.search(r"!tt\.ptr<([^<>]*(?:<[^<>]*>)?[^<>]*)>", operation.signature)
    assert found is not None, operation.text()
    if found[1].startswith("!tt.ptr"):
        return 8
    kind = parse_type(f"tensor<1x{found[1].split(',')[0]}>")
    assert kind is not None
    return max(1, kind.element_bits // 8)


def _argument_divisors(function: IrOperation) -> dict[str, int]:
    """``tt.divisibility`` of each argument."""
    head = "".join(part for part in function.parts if isinstance(part, str))
    found = {}
    for entry in split_list(head[head.index("(") + 1 : head.rindex(")")] if ")" in head else ""):
        name, _, rest = entry.partition(":")
        number = re.search(r"tt\.divisibility = (\d+)", rest)
        if number is not None:
            found[name.strip()] = _power(int(number[1]))
    return found


def element_of(load: IrOperation) -> str:
    """The type of what the ``tt.load`` reads at each of its addresses."""
    kind = parse_type(find_types(load.signature)[0])
    assert kind is not None
    return kind.element.partition("<")[2].rpartition(">")[0]
