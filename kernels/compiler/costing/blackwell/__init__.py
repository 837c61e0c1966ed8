"""What a kernel for Blackwell would take: its loop as a graph with tensor memory, and its partitions ranked."""

EXPORTS = {
    "blackwell_ranking": ("*",),
}
