"""`torch.compile` as PyTorch does it: its compiler runs, and what it writes is executed.

Dynamo, AOTAutograd and Inductor of the installed release do all their work on the host. What they
write is a Python wrapper whose `empty_strided_cuda`, `del` and kernel calls are the allocations and
frees of the compiled step; it runs on the virtual card as it is, with kernels that do nothing.

    compilation     switches the compiler on when the program first asks for it
    unwatched       the compiler's own operations are no part of the program
    dynamo          what Dynamo must know of graphmem's stand-ins
    inductor        what Inductor runs on a card while it compiles, and what its wrapper calls
    kernels         Inductor's kernels, which do nothing
    origins         which operations, module and line a buffer comes from
    unknowns        what only a card knows of a compilation
    eagerly         `--no-compile`: the program runs as if it had not asked
"""
