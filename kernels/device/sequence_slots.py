"""Which packed sequence a place belongs to, where every sequence has places of its own.

Sequence s, which has rows ``starts[s]`` to ``starts[s + 1]``, begins at place ``starts[s] // step + more · s``. With
``more`` of 1, a place for each tile of ``step`` rows, it has as many as it needs, cut-off tile included, and no other
sequence begins before its last: ⌊x + n + 1⌋ - ⌊x⌋ ≥ ⌈n⌉. The host needs to know no length, only rows and sequences, and
one place a sequence stays empty at most. With more, there is a gap behind each.

Starts that do not ascend or lie outside make other sequences than were meant; rows are taken to lie within those that
there are.
"""

from __future__ import annotations

from warpplan.kernels.device.groups import window_layout
from warpplan.kernels.device.stream_k import opaque
from warpplan.kernels.triton_compat import gl, gluon


@gluon.jit
def find_sequence(place, starts, count, STEP: gl.constexpr, MORE: gl.constexpr, WINDOW: gl.constexpr):
    """The last of ``count`` sequences that begins at ``place`` or before it: a warp looks at ``WINDOW`` starts
    together, all warps at the same."""
    before = count_before(place, starts, 0, count, STEP, MORE, WINDOW)
    base = opaque(WINDOW)
    while base < count:
        before += count_before(place, starts, base, count, STEP, MORE, WINDOW)
        # A step that LLVM does not know: it would unroll the loop, whose registers the consumers lack.
        base += opaque(WINDOW)
    return gl.maximum(before - 1, 0)


@gluon.jit
def count_before(place, starts, base, count, STEP: gl.constexpr, MORE: gl.constexpr, WINDOW: gl.constexpr):
    """Of the sequences from ``base`` on, how many begin at ``place`` or before it."""
    at = base + gl.arange(0, WINDOW, layout=window_layout(WINDOW, gl.num_warps()))
    first = gl.load(starts + at, mask=at < count, other=0) // STEP + at * MORE
    return gl.sum(gl.cast((first <= place) & (at < count), gl.int32), 0)


@gluon.jit
def sequence_rows(starts, sequence, rows):
    """(first row, end) of a sequence among ``rows``."""
    first = gl.minimum(gl.maximum(gl.load(starts + sequence), 0), rows)
    end = gl.maximum(gl.minimum(gl.load(starts + sequence + 1), rows), first)
    return first, end
