"""What autograd saves as it is, and what `.data =` does to it.

Autograd saves the variable itself, unless that is a result of the saving node (`saved_original_`,
torch/csrc/autograd/saved_variable.cpp). So assigning to its `data` (`VariableHooks::set_data`,
torch/csrc/autograd/variable.cpp) changes what is saved: the old memory is freed, as by DeepSpeed's
ZeRO-3 once a layer has run, and the node computes with the new one; so does `set_`. And a function
written in Python gets the leaf from `ctx.saved_tensors`, with its attributes, such as `main_grad`.

A token holds neither, so each leaf's tokens are listed here. What it is unpacked as would be a leaf
that accumulates gradients; a view that a function made without gradients is none: it requires a
gradient as its base does, and no graph leads to it (`DifferentiableViewMeta::requires_grad`,
torch/csrc/autograd/variable.h). Not covered: tensors that hold others, and views of this kind that
PyTorch's own nodes save.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from graphmem.graph import OwnerKind
from graphmem.trace.proxies import is_own_fake
from graphmem.trace.recorder import Recorder
from graphmem.trace.saved_token import PENDING, SavedToken
from graphmem.trace.saved_variables import keepers_of
from graphmem.values.known import KnownValues
from graphmem.virtual_device.patching import Method, Replacement


class _OfThread(threading.local):
    """What is being unpacked for a function written in Python."""

    tokens: list[SavedToken] | None = None


class SavedLeaves:
    """The tokens of each leaf that is saved, for as long as both exist."""

    def __init__(self, recorder: Recorder, known: KnownValues) -> None:
        self._recorder = recorder
        self._known = known
        self._tokens: Any = WeakTensorKeyDictionary()
        self._unpacked = _OfThread()

    def note(self, saved: SavedToken, leaf: torch.Tensor) -> None:
        """Note that a token stands for a leaf."""
        tokens = self._tokens.get(leaf)
        if tokens is None:
            tokens = self._tokens[leaf] = weakref.WeakSet()
        tokens.add(saved)
        saved.leaf = weakref.ref(leaf)

    def note_unpacked(self, saved: SavedToken) -> None:
        """Note that a token was unpacked."""
        if self._unpacked.tokens is not None:
            self._unpacked.tokens.append(saved)

    def describe(
        self, saved: SavedToken, tensor: torch.Tensor, owner: str, wrapper: Any = None
    ) -> None:
        """Have a token stand for a tensor, whose memory it owns from now on.

        Args:
            saved: the token.
            tensor: the tensor.
            owner: the owner's name.
            wrapper: what to unpack in the tensor's place, if that is not the tensor.
        """
        if is_own_fake(tensor):
            saved.payload = tensor if wrapper is None else wrapper
            return
        storage, _ = self._recorder.observe(tensor, None)
        if wrapper is not None:
            saved.payload = wrapper
        elif isinstance(tensor, FakeTensor):
            saved.geometry = (tensor.shape, tensor.stride(), tensor.dtype, tensor.fake_device)
            saved.pending = tuple(view for is_set, view in PENDING if is_set(tensor))
            saved.made_by = self._recorder.maker_of(tensor)
            saved.values = self._known.saved(tensor)
            saved.offset = int(tensor.storage_offset())
        else:
            saved.payload = tensor
        if storage is not None:
            saved.storage = storage
            saved.owner = self._recorder.own(storage, OwnerKind.SAVED_TENSOR, owner)

    def replacements(self) -> list[Replacement]:
        """The attributes to replace."""
        data: Any = torch.Tensor.data
        saved_tensors: Any = BackwardCFunction.saved_tensors

        set_memory: Any = torch.Tensor.set_

        def assign(tensor: torch.Tensor, new: torch.Tensor) -> None:
            tokens = [*self._tokens.get(tensor, ()), *keepers_of(tensor)]
            data.__set__(tensor, new)
            self._renew(tokens, tensor)

        def set_to(tensor: torch.Tensor, *source: Any, **named: Any) -> torch.Tensor:
            tokens = [*self._tokens.get(tensor, ()), *keepers_of(tensor)]
            result: torch.Tensor = set_memory(tensor, *source, **named)
            self._renew(tokens, tensor)
            return result

        def of_function(node: Any) -> Any:
            outer, self._unpacked.tokens = self._unpacked.tokens, []
            try:
                held = saved_tensors.__get__(node)
                tokens = self._unpacked.tokens
            finally:
                self._unpacked.tokens = outer
            return held and _as_saved(held, tokens)

        return [
            (torch.Tensor, "data", property(data.__get__, assign)),
            (torch.Tensor, "set_", Method(set_memory, set_to)),
            (BackwardCFunction, "saved_tensors", property(of_function)),
        ]

    def _renew(self, tokens: Iterable[Any], tensor: torch.Tensor) -> None:
        for saved in tokens:
            if saved.is_released or saved.hooks or saved.parts:
                continue
            owner = "" if saved.owner is None else saved.owner.name
            saved.let_go()
            saved.storage = saved.owner = saved.geometry = saved.payload = saved.values = None
            self.describe(saved, tensor, owner)


def requires_grad_by_base(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view without a history or an edge of its own."""
    if not (tensor.is_leaf and tensor.requires_grad and tensor._is_view()):
        return False
    with _disable_current_modes(), torch.enable_grad():
        node = tensor.view_as(tensor).grad_fn
    return node is not None and node.next_functions[0][0] is None


def _as_saved(held: Sequence[torch.Tensor | None], tokens: Sequence[SavedToken]) -> Any:
    """What a function has saved, for what was unpacked in its place."""
    found = [each for each in held if each is not None]
    if len(found) != len(tokens):  # only looked at (`SavedFields`)
        return held
    saved = iter(tokens)
    return tuple(each if each is None else _original(each, next(saved)) for each in held)


def _original(unpacked: torch.Tensor, saved: SavedToken) -> torch.Tensor:
    leaf = None if saved.leaf is None else saved.leaf()
    if leaf is not None or not saved.is_of_base:
        return unpacked if leaf is None else leaf
    with _disable_current_modes():
        base = unpacked.detach().requires_grad_()
        with torch.no_grad():
            return base.view_as(base)
