"""Captured loops priced and planned: dependence graphs with a profile's costs, quick bounds on registers and shared
memory, and every strategy for a kernel ranked by predicted time, for Hopper and for Blackwell.
"""

EXPORTS = {
    "free_problem": ("certificates",),
    "fusing": ("fuse", "steady"),
    "hopper_ranking": ("*",),
    "kernel_model": (
        "CANNOT_RANK",
        "excess_warps",
        "KernelModel",
        "LEAST_DEPTH",
        "MORE_SECONDS",
        "RankedStrategy",
        "SOLVE_SECONDS",
        "WORTH_TRYING",
    ),
    "loop_graph": (
        "BASE_REGISTERS",
        "Cost",
        "cost_of",
        "edges_of",
        "estimated",
        "handoff",
        "in_flight",
        "in_order",
        "kept_apart",
        "meeting_cycles",
        "MOST_REGISTERS",
        "operation_of",
        "read_by_consumers",
        "Shape",
        "THREADS",
        "WIDENED",
        "TMA_ALIGNMENT",
        "unique",
    ),
    "pressure": ("most_at_once", "shared_bytes", "slot_bytes"),
    "whole_launch": ("launch_bound", "LaunchSize"),
}
