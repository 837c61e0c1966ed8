"""The time of a kernel as Triton pipelines it, without a partition: ``kernel_facts`` are what a compile says of one
configuration, ``pointer_costs`` price loads through pointers, ``block_time`` one block on an SM, ``launch_traffic``
what a launch asks of memory, ``launch_time`` the whole launch; ``assembled_first`` ranks by it, the first as ptxas
makes them. For ranking anyone's configurations without a GPU."""

EXPORTS = {
    "assembled_first": ("as_assembled", "assembled_first"),
    "kernel_facts": ("facts_of", "from_json", "KernelFacts", "to_json"),
    "launch_time": ("LaunchFacts", "LaunchModel", "LaunchTime"),
    "launch_traffic": (
        "LaunchMemory",
        "LaunchTiles",
        "launch_tiles",
        "neighbour_loads",
        "round_of",
        "run_slowdown",
    ),
}
