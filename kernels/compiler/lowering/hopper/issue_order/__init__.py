"""In which order a consumer issues products, and when it waits for them, so that tensor cores have work while it does
arithmetic: by :mod:`~.overlap`, :mod:`~.lookahead` or :mod:`~.deferred_waits`, on :mod:`~.loop_peeling`.
"""

EXPORTS = {
    "deferred_waits": ("add_deferred_waits", "fits", "issued_together", "vector_registers", "vectors_fit"),
    "lookahead": ("add_lookahead",),
    "loop_peeling": ("ONCE", "rewrite_loops"),
    "overlap": ("add_overlap", "HELD_REGISTERS", "WAIT_AGAIN"),
}
