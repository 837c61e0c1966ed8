"""A graph and its options in the solver's terms, and what follows from an assignment of starts and partitions.

``validate`` says what can be planned at all; ``terms``, ``clustering`` and ``formulation`` state the problem;
``assignment``, ``ring_sharing`` and ``partition_sizes`` say what a solution needs, ``least_needs`` what every solution
does; ``clones`` makes the graph of a tile that is split; ``circular_intervals`` is a resource on the circle of II
cycles. RULES.md numbers the rules.
"""

EXPORTS = {
    "assignment": (
        "Assignment",
        "barriers",
        "held",
        "issue_spans",
        "peak",
        "registers_needed",
        "retirement_arcs",
        "rings",
        "slots",
    ),
    "circular_intervals": ("Circle",),
    "clones": ("data_partition", "MARK"),
    "formulation": ("Problem",),
    "least_needs": ("LeastNeed", "least_memory", "least_registers", "least_registers_taken"),
    "partition_sizes": ("check_given", "dimension", "registers_taken", "require_registers"),
    "ring_sharing": ("least_hold", "may_share", "reuse_distance", "worth_sharing"),
    "terms": ("Arc", "REGISTER_COUNTS", "Use", "WARP", "WARP_COUNTS", "WARP_GROUP", "whole_multiple"),
    "validate": ("require_slot_capacity", "validate"),
}
