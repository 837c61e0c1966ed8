"""What a kernel at the cut does, read off its text: loops as work and flows, where values come from and lie, which
rows they follow, what loads must not run ahead of, how tiles split by rows. Reads, decides nothing, changes nothing.
"""

EXPORTS = {
    "axes": ("BOXED_WRITES", "effect", "rule", "tensor_operands"),
    "capture": ("Body", "capture", "Captured", "Obstacle", "producer_slice"),
    "grid_walk": ("require_grid_walk",),
    "load_hazards": ("is_volatile", "refuse_hazards", "WRITES"),
    "loop_work": ("Flow", "LoopWork"),
    "operation_kinds": (
        "FREE",
        "Kind",
        "LOOPS",
        "Part",
        "Product",
        "result_types",
        "TMA_LOAD",
        "TMA_LOADS",
        "TMA_STORES",
        "UNIT",
        "WGMMA",
    ),
    "row_split": ("ENDS", "RowSplit", "TIED"),
    "tensor_memory": ("TensorBuffer",),
    "value_flow": ("CARRIED", "Definition", "definitions", "HANDED", "origins", "PLAIN", "VARIABLE"),
}
