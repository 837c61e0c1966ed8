"""Device code of attention forward: what a unit is, who loads for it, who computes it."""

EXPORTS = {
    "attention_block": (
        "AttentionBlock",
        "AttentionOutput",
        "Extents",
        "HeadScales",
        "KeyRings",
        "QueryTile",
        "attention_block",
    ),
    "attention_consumer": ("LN_2", "attend_ahead", "attend_serially", "consumer"),
    "attention_producer": ("allocate_queries", "allocate_slots", "load_block", "producer"),
    "query_tiles": ("key_box",),
}
