"""Somebody's own kernel over its own list of configurations: every one predicted for a shape, as
``warpplan tune`` asks.
"""

EXPORTS = {
    "derived_values": ("heuristics_of",),
    "kernel_choice": ("choices", "choose", "KernelChoice", "RankingOrigin"),
    "launch_jobs": ("*",),
    "launch_ranking": ("*",),
    "launch_times": ("launch_keys_of", "times_of"),
    "size_words": ("*",),
    "tuned_entries": ("export_tuned", "verify_tuned"),
}
