"""``with planned():`` – launches looked up, decided at the first one, tried in a child process and remembered, for
kernels under ``@triton.jit`` and for those that Inductor generates.
"""

EXPORTS = {
    "arguments": ("bytes_of", "Copies", "describe", "Later", "Storages"),
    "decide": ("Decider", "MOST_CHILDREN"),
    "decisions": ("Compiled", "Decision", "from_json", "parse", "to_json", "write_whole", "wrong"),
    "dispatch": (
        "bound_call",
        "Call",
        "current_device",
        "is_capturing",
        "is_tuning",
        "is_waiting",
        "LaunchTable",
        "name_of",
        "warn_not_planned",
    ),
    "inductor": ("planned_inductor", "tma_templates"),
    "packed": ("*",),
    "planned": ("planned",),
    "progress": ("*",),
    "trial": ("Bench", "rehearse"),
}
