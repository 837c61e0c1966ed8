"""What Proton's own recording costs: scopes with nothing in them, recorded by as many warps as a large consumer has."""

from __future__ import annotations

from warpplan.kernels.triton_compat import gl, gluon, proton

WARPS = 8


@gluon.jit(do_not_specialize=["reps"])
def empty_scopes(out, reps):
    """``reps`` empty scopes a warp; ``out`` [32 · warps] int32 keeps the loop alive."""
    lanes = gl.arange(0, 32 * gl.num_warps(), gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    for i in range(reps):
        with proton.scope("empty"):
            pass
        gl.store(out + lanes, i)
