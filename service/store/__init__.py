"""Where answers, measurements, decisions and plans are kept: SQLite or PostgreSQL, migrations, checksums of rows, and
the text that rows hold for values."""

EXPORTS = {
    "answer_store": ("Kept", "kept_plan", "Store"),
    "artifact_store": ("artifact", "ArtifactKey", "Artifacts"),
    "checksums": ("checksum", "digest", "intact", "quick_checksum", "SOLVE"),
    "database": ("Database", "now"),
    "decision_store": ("KernelPlans", "UnknownKernelPlan"),
    "measured_times": ("Measurement", "SeriesTime"),
    "store_failures": ("ReadOnlyStore",),
    "stored_values": (
        "config_text",
        "Environment",
        "environment_of",
        "environment_text",
        "plan_fields",
        "prediction_fields",
        "read_config",
        "read_environment",
        "Unreadable",
    ),
    "upserts": ("insert_new", "insert_or_replace"),
}
