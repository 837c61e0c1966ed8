"""Finished kernels read again: partitions and barriers checked for causes of hangs, time stamps written in, each source
line with the partition, stage and buffer that it got, and signatures for compiles without a launch.
"""

EXPORTS = {
    "barrier_check": ("BarrierReport", "check_barriers"),
    "finished": ("finished_text",),
    "instrument": ("KINDS",),
    "signature": ("parse_signature", "source_of"),
    "where": ("Placed", "placed"),
}
