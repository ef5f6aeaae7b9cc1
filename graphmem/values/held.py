"""Values of fake tensors, which belong to their storages.

A view has its base's values, because it shares its memory. The values die with the fake memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.graph import Source
from graphmem.values.layouts import is_dense, is_plain
from graphmem.values.memory import Geometry, Parts, RealMemory, geometry_of, laid_out


class Assumed(NamedTuple):
    """An assumption made by a rule, for something that only a real run knows.

    Attributes:
        what: what is assumed, in words.
        value: the assumed value.
        why: why it is not known.
        source: the line where the rule was applied.
    """

    what: str
    value: str
    why: str
    source: Source | None


Basis = frozenset[Assumed]
"""The rules that values depend on; empty if they are known."""

KNOWN: Basis = frozenset()


class KnownTensor(NamedTuple):
    """A real tensor with the values of a fake one, and the rules that they depend on."""

    tensor: torch.Tensor
    basis: Basis


class UnknownError(Exception):
    """An operand is not known."""


class Operand(NamedTuple):
    """A known tensor whose values may not be computed yet."""

    memory: RealMemory
    geometry: Geometry
    basis: Basis

    def read(self) -> torch.Tensor:
        """A real tensor with its values.

        Raises:
            UnknownError: they could not be computed.
        """
        memory = self.memory.read()
        if memory is None:
            raise UnknownError
        return self.geometry.view_of(memory)


_MOST_OF_PARTS = 1 << 19
"""The most bytes of a storage that is written part by part."""

Written = weakref.ref[torch.UntypedStorage]
"""Fake memory that is written into."""


class _Held(weakref.ref[torch.UntypedStorage]):
    """A weak reference to fake memory, with its values; they are dropped together."""

    __slots__ = ("basis", "key", "memory")
    key: int
    memory: RealMemory
    basis: Basis

    @property
    def nbytes(self) -> int:
        """The size of the memory."""
        return self.memory.nbytes


class HeldValues:
    """The values of the storages that have some."""

    def __init__(self) -> None:
        """Start without values."""
        self._held: dict[int, _Held] = {}
        self._postponed: weakref.WeakSet[RealMemory] = weakref.WeakSet()
        self._captured: dict[int, Written] | None = None
        self._parts: dict[int, tuple[Parts, Basis]] = {}

    def capture(self) -> None:
        """Know nothing of what follows: a CUDA graph captures it, and a replay runs it."""
        self._captured = {}

    @property
    def is_capturing(self) -> bool:
        """Whether operations are captured, which run only later."""
        return self._captured is not None

    def end_capture(self) -> Sequence[Written]:
        """The memory that a replay of what was captured writes into."""
        captured, self._captured = self._captured or {}, None
        return [*captured.values()]

    def replayed(self, captured: Iterable[Written]) -> None:
        """Forget the values of what a replay writes into."""
        for written in captured:
            memory = written()
            if memory is not None:
                self._forget(memory)

    def of(self, tensor: torch.Tensor) -> KnownTensor | None:
        """The values of a tensor; None if they are not known."""
        if not isinstance(tensor, FakeTensor):
            return KnownTensor(tensor, KNOWN) if is_plain(tensor) else None
        try:
            operand = self.unread(tensor)
            return KnownTensor(operand.read(), operand.basis)
        except UnknownError:
            return None

    def of_all(self, tensors: Iterable[torch.Tensor]) -> Basis | None:
        """The rules that the values of several tensors depend on; None if one is not known."""
        basis = KNOWN
        for tensor in tensors:
            known = self.of(tensor)
            if known is None:
                return None
            basis |= known.basis
        return basis

    def unread(self, tensor: FakeTensor) -> Operand:
        """The values of a tensor as they are now; they need not be computed yet.

        Raises:
            UnknownError: they are not known.
        """
        if tensor.is_conj() or tensor.is_neg():
            raise UnknownError
        held = self.saved(tensor)
        if held is None:
            return self._part(tensor)
        return Operand(held.memory, geometry_of(tensor), held.basis)

    def _part(self, tensor: FakeTensor) -> Operand:
        """The values of a tensor in a storage of which only parts are known."""
        if not self._parts or tensor.layout is not torch.strided:
            raise UnknownError
        memory, geometry = tensor.untyped_storage(), geometry_of(tensor)
        parts, basis = self._parts.get(memory._cdata, (None, KNOWN))
        if parts is None or not parts.belong_to(memory) or not parts.have(geometry):
            raise UnknownError
        return Operand(RealMemory(memory.nbytes(), parts.memory), geometry, basis)

    def note(self, tensor: torch.Tensor, real: torch.Tensor, basis: Basis) -> None:
        """Give a fake tensor with its own memory the values of a real one."""
        memory = tensor.untyped_storage()
        nbytes = memory.nbytes()
        self._keep(memory, RealMemory(nbytes, laid_out(real, nbytes, geometry_of(tensor))), basis)

    def postpone(self, tensor: torch.Tensor, values: RealMemory, basis: Basis) -> None:
        """Give a fake tensor with its own memory values that are computed when they are read."""
        self._postponed.add(values)
        self._keep(tensor.untyped_storage(), values, basis)

    def compute_postponed(self) -> None:
        """Compute what waits, before an operand changes."""
        for values in list(self._postponed):
            values.read()
        self._postponed.clear()

    def saved(self, tensor: torch.Tensor) -> Any:
        """The values to pass to `share` when the tensor itself is gone; None if not known."""
        if tensor.layout is not torch.strided:
            return None
        memory = tensor.untyped_storage()
        held = self._held.get(memory._cdata)
        if held is not None and held.nbytes != memory.nbytes():  # it was resized
            del self._held[memory._cdata]
            return None
        return held

    def write(self, tensor: torch.Tensor, values: torch.Tensor, basis: Basis) -> None:
        """Note values that are written into a tensor, which may be a part of its storage.

        Parts of a storage of which nothing is known are kept until they are all of it.
        """
        memory, geometry, held = tensor.untyped_storage(), geometry_of(tensor), self.saved(tensor)
        if self.is_capturing:
            self.forget(tensor)
        elif is_dense(tensor) and tensor.numel() * tensor.element_size() == memory.nbytes():
            self.note(tensor, values, basis)
        elif held is not None and held.memory.read() is not None:
            self.compute_postponed()
            with torch._C._DisableTorchDispatch():
                geometry.view_of(held.memory.read()).copy_(values)
            held.basis |= basis
        elif memory.nbytes() <= _MOST_OF_PARTS:
            self._write_part(memory, geometry, values, basis)

    def _write_part(
        self,
        memory: torch.UntypedStorage,
        geometry: Geometry,
        values: torch.Tensor,
        basis: Basis,
    ) -> None:
        parts, before = self._parts.get(memory._cdata, (None, KNOWN))
        if parts is None or not parts.belong_to(memory):
            parts, before = Parts(memory, geometry.dtype), KNOWN
        self._parts[memory._cdata] = parts, before | basis
        if parts.write(geometry, values):
            self._keep(memory, RealMemory(memory.nbytes(), parts.memory), before | basis)

    def drop_parts(self, tensor: torch.Tensor) -> None:
        """Forget the known parts of a storage that something else writes into."""
        if self._parts and tensor.layout is torch.strided:
            self._parts.pop(tensor.untyped_storage()._cdata, None)

    def share(self, tensor: torch.Tensor, held: Any) -> None:
        """Give a tensor's memory the values returned by `saved`: it stands for the same storage."""
        self._keep(tensor.untyped_storage(), held.memory, held.basis)

    def forget(self, tensor: torch.Tensor) -> None:
        """Forget the values of a tensor's storage."""
        if isinstance(tensor, FakeTensor) and tensor.layout is torch.strided:
            self._forget(tensor.untyped_storage())

    def forget_memory(self, memory: torch.UntypedStorage) -> None:
        """Forget the values of a storage."""
        self._forget(memory)

    @property
    def is_empty(self) -> bool:
        """Whether it has no values."""
        return not self._held

    def is_new(self, output: Any) -> bool:
        """Whether an output has memory of its own, which has no values yet."""
        return (
            isinstance(output, FakeTensor)
            and output.layout is torch.strided
            and is_dense(output)  # not zeros without memory, plus what is expanded
            and output.untyped_storage()._cdata not in self._held
        )

    def _keep(self, memory: torch.UntypedStorage, values: RealMemory, basis: Basis) -> None:
        self._parts.pop(memory._cdata, None)
        if self._captured is not None:
            self._forget(memory)
            return
        held = _Held(memory, self._drop)
        held.key, held.memory, held.basis = memory._cdata, values, basis
        self._held[held.key] = held

    def _forget(self, memory: torch.UntypedStorage) -> None:
        self._held.pop(memory._cdata, None)
        self._parts.pop(memory._cdata, None)
        if self._captured is not None:
            self._captured[memory._cdata] = weakref.ref(memory)

    def _drop(self, held: _Held) -> None:
        if self._held.get(held.key) is held:
            del self._held[held.key]
