"""Places in memory. Planning uses ``offsets`` (bytes under given conflicts), ``columns`` (rectangles of Blackwell's
tensor memory) and ``ring_layout`` (where a plan's rings and extra buffers lie on the cylinder of II cycles ×
addresses); ``pieces`` and first fit are common to all. ``line/`` places buffers that are live for part of a line of
time, and is reached only by ``warpplan pack``."""

EXPORTS = {
    "offsets": ("DEFAULTS", "name_ids", "Packing", "PackingBlock"),
    "pieces": ("bits", "first_fit_decreasing", "LIMIT", "Pieces", "pieces"),
    "ring_layout": ("fits_side_by_side", "Layout", "layout", "require_capacity"),
}
