"""Tuning tables of fused mixture-of-experts layers, whoever reads them: public models' shapes, how routed tokens fall
on blocks, the consumers' kernels and the facts captured from them, predictions over a tuning space, and files with
their provenance.
"""

EXPORTS = {
    "absent_imports": ("run_file",),
    "installed_consumer": ("InstalledConsumer",),
    "model_shapes": ("MoeLayer",),
    "moe_choice": ("MoeChooser",),
    "moe_feed": ("export_tables", "MoeConsumer", "PlannedTable", "Table", "verify_tables"),
    "moe_kernels": ("SGLANG", "VLLM"),
    "table_files": ("TableKey",),
    "tuning_space": ("TOKENS",),
}
