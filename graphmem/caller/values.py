"""Values of the caller's tensors: memory is copied before the first write into it.

Operations on real data are checked here. Which arguments they write into is in their schemas, or in
`graphmem.unmarked_writes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from graphmem.caller.tensors import TensorNote
from graphmem.unmarked_writes import RUNNING_STATISTICS


class CopiedValues:
    """Copies of the memory of some tensors, made when it is about to change."""

    def __init__(self, notes: Iterable[TensorNote]) -> None:
        self._by_storage: dict[int, list[TensorNote]] = {}
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._written: dict[Any, tuple[tuple[int, str], ...]] = {}
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
        for position, name in self._written_by(operation):
            value = args[position] if position < len(args) else kwargs.get(name)
            for tensor in _tensors_in(value):
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

    def _written_by(self, operation: Any) -> tuple[tuple[int, str], ...]:
        found = self._written.get(operation)
        if found is None:
            schema = operation._schema
            unmarked = RUNNING_STATISTICS.get(operation, ())
            found = self._written[operation] = tuple(
                (position, argument.name)
                for position, argument in enumerate(schema.arguments)
                if position in unmarked
                or (argument.alias_info is not None and argument.alias_info.is_write)
            )
        return found

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


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from (each for each in value if isinstance(each, torch.Tensor))
