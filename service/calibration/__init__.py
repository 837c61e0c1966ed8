"""The loop closed: which stored times count for a profile, and the profile that they make."""

EXPORTS = {
    "calibrate": ("calibrate", "CalibrationReport", "environment_line"),
}
