"""The use cases that HTTP and the command line share: what is asked, how it is answered and planned, files."""

EXPORTS = {
    "answers": ("ConfigAnswer",),
    "buffer_files": ("*",),
    "bundled_shapes": ("bundled",),
    "configure": ("EVERY_CANDIDATE", "Workflow"),
    "planning_pool": ("PLANNERS", "PlanningPool"),
    "plausibility": ("require_launchable", "require_same_gpu"),
    "profiles": ("planner_version", "Profiles", "ProfileSource"),
    "request": (
        "check",
        "check_declared",
        "DEFAULT_DEVICE",
        "DEFAULT_DTYPE",
        "example_size",
        "Item",
        "require_whole_text",
    ),
    "shape_files": ("at_line", "fields_once", "Line", "read_shapes"),
    "specialization": (
        "BLACKWELL",
        "HOPPER",
        "innermost",
        "inspect_kernel",
        "Inspection",
        "layers_at",
        "to_json",
    ),
    "text_files": ("read_bytes", "require_folder", "source_name", "write_text"),
}
