"""Kernels under ``@triton.autotune``: (configuration × strategy) decided at once, over the tuner's own list.

A tuner's key, list, hooks and cache are read (``tuner_calls``), each configuration taken through Triton's front end
(``front_end``), what is left of them ranked and compiled in children on all cores (``list_jobs``, ``job_pool``), the
first few tried on the GPU (``list_choice``, ``list_trial``), what is best kept (``list_decisions``) and launched from
then on (``list_table``).
"""

EXPORTS = {
    "list_decide": ("ListDecider",),
    "list_table": ("ListTable",),
    "tuner_calls": ("tuning_key",),
}
