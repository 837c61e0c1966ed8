"""C = A · Bᵀ on Hopper: its space of configurations, the main loop as a graph, what a shape asks of the device, the
Gluon and Triton sources that a configuration drives, and how torch tensors get to them."""

EXPORTS = {
    "candidates": ("CandidateTable", "planned_structures", "tabulate"),
    "explain": ("MEASURED_COLUMNS", "block_name", "ranked_loop"),
    "graph": ("loop_graph", "plan_candidate", "sustained_ii"),
    "launch": ("prepare",),
    "space": (
        "BASE_REGISTERS",
        "ELEMENT_BYTES",
        "GemmConfig",
        "MAX_REGISTERS",
        "ROW_ALIGNMENT_BYTES",
        "Shape",
        "WARP_GROUP",
        "violations",
    ),
    "work": (
        "L2_RESIDENT",
        "LINE_BYTES",
        "SolvedTable",
        "calibrated_constants",
        "epilogue_cycles",
        "loop_of",
        "solve_table",
        "structure",
    ),
}
