"""Commands about measured times: rank somebody's configurations and measure the first, calibrate from what there is."""

EXPORTS = {
    "calibrate_command": ("*",),
    "measure_command": ("*",),
    "tune_command": ("*",),
}
