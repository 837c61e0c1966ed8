"""Loops of further kernels, varied like the held-out ones, for choosing what the planner's search does."""
