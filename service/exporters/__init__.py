"""Caches that training jobs already read, one module per format."""
