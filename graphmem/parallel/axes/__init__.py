"""Axes: which dimensions of a step's tensors are one and the same, and which can be divided."""
