"""`torch.compile` on the virtual card: PyTorch's compiler runs, and its output is executed.

Dynamo, AOTAutograd and Inductor of the installed release do all their work on the host. They write
a Python wrapper whose `empty_strided_cuda`, `del` and kernel calls are the allocations and frees of
the compiled step; it runs on the virtual card unchanged, with kernels that do nothing.

    compilation     switches the compiler on when the program first uses it
    unwatched       keeps the compiler's own operations out of the record
    dynamo          tells Dynamo about graphmem's stand-ins
    inductor        runs what Inductor runs on a card while it compiles, and what its wrapper calls
    kernels         Inductor's kernels, which do nothing
    registers       counts the registers of a kernel that Triton compiles
    reuse           takes what Inductor made of a graph in an earlier analysis from a cache
    origins         finds the operations, module and line a buffer comes from
    unknowns        answers what only a card knows about a compilation
    eagerly         `--no-compile`: runs the program as if it had not used `torch.compile`
"""
