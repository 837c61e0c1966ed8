"""Tuning tables of fused mixture-of-experts layers, whoever reads them: public models' shapes, how routed tokens fall
on blocks, the configuration predicted to be fastest, and files with their provenance.
"""

EXPORTS = {
    "model_shapes": ("MoeLayer",),
    "moe_choice": ("MoeChooser",),
    "moe_feed": ("export_tables", "MoeConsumer", "PlannedTable", "Table", "verify_tables"),
    "table_files": ("TableKey",),
}
