"""The children that rank, compile and try a list: what they do (``list_jobs``, ``list_trial``), and who starts and ends
them (``job_pool``, ``trial_child``)."""

EXPORTS = {
    "job_pool": ("cores", "JobPool"),
    "list_jobs": ("COMPILE", "PREPARE", "PREPARE_COMPILES", "RANK"),
    "trial_child": ("TrialChild",),
}
