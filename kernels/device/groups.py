"""Which group of rows a unit of work belongs to, found on the device from the groups' ends.

Group g has rows ``ends[g-1]`` to ``ends[g]``, and units of work in proportion; units count through the groups in order.
A warp looks at a *window* of groups at a time, one or a few in each lane: the window's running totals stay in its
registers, and a unit's group is found by comparing and reducing within the warp. All warps of a partition do the same,
so nothing goes through shared memory. Units must be looked up in ascending order: the window only moves on.

Ends need not be right: they are taken as their running maximum, no less than 0 and no more than the number of rows, so
that whatever they hold, the groups are disjoint, in order, and within the rows.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from warpplan.kernels.triton_compat import gl, gluon

WARP = 32
MAX_WINDOW = 64
"""Groups in a window, 2 a lane. With 128, one of 76 block structures, a ping-pong wgrad, spilled in its producer of 40
registers (triton 3.6.0); with 32, the 64 experts of common models lie in two windows."""


class Groups(NamedTuple):
    """``ends`` points to ``count`` 32-bit group ends; ``rows`` are those of the matrix that the groups divide."""

    ends: gl.tensor
    count: gl.tensor
    rows: gl.tensor


class Search(NamedTuple):
    """A window of groups: ``base``, ``rows`` and ``units`` lie before it, ``total`` units up to its end; ``ends`` and
    ``units_to`` [window] are the rows and the units up to and including each of its groups."""

    base: gl.tensor
    rows: gl.tensor
    units: gl.tensor
    total: gl.tensor
    ends: gl.tensor
    units_to: gl.tensor


class UnitGroup(NamedTuple):
    """The group of a unit: its ``index``, its rows ``first`` to ``end``, and which of its units this one is."""

    index: gl.tensor
    first: gl.tensor
    end: gl.tensor
    unit: gl.tensor


def window_groups(count: int) -> int:
    """Groups in the window of a launch with ``count`` groups: a power of two, a whole number for each lane."""
    return min(MAX_WINDOW, max(WARP, 1 << (count - 1).bit_length()))


@gluon.constexpr_function
def window_layout(window, warps):
    """Adjacent groups in a lane; every warp holds the whole window."""
    return gl.BlockedLayout([window // WARP], [WARP], [warps], [0])


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def added(a, b):
    return a + b


@gluon.jit
def open_window(
    groups, base, rows, units, column_tiles, ROW_TILE: gl.constexpr, EVERY: gl.constexpr, WINDOW: gl.constexpr
):
    """The window of the groups from ``base`` on, before which lie ``rows`` rows and ``units`` units.

    A group has ``column_tiles`` units for each ``ROW_TILE`` of its rows, or, with ``EVERY``, that many in all.
    """
    LAYOUT: gl.constexpr = window_layout(WINDOW, gl.num_warps())
    at = base + gl.arange(0, WINDOW, layout=LAYOUT)
    before = gl.load(groups.ends + at - 1, mask=(at > base) & (at <= groups.count), other=0)
    end = gl.load(groups.ends + at, mask=at < groups.count, other=0)
    first = gl.maximum(gl.associative_scan(gl.minimum(before, groups.rows), 0, larger), rows)
    end = gl.maximum(gl.minimum(end, groups.rows), first)
    each = gl.where(at < groups.count, 1, 0) if EVERY else gl.cdiv(end - first, ROW_TILE)
    units_to = gl.associative_scan(each * column_tiles, 0, added) + units
    return Search(base, rows, units, gl.max(units_to, 0), end, units_to)


@gluon.jit
def first_window(groups, column_tiles, ROW_TILE: gl.constexpr, EVERY: gl.constexpr, WINDOW: gl.constexpr):
    zero = groups.count * 0
    return open_window(groups, zero, zero, zero, column_tiles, ROW_TILE, EVERY, WINDOW)


@gluon.jit
def next_window(search, groups, column_tiles, ROW_TILE: gl.constexpr, EVERY: gl.constexpr, WINDOW: gl.constexpr):
    rows = gl.max(search.ends, 0)
    return open_window(groups, search.base + WINDOW, rows, search.total, column_tiles, ROW_TILE, EVERY, WINDOW)


@gluon.jit
def count_units(search, groups, column_tiles, ROW_TILE: gl.constexpr, EVERY: gl.constexpr, WINDOW: gl.constexpr):
    """Units of all groups, given their first window."""
    while search.base + WINDOW < groups.count:
        search = next_window(search, groups, column_tiles, ROW_TILE, EVERY, WINDOW)
    return search.total


@gluon.jit
def find_group(unit, search, groups, column_tiles, ROW_TILE: gl.constexpr, EVERY: gl.constexpr, WINDOW: gl.constexpr):
    """(the :class:`UnitGroup` of ``unit``, the window it was found in, where later units are to be looked up).

    A unit beyond the last has group ``count`` or later, with rows from the last group's end on.
    """
    while (search.total <= unit) & (search.base + WINDOW < groups.count):
        search = next_window(search, groups, column_tiles, ROW_TILE, EVERY, WINDOW)
    before = search.units_to <= unit
    index = search.base + gl.sum(gl.cast(before, gl.int32), 0)
    first = gl.maximum(gl.max(gl.where(before, search.ends, 0), 0), search.rows)
    end = gl.min(gl.where(before, groups.rows, search.ends), 0)
    skipped = gl.maximum(gl.max(gl.where(before, search.units_to, 0), 0), search.units)
    return UnitGroup(index, first, end, unit - skipped), search
