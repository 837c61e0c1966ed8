"""Device code that more than one kernel needs: functions that kernels import and call, and that the compiler inlines.

``matmul`` the warp-specialised main loop, ``rings`` barriers of a ring of slots, ``tile_order`` which tile comes next,
``groups`` whose rows a unit of work has, ``sequence_slots`` which packed sequence's, ``stream_k`` a range of K blocks
for each CTA, ``early_launch`` how a kernel begins, ``scaling`` of fp8 products, ``boxes`` that TMA copies, ``epilogue``
from registers to global memory. They take what they need as arguments; none knows a kernel's own structures.
"""

EXPORTS = {
    "activations": ("activate",),
    "block": ("accumulator_widths", "Block", "block"),
    "boxes": ("as_box", "as_boxes", "ragged_box", "ragged_form", "RAGGED_ROWS"),
    "early_launch": ("LAUNCH_OPTIONS", "wait_for_previous_kernel"),
    "epilogue": ("accumulator_layout", "column_chunks", "shared_layout", "store_rows", "store_staged"),
    "groups": ("count_units", "find_group", "first_window", "Groups", "Search", "window_groups"),
    "matmul": ("allocate_ring", "allocate_staging", "by_width", "specialize", "Tile"),
    "rings": ("allocate_barriers", "init_ring", "previous_slot", "ring_barriers", "wait_empty", "wait_full"),
    "scaling": ("SCALE_BLOCK", "scale_chunk", "Scales"),
    "sequence_slots": ("find_sequence", "sequence_rows"),
    "stream_k": (
        "add_partial_sums",
        "arrive",
        "opaque",
        "own_range",
        "range_of",
        "segment",
        "segment_count",
        "store_partial_sums",
        "wait_for_arrivals",
    ),
    "tile_order": ("banded_tile",),
}
