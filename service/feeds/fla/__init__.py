"""Entries for FLA (flash-linear-attention): a job's launches recorded without a GPU, their configurations ranked, the
files that FLA reads, and its own reader asked whether it would hit."""

EXPORTS = {
    "launch_recorder": ("fla_on_paper", "RecordedLaunch"),
    "recorded_ranking": ("RecordedCandidate", "RecordedPrices", "Reports"),
}
