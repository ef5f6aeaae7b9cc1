"""Storages whose memory was freed and allocated again, while autograd's tokens name the first.

FSDP frees gathered parameters by `storage.resize_(0)` and gathers them again for the backward pass.
In PyTorch what autograd saved shares the `StorageImpl`, and so finds the new memory.
"""

from __future__ import annotations

from graphmem.graph import Storage


class ReplacedStorages:
    """Finds the newest storage of a piece of memory."""

    def __init__(self) -> None:
        self._next: dict[int, Storage] = {}

    def note(self, old: Storage, new: Storage) -> None:
        """Note that one storage has replaced another."""
        self._next[old.id] = new

    def newest(self, storage: Storage) -> Storage:
        """The last one that replaced this storage, or itself."""
        while storage.id in self._next:
            storage = self._next[storage.id]
        return storage
