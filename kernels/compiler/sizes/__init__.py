"""What a kernel's time depends on when its sizes change: the trip counts of its loops and its grid, as values that are
evaluated in microseconds. Imports no planner and no Triton: launches use it.
"""

EXPORTS = {
    "gain_model": ("basis_from_json", "GainBasis", "GainModel", "model_from_json", "NOMINAL_TRIPS", "StrategyTerms"),
    "least_arguments": ("LEAST", "require_least"),
    "loop_trips": ("loop_trips", "trip_counts", "Trips"),
    "size_expressions": ("LaunchSizes",),
}
