"""A kernel at the cut rewritten as a strategy says, text to text: on Hopper into partitions with rings of our own, on
Blackwell with attributes that steer Triton's own warp specialisation.
"""

EXPORTS = {
    "flushed_weights": ("with_exp2_weights",),
    "mask_guards": ("with_mask_guards",),
    "register_shares": ("consumer_registers", "starting_registers", "WARP"),
}
