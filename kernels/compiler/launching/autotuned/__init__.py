"""Kernels under ``@triton.autotune``: (configuration × strategy) decided at once, over the tuner's own list.

A tuner's key, list, hooks and cache are read (``tuner_calls``), and what is kept of it is looked up (``list_lookup``).
Where nothing is, each configuration is taken through Triton's front end (``front_end``), what is left of them ranked
and compiled in children on all cores, the first few tried on the GPU (``list_choice``, ``list_children``), what is best
kept (``list_decisions``) and launched from then on (``list_table``). The first launch waits for that (``list_decide``),
or Triton tunes in it and the rest is done beside the job (``list_beside``).
"""

EXPORTS = {
    "list_decide": ("ListDecider",),
    "front_end": ("launch_size",),
    "list_beside": ("ListsBeside",),
    "list_lookup": ("ListLookup",),
    "list_table": ("ListTable",),
    "tuner_calls": ("tuning_key",),
}
