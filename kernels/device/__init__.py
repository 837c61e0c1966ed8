"""Device code that more than one kernel needs: functions that kernels import and call, and that the compiler inlines.

``rings`` barriers of a ring of slots, ``tile_order`` which tile comes next, ``epilogue`` from registers to
global memory. They take what they need as arguments; none knows a kernel's own structures.
"""

EXPORTS = {
    "epilogue": ("accumulator_layout", "shared_layout", "split_columns", "store_rows", "store_staged"),
    "rings": ("init_ring", "previous_slot", "wait_empty", "wait_full"),
    "tile_order": ("banded_tile",),
}
