"""What jobs measured, over HTTP: times of our kernels' configurations, what autotuners found of anyone's kernels, and
what is known of those."""

EXPORTS = {
    "measurement_routes": ("*",),
    "tuned_routes": ("*",),
    "tuning_routes": ("*",),
}
