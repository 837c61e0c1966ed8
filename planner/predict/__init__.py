"""From solved loops to kernel time. ``time_model`` predicts, ``ranking`` orders candidates by it, ``alternatives`` says
what the next best candidate lacks and which measured number would change the choice; of one loop ``explanation`` says
what fills its interval, ``sensitivity`` which single cost would have to change for another interval."""

EXPORTS = {
    "alternatives": (
        "compared",
        "Flips",
        "flips",
        "Need",
        "needs",
        "RankedCandidates",
        "RankedLoop",
    ),
    "certificate": ("certify",),
    "explanation": ("Demand", "demands"),
    "measurement_value": (
        "affordable",
        "expected_gains_us",
        "expected_times_us",
        "Measuring",
        "order_measurements",
        "ShapeTimes",
    ),
    "ranking": ("best_first", "RankedPlan"),
    "sensitivity": ("cost_changes", "CostChanges"),
    "time_model": (
        "constant_names",
        "DeviceWork",
        "FAMILY_DEFAULTS",
        "GLOBAL_DEFAULTS",
        "launch_constants",
        "Prediction",
        "predictions",
        "Rates",
        "terms",
        "TMA_BYTES_PER_CYCLE",
    ),
}
