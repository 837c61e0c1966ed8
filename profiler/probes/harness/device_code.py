"""Device code that the probes share."""

from __future__ import annotations

from warpplan.kernels.triton_compat import gl, gluon, proton

RUNTIME_NUMBERS = ("reps", "inner", "stride", "first", "spread", "step", "mask", "samples", "interval_ns", "rows")
probe_kernel = gluon.jit(do_not_specialize=RUNTIME_NUMBERS)
"""Decorates a kernel whose trip counts stay unknown to the compiler: it would fold a loop of one iteration away."""


@gluon.jit
def clock():
    """The SM's cycle counter, int64. The memory clobber keeps loads, stores, barriers and other clock reads on their
    side of it; arithmetic is not held, so timed arithmetic stands in a loop of its own."""
    return gl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l,~{memory}", [], dtype=gl.int64, is_pure=False, pack=1)


@gluon.jit
def nanoseconds():
    """The device's wall clock, int64 ns; its resolution is about one microsecond."""
    return gl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l,~{memory}", [], dtype=gl.int64, is_pure=False, pack=1
    )


@gluon.jit
def wait_for(x, PACK: gl.constexpr = 1):
    """Block until every element of ``x`` is computed, PACK to a word of 32 bits.

    A clock read may issue while earlier results are still under way. The comparison needs the value, and the trap
    behind it (never taken: the pattern is a NaN that no probe produces) keeps the comparison alive and in place.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.eq.b32 p, $1, 0x7fbadbad; @p trap; mov.b32 $0, $1; }",
        "=r,r,~{memory}",
        [x],
        dtype=x.dtype,
        is_pure=False,
        pack=PACK,
    )


@gluon.jit
def active_repetitions(reps, stride):
    """``reps`` on every ``stride``-th block, 0 on the others: with one block an SM this chooses how many SMs work."""
    return reps * (gl.program_id(0) % stride == 0).to(gl.int32)


@gluon.jit
def record(out, row, column, COLUMNS: gl.constexpr, cycles):
    """out[row, column] = cycles, as int32."""
    gl.store(out + row * COLUMNS + column, cycles.to(gl.int32))


@gluon.jit
def idle():
    """A partition with nothing to do."""


SCOPE_WARPS = 8
"""Of :func:`empty_scopes`: as many as a large consumer has."""


@gluon.jit(do_not_specialize=["reps"])
def empty_scopes(out, reps):
    """``reps`` empty scopes a warp, which show what Proton's own recording costs; ``out`` [32 · warps] int32 keeps the
    loop alive."""
    lanes = gl.arange(0, 32 * gl.num_warps(), gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    for i in range(reps):
        with proton.scope("empty"):
            pass
        gl.store(out + lanes, i)
