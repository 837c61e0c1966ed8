"""C = A · Bᵀ on Hopper: its space of configurations, the main loop as a graph, what a shape asks of the device, the
Gluon and Triton sources that a configuration drives, and how torch tensors get to them."""

EXPORTS = {
    "candidates": ("CandidateTable", "planned_structures", "tabulate"),
    "explain": ("block_name", "MEASURED_COLUMNS", "ranked_loop"),
    "gluon": ("RESULTS", "TYPES"),
    "graph": ("loop_graph", "plan_candidate", "sustained_ii"),
    "launch": ("gemm", "prepare", "result_dtype"),
    "space": (
        "BASE_REGISTERS",
        "config_of",
        "ELEMENT_BYTES",
        "GemmConfig",
        "MAX_REGISTERS",
        "RESULT_BYTES",
        "ROW_ALIGNMENT_BYTES",
        "SCALE_BLOCK",
        "Shape",
        "violations",
        "WARP_GROUP",
    ),
    "work": (
        "calibrated_constants",
        "calibrations",
        "epilogue_cycles",
        "L2_RESIDENT",
        "LINE_BYTES",
        "loop_of",
        "solve_table",
        "SolvedTable",
        "structure",
    ),
}
