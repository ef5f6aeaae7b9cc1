"""The real memory behind a fake storage, which may not be computed yet."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from graphmem import constructors
from graphmem.values.layouts import is_laid_out_as


class Geometry(NamedTuple):
    """How a tensor lies in its storage; strides and offset in elements."""

    dtype: torch.dtype
    offset: int
    shape: Sequence[int]
    stride: Sequence[int]

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has this dtype and shape."""
        return tensor.dtype == self.dtype and tensor.shape == self.shape

    def view_of(self, memory: torch.UntypedStorage) -> torch.Tensor:
        """A real tensor that lies so in this memory."""
        with torch._C._DisableTorchDispatch():
            view = constructors.empty(0, dtype=self.dtype, device="cpu")
            return view.set_(memory, self.offset, self.shape, self.stride)


def geometry_of(tensor: torch.Tensor) -> Geometry:
    """How a strided tensor lies in its storage."""
    return Geometry(tensor.dtype, int(tensor.storage_offset()), tensor.shape, tensor.stride())


class RealMemory:
    """Real memory; computed when it is first asked for.

    Attributes:
        nbytes: its size.
        depth: how many computations in a row it waits for.
    """

    __slots__ = ("__weakref__", "_compute", "_memory", "depth", "nbytes")

    def __init__(
        self,
        nbytes: int,
        memory: torch.UntypedStorage | None = None,
        compute: Callable[[], torch.UntypedStorage | None] | None = None,
        depth: int = 0,
    ) -> None:
        self.nbytes = nbytes
        self.depth = depth
        self._memory = memory
        self._compute = compute

    def read(self) -> torch.UntypedStorage | None:
        """The memory; None if it could not be computed."""
        if self._compute is not None:
            compute, self._compute, self.depth = self._compute, None, 0
            self._memory = compute()
        return self._memory


class Parts:
    """What is known of a storage that is written part by part.

    Attributes:
        memory: real memory with what is known.
    """

    def __init__(self, storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
        self._storage = weakref.ref(storage)
        self._itemsize = dtype.itemsize
        self.memory = _zeros(storage.nbytes())
        self._covered = _zeros(storage.nbytes() // dtype.itemsize)

    def belong_to(self, storage: torch.UntypedStorage) -> bool:
        """Whether they are those of this storage, which has not been resized since."""
        return self._storage() is storage and self.memory.nbytes() == storage.nbytes()

    def write(self, geometry: Geometry, values: torch.Tensor) -> bool:
        """Note a part; returns whether all of the storage is known now."""
        if geometry.dtype.itemsize != self._itemsize:
            return False
        with torch._C._DisableTorchDispatch():
            geometry.view_of(self.memory).copy_(values)
            self._covered_at(geometry).fill_(True)
        return 0 not in self._covered

    def have(self, geometry: Geometry) -> bool:
        """Whether all that lies so is known."""
        with torch._C._DisableTorchDispatch():
            is_same = geometry.dtype.itemsize == self._itemsize
            return is_same and bool(self._covered_at(geometry).all())

    def _covered_at(self, geometry: Geometry) -> torch.Tensor:
        return geometry._replace(dtype=torch.bool).view_of(self._covered)


def _zeros(nbytes: int) -> torch.UntypedStorage:
    with torch._C._DisableTorchDispatch():
        return constructors.zeros(nbytes, dtype=torch.uint8, device="cpu").untyped_storage()


def laid_out(real: torch.Tensor, nbytes: int, geometry: Geometry) -> torch.UntypedStorage:
    """The memory of a real tensor, or of a copy of it, in which it lies as another one does.

    Args:
        real: a tensor of that shape.
        nbytes: the size of the memory.
        geometry: of the other tensor.
    """
    if is_laid_out_as(real, nbytes, geometry.offset, geometry.stride):
        return real.untyped_storage()
    with torch._C._DisableTorchDispatch():
        return geometry.view_of(_zeros(nbytes)).copy_(real).untyped_storage()
