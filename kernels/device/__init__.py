"""Device code that more than one kernel needs: functions that kernels import and call, and that the compiler inlines.

``matmul`` the warp-specialised main loop, ``rings`` barriers of a ring of slots, ``tile_order`` which tile comes next,
``epilogue`` from registers to global memory. They take what they need as arguments; none knows a kernel's own
structures.
"""

EXPORTS = {
    "epilogue": ("shared_layout", "split_columns", "store_staged"),
    "matmul": ("allocate_ring", "allocate_staging", "block", "specialize", "Tile"),
    "tile_order": ("banded_tile",),
}
