"""The path for any Triton kernel: its loops planned, specialised and launched, without a change to its source.

A kernel is compiled to the cut (``pipeline``), its text read (``ttgir``), what it does found out (``analysis``), every
way to specialise it predicted (``costing``), one of them (``strategy``) written into code (``lowering``), the result
checked (``inspection``), tried and launched (``launching``). Imports go from launching down to ttgir, never back.
"""

EXPORTS = {
    "exceptions": ("by_reason", "CannotPlan", "PlanWarning", "reason_of", "UnsupportedTriton"),
}
