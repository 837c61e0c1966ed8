"""Element types of TTGIR in numpy: which array holds them, how they round, which bytes they are in memory.

Floats of 32 bits and fewer are held in float32 and rounded to their own type after each operation (to nearest, ties to
even); for +, −, ·, / and the square root that is the same as one rounding, for float32 has more than twice the digits
(Figueroa 1995). Pointers are addresses in int64.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Array = Any
"""A numpy array, or a numpy scalar."""
GARBAGE = 0x5A
"""Each byte of a whole number that nobody wrote; a float is NaN."""


@dataclass(frozen=True)
class ElementType:
    """``name`` as TTGIR prints it, ``bits`` in memory; ``held`` is the dtype of its arrays."""

    name: str
    bits: int
    held: np.dtype[Any]
    is_float: bool = False

    @property
    def bytes(self) -> int:
        return max(1, self.bits // 8)

    @property
    def stored(self) -> np.dtype[Any]:
        """The unsigned whole number of as many bits."""
        return np.dtype(f"uint{max(8, self.bits)}")


_FLOATS = {"f64": 64, "f32": 32, "tf32": 32, "f16": 16, "bf16": 16, "f8E4M3FN": 8, "f8E5M2": 8}
_SMALL = {"f8E4M3FN": (4, 3, 448.0), "f8E5M2": (5, 2, 57344.0)}
"""Bits of exponent and mantissa, largest finite value (OCP 8-bit floating point, 2023)."""
MANTISSA = {"f64": 52, "f32": 23, "tf32": 10, "f16": 10, "bf16": 7, "f8E4M3FN": 3, "f8E5M2": 2}
"""Bits of mantissa after the first."""


@cache
def element_type(name: str) -> ElementType:
    """The type printed ``name``. Raises ``KeyError`` for one that is not known."""
    if name == "i1":
        return ElementType(name, 8, np.dtype(bool))
    if name == "index" or name.startswith("!tt.ptr"):
        return ElementType(name, 64, np.dtype(np.int64))
    whole = re.fullmatch(r"[su]?i(8|16|32|64)", name)  # a descriptor's have a sign, which operations have
    if whole is not None:
        return ElementType(name, int(whole.group(1)), np.dtype(f"int{whole.group(1)}"))
    bits = _FLOATS[name]
    return ElementType(name, bits, np.dtype(np.float64 if bits == 64 else np.float32), is_float=True)


def rounded(values: Array, kind: ElementType) -> Array:
    """``values`` in ``kind``'s array, each rounded to the nearest that it holds; whole numbers wrap around."""
    if not kind.is_float:
        return values.astype(kind.held) if values.dtype != kind.held else values
    values = values.astype(kind.held, copy=False)
    if kind.name == "bf16":
        return _to_bfloat16(values)
    if kind.name == "f16":
        return values.astype(np.float16).astype(np.float32)
    if kind.name in _SMALL:
        return _to_small(values, *_SMALL[kind.name])
    return values


def _to_bfloat16(values: Array) -> Array:
    bits = np.asarray(values, np.float32).view(np.uint32)
    even = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    result = (even & np.uint32(0xFFFF0000)).view(np.float32)
    result = np.where(np.isnan(values), np.float32(np.nan), result)
    return result if np.ndim(values) else np.float32(result)


def _to_small(values: Array, exponent_bits: int, mantissa: int, largest: float) -> Array:
    """Saturating, as the conversion that Triton emits on Hopper (``cvt.rn.satfinite``)."""
    least = 2 - (1 << (exponent_bits - 1))
    exponent = np.maximum(np.frexp(np.asarray(values, np.float64))[1] - 1, least)
    quantum = np.ldexp(1.0, exponent - mantissa)
    result = np.clip(np.rint(values / quantum) * quantum, -largest, largest).astype(np.float32)
    return result if np.ndim(values) else np.float32(result)


@cache
def _small_table(name: str) -> np.ndarray:
    """The values of the codes 0 to 127."""
    exponent_bits, mantissa, largest = _SMALL[name]
    codes = np.arange(128)
    exponent, fraction = codes >> mantissa, codes & ((1 << mantissa) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    normal = np.ldexp(1.0 + fraction / (1 << mantissa), exponent - bias)
    table = np.where(exponent == 0, np.ldexp(fraction / (1 << mantissa), 1 - bias), normal)
    infinite = (table > largest) & (fraction == 0) & (name == "f8E5M2")
    return np.where(table <= largest, table, np.where(infinite, np.inf, np.nan)).astype(np.float32)


def encoded(values: Array, kind: ElementType) -> Array:
    """The bits of ``values`` as unsigned whole numbers."""
    values = np.asarray(values)
    if kind.name in ("f32", "tf32", "f64"):
        return np.ascontiguousarray(values, kind.held).view(kind.stored)
    if kind.name == "bf16":
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind.name == "f16":
        return values.astype(np.float16).view(np.uint16)
    if kind.name in _SMALL:
        table = _small_table(kind.name)
        finite = table[np.isfinite(table)]
        codes = np.minimum(np.searchsorted(finite, np.abs(values)), len(finite) - 1).astype(np.uint8)
        codes = np.where(np.isinf(values), np.uint8(len(finite)), codes)
        codes = np.where(np.isnan(values), np.uint8(0x7F), codes)
        return codes | (np.signbit(values).astype(np.uint8) << 7)
    return np.ascontiguousarray(values.astype(kind.held, copy=False)).view(kind.stored)


def decoded(bits: Array, kind: ElementType) -> Array:
    """The values whose bits are ``bits``."""
    bits = np.ascontiguousarray(bits)
    if kind.name in ("f32", "tf32", "f64"):
        return bits.view(kind.held)
    if kind.name == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if kind.name == "f16":
        return bits.view(np.float16).astype(np.float32)
    if kind.name in _SMALL:
        values = _small_table(kind.name)[bits & 0x7F]
        return np.where(bits & 0x80, -values, values)
    if kind.name == "i1":
        return bits != 0
    return bits.view(kind.held)


def poison(shape: tuple[int, ...], kind: ElementType) -> np.ndarray:
    """An array that nobody wrote."""
    if kind.is_float:
        return np.full(shape, np.nan, kind.held)
    if kind.held.kind == "b":
        return np.ones(shape, bool)
    return np.full(shape, int.from_bytes(bytes([GARBAGE]) * kind.held.itemsize, "little"), kind.held)


def unit_in_last_place(size: float, kind: ElementType) -> float:
    """The distance of ``kind``'s values next to ``size``; 1 for whole numbers."""
    if not kind.is_float:
        return 1.0
    return float(np.ldexp(1.0, int(np.frexp(size)[1]) - 1 - MANTISSA[kind.name])) if size > 0 else 0.0
