"""What a kernel at the cut does, read off its text: loops as work and flows, where values come from and lie, which
rows they follow, what loads must not run ahead of, how tiles split by rows. Reads, decides nothing, changes nothing.
"""

EXPORTS = {
    "axes": ("BOXED_WRITES", "effect", "rule", "tensor_operands"),
    "capture": ("Body", "capture", "Captured", "Obstacle", "producer_slice"),
    "grid_walk": ("require_grid_walk",),
    "load_hazards": ("ASSEMBLY", "is_volatile", "refuse_hazards", "WRITES"),
    "loop_work": ("Flow", "LoopWork"),
    "operation_kinds": (
        "CONTROL",
        "COPY_LOAD",
        "DOTS",
        "elements_of",
        "EVERYTHING",
        "FREE",
        "Kind",
        "LONGEST_EARLY",
        "LOOPS",
        "OPERANDS",
        "Part",
        "Product",
        "result_types",
        "RING_KINDS",
        "RING_LOADS",
        "short_name",
        "TMA_LOAD",
        "TMA_LOADS",
        "TMA_STORES",
        "UNIT",
        "VECTOR",
        "vector_of",
        "WGMMA",
    ),
    "row_split": ("ENDS", "RowSplit", "TIED"),
    "tensor_memory": ("TensorBuffer",),
    "value_flow": ("CARRIED", "Definition", "definitions", "HANDED", "origins", "PLAIN", "VARIABLE"),
}
