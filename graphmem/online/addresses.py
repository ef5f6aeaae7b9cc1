"""Addresses on the virtual GPU: a tensor's data begins where its block does, plus its offset."""

from __future__ import annotations

from collections.abc import Callable

import torch

from graphmem.allocator import Block
from graphmem.graph import Storage
from graphmem.trace.addresses import of_tensors
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import Replacement


def replacements(
    recorder: Recorder,
    block_of: Callable[[Storage], Block | None],
    without_block: Callable[[Storage], int | None] = lambda storage: None,
) -> list[Replacement]:
    """The attributes to replace.

    Args:
        recorder: maps fake memory to storages.
        block_of: finds the block of a storage.
        without_block: the address of a storage on the device that has none.
    """
    of_storage = torch.UntypedStorage.data_ptr

    def address_of(storage: Storage) -> int | None:
        if storage.device != str(recorder.device):
            return recorder.addresses.get(storage.id)
        block = block_of(storage)
        return without_block(storage) if block is None else block.address

    def storage_data_ptr(memory: torch.UntypedStorage) -> int:
        storage = recorder.storage_in(memory)
        address = None if storage is None else address_of(storage)
        if address is None:
            return 0 if memory.device.type == "meta" else of_storage(memory)
        return address

    return [
        (torch.UntypedStorage, "data_ptr", storage_data_ptr),
        of_tensors(recorder, address_of),
    ]
