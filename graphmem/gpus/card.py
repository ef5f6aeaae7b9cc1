"""The properties of a GPU that decide how much memory a step takes.

Compute capability, multiprocessors and threads: NVIDIA's data sheets, CUDA C++ Programming Guide
("Technical Specifications per Compute Capability"), and docs/sources.md, "Multiprocessors".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from graphmem.gpus.context import context_of
from graphmem.torch_releases.differences import BLACKWELL_HAS_THE_LARGE_WORKSPACE
from graphmem.torch_releases.release import parse_release

if TYPE_CHECKING:
    from graphmem.allocator.addresses import Driver

# CUDA C++ Programming Guide, "Maximum number of resident threads per SM".
MAX_THREADS_PER_MULTIPROCESSOR: Mapping[tuple[int, int], int] = MappingProxyType(
    {
        (7, 0): 2048,
        (7, 5): 1024,
        (8, 0): 2048,
        (8, 6): 1536,
        (8, 9): 1536,
        (9, 0): 2048,
        (10, 0): 2048,
        (12, 0): 1536,
    }
)

CONTEXT_NOTE = (
    "an estimate: memory of the CUDA context, loaded kernels and library handles, seen by "
    "nvidia-smi and not by torch.cuda.memory_reserved(); the largest of a few public readings "
    "for the compute capability, and lazy kernel loading moves it"
)

# docs/sources.md, "cuBLAS workspaces" (read in the machine code of the wheels of torch 2.7,
# 2.8, 2.10, 2.11, 2.12.1 and 2.13.0; pytorch PR #175344).
_CUBLAS_WORKSPACE_BYTES = 4096 * 1024 * 2 + 16 * 1024 * 8
_CUBLAS_WORKSPACE_BYTES_LARGE = 4096 * 1024 * 8


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        name: the key, such as "a100-80gb".
        title: the result of `torch.cuda.get_device_name()`.
        memory_bytes: `total_memory` as printed on a real card (graphmem/gpus/table.py).
        compute_capability: (major, minor).
        multiprocessors: streaming multiprocessors that a program sees.
        aliases: other names that `find_gpu` accepts.
        memory_note: why `memory_bytes` is not exact, or empty.
        other_memory_bytes: what other drivers printed.
        driver: the platform, which decides where new segments lie; None: not specified.
    """

    name: str
    title: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    multiprocessors: int
    aliases: tuple[str, ...] = ()
    memory_note: str = ""
    other_memory_bytes: tuple[int, ...] = ()
    driver: Driver | None = None

    @property
    def memory_spread_bytes(self) -> int:
        """How much less memory another driver was seen to leave."""
        return self.memory_bytes - min((self.memory_bytes, *self.other_memory_bytes))

    @property
    def memory_surplus_bytes(self) -> int:
        """How much more memory another driver was seen to leave."""
        return max((self.memory_bytes, *self.other_memory_bytes)) - self.memory_bytes

    @property
    def max_threads_per_multiprocessor(self) -> int:
        """Threads that one multiprocessor keeps resident."""
        return MAX_THREADS_PER_MULTIPROCESSOR[self.compute_capability]

    @property
    def context_bytes(self) -> int:
        """Bytes that a process uses outside PyTorch's allocator; see `CONTEXT_NOTE`."""
        return context_of(self.compute_capability).estimate_bytes

    @property
    def context_spread_bytes(self) -> int:
        """How much less than `context_bytes` it may be."""
        return self.context_bytes - context_of(self.compute_capability).least_bytes

    @property
    def context_surplus_bytes(self) -> int:
        """How much more than `context_bytes` it may be."""
        return context_of(self.compute_capability).most_bytes - self.context_bytes

    def cublas_workspace_bytes(self, torch_version: str) -> int:
        """Bytes of one cuBLAS workspace if CUBLAS_WORKSPACE_CONFIG is not set.

        Args:
            torch_version: such as "2.13", "2.13.0" or "2.13.0+cpu".

        Raises:
            InputError: `torch_version` does not begin with two numbers.
        """
        major, _ = self.compute_capability
        is_hopper = major == 9
        is_blackwell = major in (10, 12)
        release = parse_release(torch_version)
        if is_hopper or (is_blackwell and BLACKWELL_HAS_THE_LARGE_WORKSPACE.holds_in(release)):
            return _CUBLAS_WORKSPACE_BYTES_LARGE
        return _CUBLAS_WORKSPACE_BYTES


# The comment of a row says where its bytes were printed. "deviceQuery" is CUDA's sample of that
# name, with the driver's CUDA version; the printouts are public, in repositories on GitHub.
