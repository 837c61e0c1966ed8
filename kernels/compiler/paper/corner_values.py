"""Index arithmetic computed at a tile's first element: whole numbers, and where a pointer or a descriptor points.

A value is an ``int``, a :class:`Place`, or ``None`` for what depends on data, or on arithmetic that is not on indices.
A tile is its first element's value: ``tl.arange(16, 32)`` is 16, a splat or a broadcast what it repeats. An index that
is looked up in memory is a :class:`LookedUp`, which tells from where, not how large it is.
"""

from __future__ import annotations

import operator
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from warpplan.kernels.compiler.ttgir.ir import IrOperation


class LookedUp(int):
    """Stands for a number that only memory has, or that is computed from one. What it compares to decides nothing."""


class IndexName(LookedUp):
    """Equal to another one where both are computed alike from what lies at the same places, and else unlike. Its size
    says nothing."""

    @classmethod
    def of(cls, what: str, *parts: int) -> IndexName:
        """The name of what ``what`` makes of ``parts``, :class:`GatheredIndex` where one of them is."""
        kind = GatheredIndex if any(isinstance(part, GatheredIndex) for part in parts) else cls
        return kind(hash((zlib.crc32(what.encode()), *map(int, parts))))


class GatheredIndex(IndexName):
    """Of a tile of indices, or computed from one: other tiles may have some of them, in any order."""


@dataclass(frozen=True)
class Place:
    """``base`` is the argument that a pointer or descriptor came from; ``offset`` in elements, ``None`` where it is not
    known."""

    base: str
    offset: int | None = 0


Corner = int | Place | None

_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "arith.addi": operator.add, "arith.subi": operator.sub, "arith.muli": operator.mul, "arith.andi": operator.and_,
    "arith.ori": operator.or_, "arith.xori": operator.xor, "arith.shli": operator.lshift,
    "arith.shrsi": operator.rshift,
    "arith.shrui": operator.rshift, "arith.minsi": min, "arith.minui": min, "arith.maxsi": max, "arith.maxui": max,
    "arith.divsi": lambda a, b: _quotient(a, b), "arith.divui": lambda a, b: _quotient(a, b),
    "arith.floordivsi": operator.floordiv, "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.remsi": lambda a, b: a - b * _quotient(a, b), "arith.remui": operator.mod,
}  # fmt: skip
_PREDICATES: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "slt": operator.lt, "sle": operator.le, "sgt": operator.gt,
    "sge": operator.ge, "ult": operator.lt, "ule": operator.le, "ugt": operator.gt, "uge": operator.ge,
}  # fmt: skip
_SAME = frozenset({
    "arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "ttg.convert_layout", "tt.bitcast",
    "arith.bitcast", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.unsplat",
    "tt.make_tensor_descriptor",
})  # fmt: skip
MOST_SHIFT = 64


def corner(operation: IrOperation, read: Sequence[Corner]) -> Corner:
    """The result of ``operation`` on ``read``; ``None`` where it is no index arithmetic or not defined."""
    name = operation.name
    if name == "arith.constant":
        return _constant(operation)
    if name == "tt.make_range":
        return int(operation.attributes["start"].split()[0])
    if not read:
        return None
    if name in _SAME:
        return read[0]
    if name == "tt.addptr" and isinstance(read[0], Place):
        offset, step = read[0].offset, read[1]
        known = offset is not None and isinstance(step, int)
        return Place(read[0].base, _computed(name, operator.add, offset, step) if known else None)  # type: ignore[arg-type]
    if name == "arith.select" and len(read) > 2:
        return _selected(*read[:3])
    if len(read) != 2 or not all(isinstance(value, int) for value in read):
        return None
    a, b = read
    assert isinstance(a, int)
    assert isinstance(b, int)
    return _computed(name, lambda a, b: _number(operation, a, b), a, b)


def is_number(value: Corner) -> TypeGuard[int]:
    """Whether ``value`` is a whole number that is known."""
    return isinstance(value, int) and not isinstance(value, LookedUp)


def _computed(name: str, compute: Callable[[int, int], int | None], a: int, b: int) -> int | None:
    """What the operation ``name`` makes of ``a`` and ``b``: never is a name a number, so that what is lost in a minimum
    or a difference of two names still tells them apart."""
    if isinstance(a, IndexName) or isinstance(b, IndexName):
        return IndexName.of(name, a, b)
    found = compute(a, b)
    return LookedUp(found) if found is not None and (isinstance(a, LookedUp) or isinstance(b, LookedUp)) else found


def _selected(condition: Corner, then: Corner, otherwise: Corner) -> Corner:
    if is_number(condition):
        return then if condition else otherwise
    if isinstance(condition, int) and isinstance(then, int) and isinstance(otherwise, int):
        return IndexName.of("arith.select", condition, then, otherwise)
    return None


def holds(comparison: IrOperation, a: int, b: int) -> bool:
    """Whether the ``arith.cmpi`` ``comparison`` is true of ``a`` and ``b``."""
    return _PREDICATES[comparison.tokens[0].rstrip(",")](a, b)


def _number(operation: IrOperation, a: int, b: int) -> int | None:
    name = operation.name
    if name == "arith.cmpi":
        return int(holds(operation, a, b))
    undefined = (name.startswith(("arith.div", "arith.rem", "arith.floordiv", "arith.ceildiv")) and b == 0) or (
        name.startswith("arith.sh") and not 0 <= b < MOST_SHIFT
    )
    return None if name not in _ARITHMETIC or undefined else _ARITHMETIC[name](a, b)


def _quotient(a: int, b: int) -> int:
    """C's, which rounds to zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _constant(operation: IrOperation) -> int | None:
    text = "".join(operation.tokens)
    found = re.match(r"(?:dense<)?(-?\d+|true|false)(?:>|\s*:|\{|$)", text)
    if found is None:
        return None
    return int(found[1] == "true") if found[1] in ("true", "false") else int(found[1])
