"""The tensors in the host's memory while a program or a step runs.

(1) A storage counts from the first operation that returns a tensor of it until it is freed, with
    the bytes that it has, whether its tensor is real or fake.
(2) The peak is that of the iterations. What was made before them counts if it is still alive.
(3) Tensors of fewer than `LEAST_ELEMENTS` elements are too small to look at.

Not covered: memory that is no tensor's (Python, data loaders' other processes, libraries), and in a
trace, large tensors on the CPU that only autograd still holds.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.graph import Op
from graphmem.host_bytes import HostBytes
from graphmem.virtual_device.pinned_memory import PinnedMemory

LEAST_ELEMENTS = 1024
_COPY = "aten._to_copy.default"


class _Held(weakref.ref[torch.UntypedStorage]):
    """A weak reference to memory that is counted."""

    __slots__ = ("key", "nbytes")
    key: int
    nbytes: int


def _is_on_host(tensor: torch.Tensor) -> bool:
    if isinstance(tensor, FakeTensor):
        return tensor.fake_device.type == "cpu" and tensor.layout is torch.strided
    return tensor.is_cpu and tensor.layout is torch.strided


class HostMemory:
    """Follows the tensors on the CPU.

    Attributes:
        pinned: the page-locked ones.
    """

    def __init__(self) -> None:
        self.pinned = PinnedMemory()
        self._held: dict[int, _Held] = {}
        self._current = 0
        self._peak = 0
        self._copied = 0
        self._is_in_steps = False

    def note(self, result: Any) -> None:
        """Count the storages of an operation's result on the CPU."""
        if isinstance(result, torch.Tensor):
            if result.numel() >= LEAST_ELEMENTS and _is_on_host(result):
                self._note(result.untyped_storage())
        elif isinstance(result, (tuple, list)):
            for each in result:
                self.note(each)

    def note_output(self, op: Op, tensor: torch.Tensor) -> None:
        """Count an operation's fake output, unless it is a copy that may yet be answered."""
        if op.target != _COPY:
            self.note(tensor)

    def _note(self, memory: torch.UntypedStorage) -> None:
        key, nbytes = memory._cdata, memory.nbytes()
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held(memory, self._freed)
            held.key, held.nbytes = key, 0
        if held.nbytes != nbytes:
            self._current += nbytes - held.nbytes
            held.nbytes = nbytes
            if self._current > self._peak:
                self._peak = self._current

    def _freed(self, held: _Held) -> None:
        if self._held.get(held.key) is held:
            del self._held[held.key]
        self._current -= held.nbytes

    def begin_steps(self) -> None:
        """Forget the peak of the set-up, when the first iteration begins."""
        if not self._is_in_steps:
            self._is_in_steps = True
            self._peak = self._current

    def copied(self, result: torch.Tensor) -> None:
        """Count a tensor that was copied from the card."""
        self._copied += result.numel() * result.element_size()

    def peaks(self) -> HostBytes:
        """The figures so far."""
        pinned = self.pinned
        return HostBytes(pinned.peak, pinned.requested.peak, self._peak, self._copied)
