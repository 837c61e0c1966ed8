"""What one partition needs of a kernel: values that nothing reads left out, layouts of fewer warps."""

EXPORTS = {
    "dead_values": ("without_dead_values",),
    "early_lookups": ("vector_loads", "with_early_lookups", "with_early_vectors"),
    "narrow_layouts": ("with_warps",),
    "unrolling": ("UNROLL", "with_unrolled_loops"),
}
