"""Keep autograd's saved tensors apart from Python's: autograd holds a token, not the tensor.

`torch.autograd.graph.saved_tensors_hooks` lets a pack hook replace what autograd keeps
(torch/csrc/autograd/saved_variable.cpp). Keeping a token means that a tensor's fake memory dies
when Python lets go of it, while the token's life is that of autograd's ownership. Unpacking makes
a fake tensor of the same geometry whose memory stands for the same storage.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from graphmem.graph import Owner, OwnerKind, Storage
from graphmem.trace.recorder import Recorder

Hook = Callable[[Any], Any]


class SavedTensor:
    """What autograd holds in place of a tensor. `owner` ends when autograd lets go."""

    __slots__ = ("__weakref__", "_clock", "geometry", "owner", "payload", "storage")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.storage: Storage | None = None
        self.owner: Owner | None = None
        self.geometry: tuple[Any, ...] | None = None
        self.payload: Any = None

    def release(self) -> None:
        """Let go, as `Node::release_variables` does."""
        self.payload = None
        if self.owner is not None and self.owner.end is None:
            self.owner.end = self._clock()

    def __del__(self) -> None:
        self.release()


class SavedTensors:
    """Packs and unpacks saved tensors, and releases them node by node."""

    def __init__(self, recorder: Recorder, fake_mode: FakeTensorMode) -> None:
        self._recorder = recorder
        self._fake_mode = fake_mode
        self._by_node: dict[int, list[weakref.ref[SavedTensor]]] = {}
        self._fields: dict[type, tuple[str, ...]] = {}
        self._unpacked: list[list[SavedTensor]] = []

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Install the hooks; those that the user's code pushes are wrapped, not replaced."""
        manager = torch.autograd.graph.saved_tensors_hooks
        enter = manager.__enter__

        def enter_wrapped(hooks: Any) -> None:
            torch._C._autograd._push_saved_tensors_default_hooks(
                self._wrapped_pack(hooks.pack_hook), self._wrapped_unpack(hooks.unpack_hook)
            )

        with manager(self._pack, self._unpack):
            manager.__enter__ = enter_wrapped  # type: ignore[method-assign]
            try:
                yield
            finally:
                manager.__enter__ = enter  # type: ignore[method-assign]
                self._forget()

    def _forget(self) -> None:
        """What autograd still holds when the trace ends has no end in it."""
        for known in itertools.chain.from_iterable(self._by_node.values()):
            saved = known()
            if saved is not None:
                saved.owner = None

    def _pack(self, tensor: torch.Tensor) -> SavedTensor:
        saved = self._new_token()
        storage, _ = self._recorder.observe(tensor, None)
        if isinstance(tensor, FakeTensor):
            saved.geometry = (tensor.shape, tensor.stride(), tensor.dtype, tensor.fake_device)
        else:
            saved.payload = tensor
        if storage is not None:
            saved.storage = storage
            saved.owner = self._recorder.own(storage, OwnerKind.SAVED_TENSOR, "")
        return saved

    def _unpack(self, saved: SavedTensor) -> torch.Tensor:
        if self._unpacked:
            self._unpacked[-1].append(saved)
        if saved.geometry is None:
            tensor: torch.Tensor = saved.payload
            return tensor
        shape, stride, dtype, device = saved.geometry
        with torch._C._DisableTorchDispatch():
            memory = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        alias = FakeTensor(self._fake_mode, memory, device)
        if saved.storage is not None:
            self._recorder.alias(alias, saved.storage)
        return alias

    def _wrapped_pack(self, pack: Hook) -> Hook:
        def pack_into_token(tensor: torch.Tensor) -> SavedTensor:
            saved = self._new_token()
            saved.payload = pack(tensor)
            return saved

        return pack_into_token

    def _wrapped_unpack(self, unpack: Hook) -> Hook:
        def unpack_from_token(saved: SavedTensor) -> torch.Tensor:
            if self._unpacked:
                self._unpacked[-1].append(saved)
            tensor: torch.Tensor = unpack(saved.payload)
            return tensor

        return unpack_from_token

    def _new_token(self) -> SavedTensor:
        saved = SavedTensor(self._recorder.next_tick)
        # Autograd makes a node before it saves for it, so the newest node is the one that saves.
        newest = torch._C._autograd._get_sequence_nr() - 1
        self._by_node.setdefault(newest, []).append(weakref.ref(saved))
        return saved

    @contextmanager
    def running(self, node: Any, *, release: bool) -> Iterator[None]:
        """Run one node; afterwards everything that it saved is released, unless kept."""
        self._name_owners(node)
        self._unpacked.append([])
        try:
            yield
        finally:
            unpacked = self._unpacked.pop()
        if release:
            for known in self._by_node.pop(node._sequence_nr(), ()):
                saved = known()
                if saved is not None:
                    saved.release()
            for saved in unpacked:
                saved.release()

    def _name_owners(self, node: Any) -> None:
        """Name what a node saved after the node and the field, such as `GeluBackward0.self`."""
        for field in self._fields_of(node):
            try:
                held = getattr(node, f"{_RAW}{field}")
            except RuntimeError:  # released before, or a Python function without saved tensors
                continue
            for raw in held if isinstance(held, tuple) else (held,):
                saved = raw.data if raw is not None else None
                if isinstance(saved, SavedTensor) and saved.owner is not None:
                    saved.owner.name = f"{node.name()}.{field}"

    def _fields_of(self, node: Any) -> tuple[str, ...]:
        kind = type(node)
        if kind not in self._fields:
            names = (name.removeprefix(_RAW) for name in dir(kind) if name.startswith(_RAW))
            self._fields[kind] = tuple(names)
        return self._fields[kind]


_RAW = "_raw_saved_"
