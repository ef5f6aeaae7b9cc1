"""Replacements for the parts of third-party libraries that need a real card.

Most libraries need nothing here: their Python runs as it is, and each of its operations is
followed. A library has a file here if it calls compiled code that PyTorch does not know about.

(1) Operators whose CUDA kernels are written in Python run those kernels, which allocate through
    PyTorch (`python_kernels`).
(2) Compiled functions that a kernel calls with addresses do nothing (one file per library).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graphmem.gpus import Gpu
from graphmem.virtual_device.libraries import bitsandbytes, deepspeed, quanto, triton, xformers
from graphmem.virtual_device.libraries.timing import timing_of


@contextmanager
def libraries(gpu: Gpu, torch_release: tuple[int, int]) -> Iterator[None]:
    """Give libraries what they need of a card while the context is open."""
    with (
        bitsandbytes.standing_in(),
        deepspeed.standing_in(),
        quanto.standing_in(),
        triton.standing_in(gpu, timing_of(torch_release)),
        xformers.standing_in(),
    ):
        yield
