"""Addresses on the virtual GPU: a tensor's data begins where its block does, plus its offset."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.allocator import Block
from graphmem.graph import Storage
from graphmem.trace.recorder import Recorder
from graphmem.virtual_gpu.patching import Replacement


def replacements(
    recorder: Recorder, block_of: Callable[[Storage], Block | None]
) -> list[Replacement]:
    """The attributes to replace.

    Args:
        recorder: knows for which storage a piece of fake memory stands.
        block_of: where a storage is.
    """
    of_storage = torch.UntypedStorage.data_ptr
    of_tensor = torch.Tensor.data_ptr

    def address_in(memory: torch.UntypedStorage) -> int | None:
        storage = recorder.storage_in(memory)
        if storage is None or storage.device != str(recorder.device):
            return None
        block = block_of(storage)
        return None if block is None else block.address

    def storage_data_ptr(memory: torch.UntypedStorage) -> int:
        address = address_in(memory)
        if address is None:
            return 0 if memory.device.type == "meta" else of_storage(memory)
        return address

    def tensor_data_ptr(tensor: torch.Tensor) -> int:
        if not isinstance(tensor, FakeTensor):
            return of_tensor(tensor)
        address = address_in(tensor.untyped_storage())
        offset = int(tensor.storage_offset()) * tensor.element_size()
        return 0 if address is None else address + offset

    return [
        (torch.UntypedStorage, "data_ptr", storage_data_ptr),
        (torch.Tensor, "data_ptr", tensor_data_ptr),
    ]
