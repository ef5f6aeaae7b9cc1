"""Weak references to fake memory, which tell when it is freed.

Up to torch 2.9 the garbage collector ends weak references to a Python storage that it finds in a
cycle, such as `torch.save` leaves, though a tensor still has the memory and will bring the storage
back (torch/csrc/Storage.cpp, `THPStorage_tryPreserve`). Such a reference is made anew.

Up to 2.9, too, the Python storage that memory owns outlives it while C++ has a weak reference to
it, as CUDA graph trees do: it ends with the `StorageImpl` (c10/core/StorageImpl.h), which such
references keep. Memory of this kind is looked at before each operation.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from graphmem.graph import Storage
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import (
    STORAGES_DIE_WITH_THEIR_MEMORY,
    STORAGES_SURVIVE_COLLECTION,
)


class StorageRef(weakref.ref[torch.UntypedStorage]):
    """A weak reference to fake memory, with its key and its `Storage`."""

    __slots__ = ("key", "nbytes", "storage")
    key: int
    nbytes: int
    storage: Storage


class StorageRefs(dict[int, StorageRef]):
    """References by the key of their memory, `_cdata`."""

    def __init__(self, freed: Callable[[StorageRef], None]) -> None:
        """No references yet; `freed` is called with each whose memory is freed."""
        super().__init__()
        self._freed = freed
        self._died = freed
        self._outlived: set[int] = set()
        """Keys of memory whose Python storage may outlive it."""
        if not STORAGES_SURVIVE_COLLECTION.holds_in(installed_release()):
            self._died = self._freed_unless_held

    def add(self, memory: torch.UntypedStorage, nbytes: int, storage: Storage) -> None:
        """Refer to memory that stands for a storage."""
        ref = StorageRef(memory, self._died)
        ref.key = memory._cdata
        ref.nbytes = nbytes
        ref.storage = storage
        self[ref.key] = ref

    def note_weak_reference(self, key: int) -> None:
        """Note that C++ has a weak reference to memory."""
        if not STORAGES_DIE_WITH_THEIR_MEMORY.holds_in(installed_release()):
            self._outlived.add(key)

    def free_outlived(self) -> None:
        """Find memory that has died although its Python storage has not."""
        for key in sorted(self._outlived):
            ref = self.get(key)
            if ref is None:
                self._outlived.discard(key)
            elif not torch._C._storage_Use_Count(key):
                self._outlived.discard(key)
                self._freed(ref)

    def _freed_unless_held(self, ref: StorageRef) -> None:
        is_held_by_a_tensor = torch._C._storage_Use_Count(ref.key) > 1  # one is the Python storage
        if is_held_by_a_tensor and self.get(ref.key) is ref:
            self.add(torch.UntypedStorage._new_with_weak_ptr(ref.key), ref.nbytes, ref.storage)
        else:
            self._freed(ref)
