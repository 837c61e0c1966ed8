"""The exact planner: a dependence graph and measured costs in, a proven schedule with partitions and buffers out.

It is a pure function of its inputs: no files, no clocks of its own, no torch, no Triton. ``solve`` is the way in; the
folders are layers, from the values at the bottom to predictions at the top, and each imports only those
below it: errors, values, problem, bounds, cpsat, packing, search, solve, predict. ``check`` and ``simulate``
verify what the others found and share nothing with them but the values. RULES.md says what makes a plan valid.

``EXPORTS``, here and in every folder, names what other folders may import, module by module ("*": the whole module).
"""

EXPORTS = {
    "errors": (
        "Infeasible",
        "InvalidConfig",
        "InvalidGraph",
        "InvalidInput",
        "InvalidPlan",
        "InvalidShape",
        "MalformedFile",
        "MeasurementFailed",
        "MissingCosts",
        "SimulationFault",
        "StoreError",
        "UnknownName",
        "WarpplanError",
    ),
    "later_fields": ("is_shown", "LATER", "shows_later_fields"),
    "solve": ("effective_ii", "fewest_slots", "solve"),
}
