"""Blackwell: attributes that steer Triton's own warp specialisation, which is kept there."""

EXPORTS = {
    "annotate": ("annotate", "Roles"),
}
