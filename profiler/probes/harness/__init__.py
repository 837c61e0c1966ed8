"""What every probe is built from: a kernel with its arguments, device code that is timed, and samples read back."""

EXPORTS = {
    "cases": ("Box", "Case", "Live", "Pointer"),
    "device_code": (
        "SCOPE_WARPS", "active_repetitions", "clock", "empty_scopes", "idle", "nanoseconds", "probe_kernel", "record",
        "wait_for",
    ),
    "sampling": (
        "FEW_SMS", "MOST_BLOCKS", "REPETITIONS", "Record", "Samples", "WARM_REPETITIONS", "ceiling", "cost", "flush_l2",
        "out_elements", "quantiles", "sample", "slope", "sm_count",
    ),
}  # fmt: skip
