"""Plans tried while the job runs on: which kernel is worth a trial next, within a budget of GPU time, on a thread of
its own; and the choice between a kernel and its plan by the times of the job's own launches.
"""

EXPORTS = {
    "background_trials": ("BackgroundTrials",),
    "configuration_contest": ("ConfigurationContest", "Times"),
    "gpu_budget": ("require_share",),
    "launch_comparison": ("GAIN", "KEPT", "LaunchPairs"),
    "launch_memory": ("launch_sizes", "shared_memory"),
    "plan_choices": ("PlanChoice", "PlanRunner", "PRIOR_GAIN", "Snapshot", "TrialOutcome", "WatchedLaunch"),
    "watched_kernel": ("WatchedKernel",),
}
