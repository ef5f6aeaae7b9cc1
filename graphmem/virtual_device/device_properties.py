"""The properties of a card, as `torch.cuda.get_device_properties` returns them.

Memory, multiprocessors and capability are those of `graphmem.gpus`. Limits by compute capability:
CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". L2 caches: NVIDIA's
whitepapers of the architectures (Volta, Turing, Ampere GA100 and GA102, Ada, Hopper, Blackwell),
T4 and A100 also as deviceQuery printed them, H200 and B200 as `get_device_properties()` did.

What differs between cards of one model (uuid, PCI addresses) is zero. What is unknown (clocks, bus
widths, the L2 cache of a described card) raises an `AttributeError` that says so.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any
from uuid import UUID

from graphmem.gpus import GPUS, Gpu

_KIB = 1024
_MIB = 1024 * _KIB

# Shared memory of a multiprocessor, and the most of it that one block can opt in to.
_SHARED_MEMORY = MappingProxyType(
    {
        (7, 0): (96 * _KIB, 96 * _KIB),
        (7, 5): (64 * _KIB, 64 * _KIB),
        (8, 0): (164 * _KIB, 163 * _KIB),
        (8, 6): (100 * _KIB, 99 * _KIB),
        (8, 9): (100 * _KIB, 99 * _KIB),
        (9, 0): (228 * _KIB, 227 * _KIB),
        (10, 0): (228 * _KIB, 227 * _KIB),
        (12, 0): (100 * _KIB, 99 * _KIB),
    }
)

L2_CACHE_BYTES = MappingProxyType(
    {
        "v100-16gb": 6 * _MIB,
        "v100-32gb": 6 * _MIB,
        "t4": 4 * _MIB,
        "a10": 6 * _MIB,
        "a10g": 6 * _MIB,
        "a100-40gb": 40 * _MIB,
        "a100-80gb": 40 * _MIB,
        "l4": 48 * _MIB,
        "l40s": 96 * _MIB,
        "rtx-3090": 6 * _MIB,
        "rtx-4090": 72 * _MIB,
        "rtx-5090": 96 * _MIB,
        "rtx-6000-ada": 96 * _MIB,
        "rtx-a6000": 6 * _MIB,
        "a40": 6 * _MIB,
        "quadro-rtx-8000": 6 * _MIB,
        "quadro-rtx-6000": 6 * _MIB,
        "titan-rtx": 6 * _MIB,
        "rtx-pro-6000": 128 * _MIB,
        "h100-80gb": 50 * _MIB,
        "h100-pcie": 50 * _MIB,
        "h200": 60 * _MIB,
        "b200": 126 * _MIB,
    }
)

_NO_UUID = UUID(int=0)


def largest_l2_cache(compute_capability: tuple[int, int]) -> int:
    """The bytes of the largest L2 cache of the listed cards of a compute capability."""
    return max(
        L2_CACHE_BYTES[gpu.name] for gpu in GPUS if gpu.compute_capability == compute_capability
    )


class DeviceProperties:
    """The properties by PyTorch's names (`_CudaDeviceProperties`, torch/csrc/cuda/Module.cpp)."""

    is_integrated = 0
    is_multi_gpu_board = 0
    warp_size = 32
    max_threads_per_block = 1024
    regs_per_multiprocessor = 65536
    shared_memory_per_block = 48 * _KIB
    uuid = _NO_UUID
    pci_bus_id = pci_device_id = pci_domain_id = 0

    def __init__(self, gpu: Gpu) -> None:
        self.name = self.gcnArchName = gpu.title
        self.major, self.minor = gpu.compute_capability
        self.total_memory = gpu.memory_bytes
        self.multi_processor_count = gpu.multiprocessors
        self.max_threads_per_multi_processor = gpu.max_threads_per_multiprocessor
        per_multiprocessor, per_block = _SHARED_MEMORY[gpu.compute_capability]
        self.shared_memory_per_multiprocessor = per_multiprocessor
        self.shared_memory_per_block_optin = per_block
        if gpu.name in L2_CACHE_BYTES:
            self.L2_cache_size = L2_CACHE_BYTES[gpu.name]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"graphmem's virtual GPU does not know {name!r} of a card")

    def __repr__(self) -> str:
        cache = vars(self).get("L2_cache_size")
        known = "" if cache is None else f", L2_cache_size={cache // _MIB}MB"
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor},"
            f" total_memory={self.total_memory // _MIB}MB,"
            f" multi_processor_count={self.multi_processor_count}, uuid={self.uuid},"
            f" pci_bus_id=0, pci_device_id=0, pci_domain_id=0{known})"
        )
