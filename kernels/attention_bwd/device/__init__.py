"""Device code of dK and dV: what a unit is, who loads for it, who computes it."""

EXPORTS = {
    "gradient_consumer": ("consumer",),
    "key_gradient_block": ("GradientExtents", "GradientOutput", "RowRings", "key_gradient_block"),
    "row_producer": ("allocate_keys", "allocate_rows", "producer"),
}
