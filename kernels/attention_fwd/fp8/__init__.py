"""What attention forward needs where Q, K and V are e4m3: V with its keys adjacent, as Hopper's 8-bit products read it,
how long that takes, the weights in registers, and the scales of each head."""

EXPORTS = {
    "gluon": ("KEY_GROUP", "left_layout", "move_packed", "pack_columns", "unpack_columns"),
    "head_scales": ("head_scales", "NO_SCALES"),
    "transposed_values": ("prepare_values",),
    "value_pass": ("KEY_STEP", "value_pass_cycles"),
}
