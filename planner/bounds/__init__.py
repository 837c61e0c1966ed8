"""What is known of a loop without search: MinII, start windows and dominance cuts, and the relaxation to time alone,
with longest paths that exclusion on units makes tighter."""

EXPORTS = {
    "min_ii": ("Bound", "earliest", "forward_order", "min_ii", "recurrence", "WeightedArc"),
    "start_windows": ("distances", "dominance_cuts", "stage_limit"),
    "time_relaxation": (
        "connected",
        "loop_of",
        "NEVER",
        "overfull",
        "paths_of_first",
        "relaxation",
        "Resource",
        "resource_interval",
        "ring_arcs",
        "tight_paths",
        "TimeRelaxation",
        "Usage",
        "weighted",
    ),
}
