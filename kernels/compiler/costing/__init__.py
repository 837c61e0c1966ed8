"""Captured loops priced and planned: dependence graphs with a profile's costs, quick bounds on registers and shared
memory, and every strategy for a kernel ranked by predicted time, for Hopper and for Blackwell.
"""

EXPORTS = {
    "blackwell_ranking": ("*",),
    "fusing": ("fuse", "steady"),
    "hopper_ranking": ("*",),
    "kernel_facts": ("facts_of", "from_json", "KernelFacts", "to_json"),
    "kernel_model": ("RankedStrategy",),
    "launch_memory": ("launch_memory",),
    "launch_time": ("LaunchFacts", "LaunchModel", "LaunchTime"),
    "loop_graph": ("cost_of", "estimated", "Shape"),
}
