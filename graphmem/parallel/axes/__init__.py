"""Axes: which dimensions of a step's tensors are the same, and which can be divided."""
