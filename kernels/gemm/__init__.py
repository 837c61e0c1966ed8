"""C = A · Bᵀ on Hopper: its space of configurations, the main loop as a graph, what a shape asks of the device, the
Gluon and Triton sources that a configuration drives, and how torch tensors get to them."""

EXPORTS = {
    "graph": ("loop_graph", "plan_candidate"),
    "launch": ("gemm", "prepare"),
    "space": ("config_of", "ELEMENT_BYTES", "GemmConfig", "Shape"),
    "work": ("epilogue_cycles",),
}
