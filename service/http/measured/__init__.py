"""What jobs measured, over HTTP: times of our kernels' configurations, and what autotuners found of anyone's."""

EXPORTS = {
    "measurement_routes": ("*",),
    "tuning_routes": ("*",),
}
