"""Memory that CUDA kernels allocate in addition to their outputs: one family of operators a file.

Each module has `RULES`, keyed by the operator's name without its overload: a rule takes one call
and yields the steps of its program, in the order in which the kernel takes them.
"""
