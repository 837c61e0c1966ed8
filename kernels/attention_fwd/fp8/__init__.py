"""What attention forward needs before its kernel where Q, K and V are e4m3: V with its keys adjacent, as Hopper's 8-bit
products read it, how long that takes, and the scales of each head."""

EXPORTS = {
    "head_scales": ("head_scales", "NO_SCALES"),
    "transposed_values": ("prepare_values",),
    "value_pass": ("KEY_STEP", "value_pass_cycles"),
}
