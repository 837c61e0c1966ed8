"""``with planned():`` – launches looked up, decided at the first one, tried in a child process and remembered, for
kernels under ``@triton.jit`` and for those that Inductor generates.
"""

EXPORTS = {
    "decisions": ("Decision", "from_json", "to_json"),
    "inductor": ("planned_inductor", "tma_templates"),
    "planned": ("planned",),
    "progress": ("observed", "TRIAL_LISTENERS"),
}
