"""Loops whose operations a strategy assigns to partitions beyond one producer and its consumers: the anchors of such an
assignment, and the kernel as each partition sees it.
"""

EXPORTS = {
    "anchors": ("assign",),
    "converter_size": ("CONVERTER_WARPS", "MOST_REGISTERS", "converter_registers"),
    "partition_views": ("consumer_view", "converter_view", "converters_of", "filler_of"),
}
