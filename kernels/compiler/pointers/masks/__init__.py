"""Masks that let a whole tile through: conditions on scalars, and the selects that a branch on them may stand for."""

EXPORTS = {
    "mask_chains": ("MaskChain", "SELECT", "mask_chains"),
    "seldom_masks": ("with_seldom_masks",),
}
