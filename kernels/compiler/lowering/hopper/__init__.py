"""Hopper: a kernel becomes one producer, which fills rings through TMA, and consumers, which split its tile by rows.

:mod:`~.specialize` puts it together. Before that loops may be rewritten, so that the tensor cores have work while a
consumer does arithmetic (:mod:`~.issue_order`).
"""

EXPORTS = {
    "load_rings": ("load_number", "Rings", "ROWS", "uses", "VIEWS", "WALK"),
    "persistent": ("launched", "MARK"),
    "specialize": ("specialize",),
}
