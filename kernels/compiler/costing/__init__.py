"""Captured loops priced and planned: dependence graphs with a profile's costs, quick bounds on registers and shared
memory, and every strategy for a kernel ranked by predicted time, for Hopper and for Blackwell.
"""

EXPORTS = {
    "blackwell_ranking": ("*",),
    "free_problem": ("certificates",),
    "fusing": ("fuse", "steady"),
    "hopper_ranking": ("*",),
    "kernel_model": ("RankedStrategy",),
    "launch_time": ("launch_bound", "LaunchSize"),
    "loop_graph": ("cost_of", "estimated", "Shape"),
    "trip_counts": ("trip_counts",),
}
