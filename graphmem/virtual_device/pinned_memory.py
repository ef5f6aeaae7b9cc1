"""Page-locked host memory: `pin_memory`, `is_pinned`, and its statistics.

Pinning makes a copy, as on a card, unless the tensor is already pinned. The copy is ordinary host
memory, freed as soon as nothing holds it. `torch.cuda.host_memory_stats` counts it as PyTorch's
caching host allocator would (aten/src/ATen/core/CachingHostAllocator.h): requests rounded up to
powers of two, memory kept for reuse.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.allocator import Stat
from graphmem.virtual_device.patching import Replacement

_TIMES = ("host_alloc_time", "host_free_time")


class PinnedMemory:
    """The page-locked memory and its statistics."""

    def __init__(self) -> None:
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._registered: set[int] = set()
        self._cached: Counter[int] = Counter()
        self._stats = {
            name: Stat()
            for name in ("allocations", "allocated_bytes", "active_requests", "active_bytes")
        }

    def pin(self, tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        """`Tensor.pin_memory`: a copy in page-locked memory.

        Raises:
            RuntimeError: the tensor is not on the CPU.
        """
        if tensor.device.type != "cpu":
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        if isinstance(tensor, FakeTensor) or self.is_pinned(tensor):
            return tensor
        copy = tensor.detach().clone()
        self.hold(copy)
        return copy

    def hold(self, tensor: torch.Tensor) -> None:
        """Count the memory of a tensor as page-locked as long as it lives."""
        storage = tensor.untyped_storage()
        size = 1 << max(0, storage.nbytes() - 1).bit_length()
        stats = self._stats
        if self._cached[size]:
            self._cached[size] -= 1
        else:
            stats["allocations"].increase(1)
            stats["allocated_bytes"].increase(size)
        stats["active_requests"].increase(1)
        stats["active_bytes"].increase(size)
        key = storage._cdata

        def given_back(ref: weakref.ref[torch.UntypedStorage]) -> None:
            if self._storages.get(key) is ref:
                del self._storages[key]
            self._cached[size] += 1
            stats["active_requests"].decrease(1)
            stats["active_bytes"].decrease(size)

        self._storages[key] = weakref.ref(storage, given_back)

    def is_pinned(self, tensor: torch.Tensor, device: Any = None) -> bool:
        """`Tensor.is_pinned`."""
        if tensor.device.type != "cpu" or isinstance(tensor, FakeTensor):
            return False
        storage = tensor.untyped_storage()
        return storage._cdata in self._storages or storage.data_ptr() in self._registered

    def register(self, address: int, size: int, flags: int = 0) -> int:
        """`cudaHostRegister`."""
        self._registered.add(address)
        return 0

    def unregister(self, address: int) -> int:
        """`cudaHostUnregister`."""
        self._registered.discard(address)
        return 0

    def empty_cache(self) -> None:
        """`torch.accelerator.memory.empty_host_cache`."""
        for size, count in self._cached.items():
            if count:
                self._stats["allocations"].decrease(count)
                self._stats["allocated_bytes"].decrease(size * count)
        self._cached.clear()

    def stats(self) -> dict[str, Any]:
        """`_cuda_hostMemoryStats`; nothing takes time."""
        times = {name: dict.fromkeys(("total", "max", "min", "count", "avg"), 0) for name in _TIMES}
        allocations = self._stats["allocations"]
        return {
            "num_host_alloc": allocations.allocated,
            "num_host_free": allocations.freed,
            **{name: stat.as_dict() for name, stat in self._stats.items()},
            **times,
        }

    def reset_peak(self) -> None:
        """Reset each peak to the current value."""
        for stat in self._stats.values():
            stat.reset_peak()

    def reset_accumulated(self) -> None:
        """Reset each count."""
        for stat in self._stats.values():
            stat.reset_accumulated()

    def replacements(self) -> list[Replacement]:
        """List the methods and functions to replace."""
        functions: dict[str, Callable[..., Any]] = {
            "_cuda_hostMemoryStats": self.stats,
            "_cuda_resetPeakHostMemoryStats": self.reset_peak,
            "_cuda_resetAccumulatedHostMemoryStats": self.reset_accumulated,
            "_host_emptyCache": self.empty_cache,
            "_accelerator_emptyHostCache": self.empty_cache,
        }

        def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
            return self.pin(tensor, device)

        def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
            return self.is_pinned(tensor, device)

        return [
            *((torch._C, name, function) for name, function in functions.items()),
            (torch.Tensor, "pin_memory", pin_memory),
            (torch.Tensor, "is_pinned", is_pinned),
        ]
