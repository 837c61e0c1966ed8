"""Somebody's own kernel over its own list of configurations: every one predicted for a shape, as
``warpplan tune`` asks.
"""

EXPORTS = {
    "launch_ranking": ("*",),
}
