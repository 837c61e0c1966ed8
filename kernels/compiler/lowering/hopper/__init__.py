"""Hopper: a kernel becomes one producer, which fills rings through TMA, and consumers, which split its tile by rows.

:mod:`~.specialize` puts it together. Before that loops may be rewritten, so that the tensor cores have work while a
consumer does arithmetic: by :mod:`~.lookahead` or by :mod:`~.overlap`, both on :mod:`~.loop_peeling`.
"""

EXPORTS = {
    "load_rings": ("ROWS", "WALK"),
    "loop_peeling": ("ONCE",),
    "overlap": ("HELD_REGISTERS",),
    "persistent": ("launched", "MARK"),
    "specialize": ("specialize",),
}
