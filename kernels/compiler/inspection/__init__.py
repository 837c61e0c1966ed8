"""Finished kernels read again: partitions and barriers checked for causes of hangs, time stamps written in, each source
line with the partition, stage and buffer that it got, and signatures for compiles without a launch.
"""

EXPORTS = {
    "barrier_check": ("BarrierReport", "check_barriers"),
    "compile_errors": ("compile_error_line",),
    "finished": (
        "completed",
        "DEFAULT",
        "finished_text",
        "plain_operands",
        "read_copy",
        "SPECIALIZE",
        "warps_of",
        "workers",
    ),
    "instrument": ("KINDS",),
    "list_inspection": ("inspect_list", "InspectedConfig", "list_of"),
    "signature": ("parse_signature", "source_of"),
    "where": ("Placed", "placed"),
}
