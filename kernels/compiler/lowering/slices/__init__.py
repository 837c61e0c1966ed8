"""What one partition needs of a kernel: values that nothing reads left out, layouts of fewer warps."""

EXPORTS = {
    "dead_values": ("without_dead_values",),
    "narrow_layouts": ("with_warps",),
}
