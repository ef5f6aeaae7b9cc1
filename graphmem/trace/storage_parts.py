"""A slice of a storage, `storage[a:b]`: memory in the middle of other memory.

On a card it is a storage that keeps the other alive (`THPStorage_get`, torch/csrc/Storage.cpp), and
a tensor set to it has its bytes. Here the tensor is set to the other storage, at the offset of the
slice, in the same bytes for as long. nanotron's gradients in float32 are made so.

Not covered: the storage of such a tensor is the whole one, of the whole one's size; and a slice
that begins within an element of the tensor.
"""

from __future__ import annotations

from typing import Any, Self

import torch

from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import Replacement


class StoragePart(torch.UntypedStorage):
    """A slice of a storage.

    Attributes:
        whole: the storage.
        start: where the slice begins in it, in bytes.
        on: the device for which the storage stands.
    """

    whole: torch.UntypedStorage
    start: int
    on: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that the program sees."""
        return self.on

    @classmethod
    def of(cls, whole: torch.UntypedStorage, on: torch.device, index: slice) -> Self:
        """Slice a storage.

        Raises:
            RuntimeError: the slice has a step.
        """
        start, stop, step = index.indices(whole.nbytes())
        if step != 1:
            raise RuntimeError(
                f"Trying to slice with a step of {step}, but only a step of 1 is supported"
            )
        part = cls(max(stop - start, 0), device="meta")
        part.whole, part.start, part.on = whole, start, on
        return part


def replacements(recorder: Recorder) -> list[Replacement]:
    """The method to replace; the recorder knows which memory stands for a card's."""
    of_storage: Any = torch.UntypedStorage.__getitem__

    def item(memory: torch.UntypedStorage, index: Any) -> Any:
        if isinstance(memory, StoragePart) and isinstance(index, slice):
            part = StoragePart.of(memory, memory.on, index)
            part.whole, part.start = memory.whole, memory.start + part.start
            return part
        storage = recorder.storage_in(memory)
        if storage is None or not isinstance(index, slice):
            return of_storage(memory, index)
        return StoragePart.of(memory, torch.device(storage.device), index)

    return [(torch.UntypedStorage, "__getitem__", item)]


def set_in_whole(
    tensor: torch.Tensor, part: StoragePart, offset: int = 0, size: Any = None, stride: Any = None
) -> tuple[Any, ...]:
    """The arguments that set a tensor to the whole storage instead of a slice of it.

    Raises:
        NotImplementedError: the slice begins within an element.
    """
    start, rest = divmod(part.start, tensor.element_size())
    if rest:
        raise NotImplementedError(
            f"a slice of a storage that begins at byte {part.start}, within an element of "
            f"{tensor.element_size()} bytes"
        )
    count = part.nbytes() // tensor.element_size()
    size, stride = ((count,), (1,)) if size is None else (size, stride)
    return tensor, part.whole, start + offset, size, stride
