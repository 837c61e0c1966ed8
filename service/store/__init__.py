"""Where answers, measurements, decisions and plans are kept: SQLite or PostgreSQL, migrations, checksums of rows, and
the text that rows hold for values."""

EXPORTS = {
    "answer_store": ("Kept", "kept_plan", "Measurement", "Store"),
    "artifact_store": ("artifact", "ArtifactKey", "Artifacts"),
    "checksums": ("checksum", "digest", "intact", "SOLVE"),
    "database": ("Database", "insert_new", "now"),
    "decision_store": ("KernelPlans",),
    "stored_values": ("config_text", "Environment", "environment_of", "plan_fields", "prediction_fields"),
}
