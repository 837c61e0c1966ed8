"""Captured loops priced and planned: dependence graphs with a profile's costs, quick bounds on registers and shared
memory, and every strategy for a kernel ranked by predicted time, for Hopper and for Blackwell.
"""

EXPORTS = {
    "blackwell_ranking": ("*",),
    "free_problem": ("certificates",),
    "fusing": ("fuse", "steady"),
    "hopper_ranking": ("*",),
    "kernel_model": ("RankedStrategy",),
    "loop_graph": (
        "Cost",
        "cost_of",
        "estimated",
        "in_flight",
        "kept_apart",
        "meeting_cycles",
        "MMA_ROWS",
        "Shape",
        "THREADS",
    ),
    "pressure": ("most_at_once", "slot_bytes"),
    "whole_launch": ("launch_bound", "LaunchSize"),
}
