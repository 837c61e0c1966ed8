"""C = A · Bᵀ on Hopper: its space of configurations, the main loop as a graph, what a shape asks of the device, the
Gluon and Triton sources that a configuration drives, and how torch tensors get to them."""

EXPORTS = {
    "candidates": (
        "CandidateTable",
        "planned_structures",
        "round_up_to_power_of_two",
        "table",
        "tabulate",
        "TileGrid",
    ),
    "gluon": (
        "constants",
        "descriptor_blocks",
        "finish_unit",
        "launch_options",
        "RESULTS",
        "RUNTIME_INTEGERS",
        "TYPES",
    ),
    "graph": ("loop_graph", "plan_candidate", "sustained_ii"),
    "kernel": ("Gemm", "require_rows"),
    "launch": ("describe_product", "gemm", "prepare", "run_kernel"),
    "space": (
        "BASE_REGISTERS",
        "config_of",
        "ELEMENT_BYTES",
        "GemmConfig",
        "LAYOUTS",
        "MAX_REGISTERS",
        "RESULT_BYTES",
        "ROW_ALIGNMENT_BYTES",
        "SCALE_BLOCK",
        "Shape",
        "violations",
        "WARP_GROUP",
    ),
    "units": ("locate", "Sizes", "unit_count"),
    "work": ("calibrations", "epilogue_cycles", "L2_RESIDENT", "LINE_BYTES", "loop_of", "solve_table", "SolvedTable"),
}
