"""Values of a kernel's index arithmetic, computed: whole numbers, tiles of them, and where a pointer points.

A value is an ``int``, a numpy array of ``int64`` or ``bool``, a :class:`PointedAt`, a :class:`Descriptor`, or ``None``
for what depends on data or on arithmetic that is not on indices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpplan.kernels.compiler.ttgir.ir import IrOperation
from warpplan.kernels.compiler.ttgir.printed_shapes import result_shapes

Value = Any
"""One of those that the module's first lines name."""


@dataclass(frozen=True, eq=False)
class PointedAt:
    """``base`` is the argument that a pointer came from; ``offset`` in elements, an ``int`` or a tile of them."""

    base: str
    offset: Value


@dataclass(frozen=True, eq=False)
class Descriptor:
    """A tensor descriptor; its ``base`` and its ``offset`` are those of the pointer it was made from."""

    base: str
    offset: int


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.shli": lambda a, b: a << b,
    "arith.shrsi": lambda a, b: a >> b,
    "arith.shrui": lambda a, b: a >> b,
    "arith.minsi": np.minimum,
    "arith.minui": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.maxui": np.maximum,
}
_PREDICATES: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "slt": lambda a, b: a < b,
    "sle": lambda a, b: a <= b,
    "sgt": lambda a, b: a > b,
    "sge": lambda a, b: a >= b,
    "ult": lambda a, b: a < b,
    "ule": lambda a, b: a <= b,
    "ugt": lambda a, b: a > b,
    "uge": lambda a, b: a >= b,
}
_SAME = frozenset({
    "arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "ttg.convert_layout", "tt.bitcast",
    "arith.bitcast",
})  # fmt: skip


def computed(operation: IrOperation, read: Sequence[Value]) -> Value:
    """The result of ``operation`` on the values ``read``; ``None`` where it is no index arithmetic."""
    name = operation.name
    if name == "arith.constant":
        return _constant(operation)
    if name == "tt.make_range":
        attributes = operation.attributes
        return np.arange(int(attributes["start"].split()[0]), int(attributes["end"].split()[0]), dtype=np.int64)
    if not read or any(value is None for value in read):
        return None
    if name in _SAME:
        return read[0]
    if name == "tt.addptr":
        return _moved(read[0], read[1])
    if name in ("tt.splat", "tt.broadcast", "tt.expand_dims"):
        return _shaped(operation, read[0])
    if any(isinstance(value, PointedAt | Descriptor) for value in read):
        return read[1] if name == "arith.select" else None
    return _number(operation, read)


def _number(operation: IrOperation, read: Sequence[Value]) -> Value:
    name = operation.name
    if name in _ARITHMETIC:
        return _ARITHMETIC[name](read[0], read[1])
    if name in ("arith.divsi", "arith.divui", "arith.floordivsi", "arith.ceildivsi", "arith.remsi", "arith.remui"):
        return _divided(name, read[0], read[1])
    if name == "arith.cmpi":
        return _PREDICATES[operation.tokens[0].rstrip(",")](read[0], read[1])
    if name == "arith.select":
        return np.where(read[0], read[1], read[2]) if isinstance(read[0], np.ndarray) else read[1 if read[0] else 2]
    if name == "tt.trans":
        order = re.search(r"order = array<i32: ([\d, ]+)>", operation.text())
        return np.transpose(read[0], [int(n) for n in order[1].split(",")]) if order is not None else None
    return None


def _divided(name: str, a: Value, b: Value) -> Value:
    """C's division, which rounds to zero: indices are not negative, where it is Python's."""
    if np.any(np.asarray(b) == 0):
        return None
    if name.startswith("arith.rem"):
        return a % b
    return -(-a // b) if name == "arith.ceildivsi" else a // b


def _constant(operation: IrOperation) -> Value:
    text = "".join(part for part in operation.tokens)
    splat = re.match(r"dense<(-?\d+|true|false)>", text)
    word = splat[1] if splat is not None else operation.tokens[0]
    if word in ("true", "false"):
        number = int(word == "true")
    elif re.fullmatch(r"-?\d+", word) and "f" not in operation.signature.rpartition("x")[2][:1]:
        number = int(word)
    else:
        return None
    if splat is None:
        return number
    shape = next(iter(result_shapes(operation).values()), ())
    return np.full(shape, number, dtype=np.int64)


def _moved(pointer: Value, by: Value) -> Value:
    if not isinstance(pointer, PointedAt) or pointer.offset is None:
        return None
    return PointedAt(pointer.base, pointer.offset + by)


def _shaped(operation: IrOperation, value: Value) -> Value:
    if isinstance(value, PointedAt):
        return PointedAt(value.base, _shaped(operation, value.offset))
    if isinstance(value, Descriptor):
        return None
    shape = next(iter(result_shapes(operation).values()), ())
    if operation.name == "tt.expand_dims":
        return np.expand_dims(value, int(operation.attributes["axis"].split()[0]))
    return np.broadcast_to(value, shape)
