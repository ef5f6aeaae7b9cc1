"""What CUDA kernels allocate besides their outputs: one family of operators a file.

Each module has `RULES`: by the operator's name without its overload, a function that is told of one
call and yields the steps of its program, in the order in which the kernel takes them.
"""
