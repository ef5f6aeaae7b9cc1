"""PyTorch's own caching allocator, run without a GPU, beside graphmem's model of it.

    python -m tools.real_allocator [MODE …] [--wheel FILE] [--rules RELEASE]
                                   [--seeds N] [--seed FIRST]

(1) The real allocator is `NativeCachingAllocator` in libc10_cuda.so, that of the installed torch or
    of a wheel. Of torch, only libc10.so is loaded besides. CPU builds have no such library.
(2) CUDA is pretended (driver/, which needs a g++ and no CUDA). Its one card is graphmem's `Device`:
    addresses and refusals follow the same rules for both allocators, each on a card of its own.
(3) Both are asked for the same random steps (requests, frees, emptied caches, pools and their
    checkpoints, captures) in a mode (modes.py): settings, the size of the card, the order in which
    the driver places segments.
(4) After each step these must be equal: the address, or the text of the out-of-memory error; the
    memory taken from the card; every statistic. The first difference ends a case.

Not compared: blocks that several streams use (when they become free depends on timing), pools with
an allocator of the program's, histories and snapshots, several cards.
"""
