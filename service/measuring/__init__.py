"""A GPU's time spent on measurements where it is worth most: what is worth it, what it gains, and the measuring."""

EXPORTS = {
    "measurement_plan": ("MeasurementPlan", "plan_measurements", "WantedShape"),
    "measurement_run": ("MeasuredCandidate", "run_measurements"),
}
