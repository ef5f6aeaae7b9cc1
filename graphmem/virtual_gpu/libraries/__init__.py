"""Libraries of others, on the virtual card: what stands in for the parts that need a real one.

Most libraries need nothing here. Their Python runs as it is, and each operation of it is followed.
A library has a file here where it calls compiled code that PyTorch does not know of.

(1) Its operators, whose CUDA kernels are written in Python, run by those kernels: what a kernel
    allocates, it allocates by PyTorch (`python_kernels`).
(2) Functions that a kernel calls in compiled code, by address, do nothing (a file a library).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graphmem.gpus import Gpu
from graphmem.virtual_gpu.libraries import bitsandbytes, triton


@contextmanager
def libraries(gpu: Gpu) -> Iterator[None]:
    """Let libraries find what they need of a card, while it is open."""
    with bitsandbytes.standing_in(), triton.standing_in(gpu):
        yield
