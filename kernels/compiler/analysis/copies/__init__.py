"""Loads through pointers that a producer copies by ``cp.async``: how wide their copies are, which loads these can be,
and the kernel with them marked; and operands that are copied to shared memory once for a loop.
"""

EXPORTS = {
    "bank_conflicts": ("PASS_BYTES", "READ_CYCLES"),
    "addresses": ("nesting", "may_repeat", "PURE", "PURE_DIALECTS", "read_by", "steered_by"),
    "copied_loads": ("copied_vectors", "copyable", "with_copies"),
    "invariant_operands": ("hoist_invariant_operands",),
    "producer_size": ("LEAST_REGISTERS", "producer_registers", "PRODUCER_WARPS", "WARP"),
    "slot_layouts": ("copied_slot", "passes_of", "readers_of"),
    "thin_addresses": ("with_thin_addresses",),
    "transposed_stores": ("mark_transposed_stores",),
}
