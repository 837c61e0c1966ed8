"""Offsets of a batch or a head as outer dimensions of a descriptor, so that one descriptor serves all of them.

    base + batch · batch_stride + head · head_stride      ──>      base, coordinates [batch, head, row, column]

A descriptor whose base moves with the program is made anew for each program that a walk comes to: a tensor map is
written to global memory, and fenced, before the first load of a tile can start. One whose base does not move is made
once, before the walk.

A term of the offset becomes a dimension where it is an index times a stride: the stride is made of arguments alone, is
not negative (by its constants, or checked at the launch) and a multiple of 16 bytes; the index is a 32-bit number that
is not negative. The dimension has no end, as a row without a mask has none: its box has one element, so that the
coordinates of rows and columns alone decide what is inside, as before. TMA adds up the address in 64 bits, from
coordinates and strides, as the kernel does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from warpplan.kernels.compiler.analysis.value_flow import PLAIN
from warpplan.kernels.compiler.pointers.scalars.polynomials import Monomial, Polynomial
from warpplan.kernels.compiler.pointers.scalars.scalar_values import ScalarReader

ENABLED = True
"""Whether descriptors have outer dimensions; off, an offset of a batch is added to a descriptor's base. Has not been
timed on a GPU."""
MOST_OUTER = 3
"""A tensor map has at most five dimensions (CUDA Driver API, ``cuTensorMapEncodeTiled``), rows and columns two of
them."""
ALIGNMENT = 16
"""Bytes that a stride is a multiple of (CUDA Driver API, ``cuTensorMapEncodeTiled``)."""
REPEATED = ("arith.", "math.")
"""Operations that a walk computes once, before it begins, where all that they read is known there."""


@dataclass(frozen=True)
class OuterDimension:
    """One dimension of boxes of 1: the ``index`` of a program's or a tile's, whose elements are ``stride`` apart.
    ``positive``: the stride is known to be above 0; another one may be 0, as of a tensor that is expanded."""

    index: Polynomial
    stride: Polynomial
    positive: bool


def outer_dimensions(
    scalars: ScalarReader, offset: Polynomial, made_of: Collection[str], size: int, least: dict[str, int]
) -> tuple[tuple[OuterDimension, ...], Polynomial]:
    """``offset``, of elements of ``size`` bytes, as outer dimensions and what is left for the base; all of it where a
    descriptor could still not be made once, before a walk: a part of ``offset`` is no dimension, or another value that
    the descriptor is ``made_of`` changes with the program. Arguments that may not be negative are added to ``least``.
    """
    moving = offset.where(lambda monomial, _: not all(is_fixed(scalars, name) for name in monomial))
    if not ENABLED or not moving.terms or not all(is_fixed(scalars, name) for name in made_of):
        return (), offset
    needed: set[str] = set()
    found = []
    for index, stride in _products(scalars, moving):
        if (stride.divisor(scalars.divisor) * size) % ALIGNMENT or not _is_index(scalars, index, needed):
            return (), offset
        if any(scalars.kind(name) not in ("i32", "i64") for name in stride.names):
            return (), offset
        if not scalars.not_negative(stride, needed):
            return (), offset
        found.append(OuterDimension(Polynomial.named(index), stride, positive=not stride.names))
    if len(found) > MOST_OUTER:
        return (), offset
    for name in needed:
        least.setdefault(name, 0)
    return tuple(found), offset - moving


def is_fixed(scalars: ScalarReader, name: str) -> bool:
    """Whether ``name`` is an argument or computed from arguments alone, the same for every program of the grid and
    known before any loop."""
    made = scalars.defined.get(name)
    if made is None:
        return True
    if made.kind != PLAIN or not made.operation.name.startswith(REPEATED):
        return False
    within = any(made.operation is each for each in scalars.function.regions[0].operations)
    return within and all(is_fixed(scalars, source) for source in made.sources)


def _products(scalars: ScalarReader, moving: Polynomial) -> Iterator[tuple[str, Polynomial]]:
    """``moving`` as a sum of an index times a stride each, of one term or more; "" for the product of several
    indices."""
    strides: dict[str, dict[Monomial, int]] = {}
    for monomial, c in moving.terms:
        fixed = tuple(name for name in monomial if is_fixed(scalars, name))
        index = [name for name in monomial if name not in fixed]
        strides.setdefault(index[0] if len(index) == 1 else "", {})[fixed] = c
    for name, terms in strides.items():
        yield name, Polynomial.of(terms)


def _is_index(scalars: ScalarReader, name: str, needed: set[str]) -> bool:
    """Whether ``name`` is a coordinate of TMA: a number from 0 on that 32 bits hold."""
    return bool(name) and _has_32_bits(scalars, name) and scalars.not_negative(Polynomial.named(name), needed)


def _has_32_bits(scalars: ScalarReader, name: str) -> bool:
    """Whether ``name`` is a 32-bit number, or a quotient or remainder of one: that is no further from 0."""
    if scalars.kind(name) == "i32":
        return True
    made = scalars.defined.get(name)
    if made is None or made.kind != PLAIN or made.operation.name not in ("arith.divsi", "arith.remsi"):
        return False
    (divided, *_) = made.sources
    ((monomial, c), *more) = scalars.read(divided).terms or (((), 0),)
    return not more and c == 1 and len(monomial) == 1 and monomial[0] != name and _has_32_bits(scalars, monomial[0])
