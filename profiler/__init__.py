"""A GPU in, a profile out: probes run in child processes, their records become a cost table, ceilings and calibrations;
traces of real kernels are read here too, and recorded profiles ship in ``data/``."""

EXPORTS = {
    "collect": ("collect",),
    "embedded": ("embedded",),
    "fit": ("Floats", "MeasuredShape"),
    "profile_files": ("save",),
    "recalibrate": ("Fit", "recalibrate", "Recalibration", "with_calibration"),
    "records": ("Record",),
    "stability": ("*",),
    "traces": ("Event", "NOMINAL_MHZ", "parse", "summarize", "TraceSummary"),
}
