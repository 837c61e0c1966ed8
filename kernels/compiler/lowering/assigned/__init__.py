"""Loops whose operations a strategy assigns to partitions beyond one producer and its consumers: the anchors of such an
assignment, and the kernel as each partition sees it.
"""

EXPORTS: dict[str, tuple[str, ...]] = {}
