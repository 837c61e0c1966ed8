"""Helion's caches: its remote one, kept by the service, and entries for kernels that nobody has tuned."""
