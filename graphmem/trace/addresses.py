"""The address of a tensor on the virtual GPU: that of its storage, plus its offset."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.graph import Storage
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import Replacement

_APART = 1 << 40
"""Bytes between storages without a block: more than any card has."""


def far_from_others(storage: Storage) -> int:
    """A placeholder address of what is not placed on the card yet, aligned like a block."""
    return (storage.id + 1) * _APART


def of_tensors(recorder: Recorder, address_of: Callable[[Storage], int | None]) -> Replacement:
    """The attribute to replace.

    Args:
        recorder: knows which storage a piece of fake memory stands for.
        address_of: the address of a storage; None if it is not on the device.
    """
    of_tensor = torch.Tensor.data_ptr

    def data_ptr(tensor: torch.Tensor) -> int:
        if not isinstance(tensor, FakeTensor):
            return of_tensor(tensor)
        storage = recorder.storage_of(tensor)
        address = None if storage is None else address_of(storage)
        offset = int(tensor.storage_offset()) * tensor.element_size()
        return 0 if address is None else address + offset

    return torch.Tensor, "data_ptr", data_ptr
