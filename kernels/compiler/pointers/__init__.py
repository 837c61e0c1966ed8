"""Loads through pointers as TMA loads: addresses read as affine functions of the position in a tile, masks as bounds,
and, where that proves that TMA reads the same, the kernel written with descriptors before its layouts are chosen.
"""

EXPORTS = {
    "affine_tiles": ("AffineTile", "NotAffine", "TileReader"),
    "describing": ("Described",),
    "planned_cut": ("explained", "planned_cut", "with_tma_loads"),
    "scratch": ("with_scratch",),
}
