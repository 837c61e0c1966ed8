"""Helion's remote autotuning cache, kept by the service."""
