"""The real memory behind a fake storage, which may not be computed yet."""

from __future__ import annotations

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
        zeros = constructors.zeros(nbytes, dtype=torch.uint8, device="cpu")
        return geometry.view_of(zeros.untyped_storage()).copy_(real).untyped_storage()
