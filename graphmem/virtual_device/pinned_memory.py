"""Page-locked host memory: `pin_memory`, `is_pinned`, and its statistics.

Pinning makes a copy, as on a card, unless the tensor is already pinned. Its blocks are counted as
PyTorch's caching host allocator does (aten/src/ATen/core/CachingHostAllocator.h, read in the wheels
of 2.9.1 to 2.15.0):

(1) a request is rounded up to a power of two (`PowerOf2Ceil`); one of 0 bytes takes no block;
(2) a freed block is kept for the next request of its size (`get_free_block`), and returned to the
    system only by `empty_cache`;
(3) a block that a copy uses is kept back until the card has finished the copy (`record_event`).
    Work takes no time on the virtual GPU, so the block is free at once;
(4) peaks of active blocks are those of each size, added up (`add_bucket_stats`).

Memory that a program page-locks itself (`cudaHostRegister`) counts as well, but not in PyTorch's
statistics.

PyTorch itself pins a few bytes to read a number: `item` (aten/src/ATen/native/cuda/
CUDAScalar.cu) and `nonzero` (Nonzero.cu, one int for each 2^30 elements or fewer).

Not modelled: from 2.10 to 2.12 PyTorch forgets to count active blocks down when they are freed, and
the settings `pinned_*` of PYTORCH_CUDA_ALLOC_CONF, two of which change (1) and (2).
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.allocator import Stat
from graphmem.torch_releases.installed_build import HOST_STATISTICS_ARE_RENAMED
from graphmem.virtual_device.patching import Replacement

_TIMES = ("host_alloc_time", "host_free_time")
_NAMES = ("allocations", "allocated_bytes", "active_requests", "active_bytes")
_FORMER_NAMES = ("segment", "reserved_bytes", "allocation", "allocated_bytes")
_INT_BYTES = 4
_NOT_ON_HOST = "Only dense CPU tensors can be pinned"  # aten/src/ATen/cuda/EmptyTensor.cpp


class PinnedMemory:
    """The page-locked memory and its statistics.

    Attributes:
        requested: the bytes of pinned tensors, unrounded.
    """

    def __init__(self) -> None:
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._registered: dict[int, int] = {}
        self._locked = Stat()
        self._cached: Counter[int] = Counter()
        self._blocks, self._bytes, self.requested = Stat(), Stat(), Stat()
        self._active: defaultdict[int, Stat] = defaultdict(Stat)

    @property
    def peak(self) -> int:
        """The most bytes that were page-locked, cached blocks included."""
        return self._locked.peak

    def pin(self, tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        """`Tensor.pin_memory`: a copy in page-locked memory.

        Raises:
            RuntimeError: the tensor is not on the CPU.
        """
        if tensor.device.type != "cpu":
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        if self.is_pinned(tensor):
            return tensor
        copy = tensor.detach().clone()
        self.hold(copy)
        return copy

    def hold(self, tensor: torch.Tensor) -> None:
        """Count the memory of a tensor as page-locked as long as it lives.

        Raises:
            RuntimeError: the tensor is not on the CPU.
        """
        if tensor.device.type != "cpu":
            raise RuntimeError(_NOT_ON_HOST)
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        if nbytes:
            self._take(nbytes)
            self.requested.increase(nbytes)
        key = storage._cdata

        def given_back(ref: weakref.ref[torch.UntypedStorage]) -> None:
            if self._storages.get(key) is ref:
                del self._storages[key]
            if nbytes:
                self._give_back(nbytes)
                self.requested.decrease(nbytes)

        self._storages[key] = weakref.ref(storage, given_back)

    def lend(self, nbytes: int = _INT_BYTES) -> None:
        """Pin a few bytes for a moment, as PyTorch does to read a number off the card."""
        self._take(nbytes)
        self._give_back(nbytes)

    def _take(self, nbytes: int) -> None:
        size = _block_size(nbytes)
        if self._cached[size]:
            self._cached[size] -= 1
        else:
            self._blocks.increase(1)
            self._bytes.increase(size)
            self._locked.increase(size)
        self._active[size].increase(1)

    def _give_back(self, nbytes: int) -> None:
        size = _block_size(nbytes)
        self._cached[size] += 1
        self._active[size].decrease(1)

    def is_pinned(self, tensor: torch.Tensor, device: Any = None) -> bool:
        """`Tensor.is_pinned`."""
        if tensor.device.type != "cpu":
            return False
        storage = tensor.untyped_storage()
        if storage._cdata in self._storages:
            return True
        return not isinstance(tensor, FakeTensor) and storage.data_ptr() in self._registered

    def register(self, address: int, size: int, flags: int = 0) -> int:
        """`cudaHostRegister`."""
        self.unregister(address)
        self._registered[address] = size
        self._locked.increase(size)
        self.requested.increase(size)
        return 0

    def unregister(self, address: int) -> int:
        """`cudaHostUnregister`."""
        size = self._registered.pop(address, 0)
        self._locked.decrease(size)
        self.requested.decrease(size)
        return 0

    def empty_cache(self) -> None:
        """`torch.accelerator.memory.empty_host_cache`."""
        for size, count in self._cached.items():
            if count:
                self._blocks.decrease(count)
                self._bytes.decrease(size * count)
                self._locked.decrease(size * count)
        self._cached.clear()

    def stats(self, names: tuple[str, ...]) -> dict[str, Any]:
        """`_cuda_hostMemoryStats`; nothing takes time."""
        times = {name: dict.fromkeys(("total", "max", "min", "count", "avg"), 0) for name in _TIMES}
        parts = [(size, stat.as_dict()) for size, stat in self._active.items()]
        counts = self._blocks.as_dict()
        requests = {key: sum(stat[key] for _, stat in parts) for key in counts}
        active = {key: sum(size * stat[key] for size, stat in parts) for key in counts}
        stats = (counts, self._bytes.as_dict(), requests, active)
        return {
            "num_host_alloc": counts["allocated"],
            "num_host_free": counts["freed"],
            **dict(zip(names, stats, strict=True)),
            **times,
        }

    def _figures(self) -> list[Stat]:
        return [self._blocks, self._bytes, *self._active.values()]

    def reset_peak(self) -> None:
        """Reset each peak to the current value."""
        for stat in self._figures():
            stat.reset_peak()

    def reset_accumulated(self) -> None:
        """Reset each count."""
        for stat in self._figures():
            stat.reset_accumulated()

    def replacements(self, release: tuple[int, int]) -> list[Replacement]:
        """List the methods and functions to replace.

        Args:
            release: the version of torch, which names the statistics.
        """
        is_renamed = HOST_STATISTICS_ARE_RENAMED.holds_in(release)
        names = _NAMES if is_renamed else _FORMER_NAMES
        functions: dict[str, Callable[..., Any]] = {
            "_cuda_hostMemoryStats": lambda: self.stats(names),
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


def _block_size(nbytes: int) -> int:
    """`PowerOf2Ceil`."""
    return 1 << (nbytes - 1).bit_length()
