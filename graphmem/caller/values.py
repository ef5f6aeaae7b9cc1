"""Values of the caller's tensors: memory is copied before the first write into it.

Operations on real data are checked here. `graphmem.unmarked_writes` knows which arguments they
write into.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from graphmem.caller.tensors import TensorNote
from graphmem.unmarked_writes import tensors_written


class CopiedValues:
    """Copies of the memory of some tensors, made when it is about to change."""

    def __init__(self, notes: Iterable[TensorNote]) -> None:
        self._by_storage: dict[int, list[TensorNote]] = {}
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        for note in notes:
            self.guard(note)

    def guard(self, note: TensorNote) -> None:
        """Copy this tensor's memory before it is written into."""
        storage = _storage_of(note.ref())
        if storage is not None:
            self._by_storage.setdefault(storage._cdata, []).append(note)

    def before(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Copy memory that an operation on real data is about to write into."""
        if not self._by_storage:
            return
        for tensor in tensors_written(operation, args, kwargs):
            self.before_write(tensor)

    def before_write(self, tensor: torch.Tensor) -> None:
        """Copy the memory of a tensor that is about to be written into."""
        storage = _storage_of(tensor)
        if storage is None or storage._cdata in self._copies:
            return
        for note in self._by_storage.get(storage._cdata, ()):
            known = _storage_of(note.ref())
            if known is not None and known._cdata == storage._cdata:
                self._copies[storage._cdata] = (storage, storage.clone())
                return

    def put_back(self) -> None:
        """Restore the memory that was written into."""
        for storage, copy in self._copies.values():
            if storage.nbytes() != copy.nbytes():
                storage.resize_(copy.nbytes())
            storage.copy_(copy)


def _storage_of(tensor: torch.Tensor | None) -> torch.UntypedStorage | None:
    """The storage of a tensor on the CPU; None for others."""
    if tensor is None or tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return None
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and _is_wrapper(tensor):
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # it has outlived its transform
        return None
    return tensor.untyped_storage()


def _is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a subclass without memory of its own, such as a fake tensor."""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
