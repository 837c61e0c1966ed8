"""Recurrences over tokens that are computed in chunks."""
