"""What the planner is told and what it answers: ``dependence_graph``, ``device``, ``costs``, ``profile``, ``plan``,
``timeline``, ``tuning``, parameters of the searches, and ``codec``, which reads and writes them as JSON. Frozen
dataclasses that refuse what contradicts itself; nothing is decided here."""

EXPORTS = {
    "codec": ("*",),
    "costs": ("CostEntry", "CostTable", "OperationCost", "Parameter", "Parameters", "Quantiles"),
    "deadline": ("Deadline", "DeadlineReached", "Interruption", "NO_DEADLINE"),
    "dependence_graph": (
        "Dependence",
        "DependenceGraph",
        "is_whole",
        "Limits",
        "Memory",
        "MOST_OF",
        "Operation",
        "require_few",
    ),
    "device": ("Device", "device", "DEVICES", "H200", "UNITS"),
    "options": ("ExtraBuffer", "FREE_PARTITIONS", "PartitionSpec", "SolveOptions"),
    "packing_params": ("PackingParams",),
    "plan": ("Buffer", "Channel", "Optimality", "Outcome", "Partition", "Placement", "Plan", "Reuse", "Schedule"),
    "profile": ("Calibration", "Failure", "Identity", "Profile", "Rate"),
    "search_params": ("BoundParams", "Branching", "CpSatParams", "MemoryModel", "SearchParams"),
    "timeline": ("Span", "Timeline"),
    "tuning": ("Scalar", "TuningConfig"),
}
