"""What autograd saves as it is, and what `.data =` does to it.

Autograd saves the variable itself, unless that is a result of the saving node (`saved_original_`,
torch/csrc/autograd/saved_variable.cpp). So assigning to its `data` (`VariableHooks::set_data`,
torch/csrc/autograd/variable.cpp) changes what is saved: the old memory is freed, as by DeepSpeed's
ZeRO-3 once a layer has run, and the node computes with the new one. And a function written in
Python gets the leaf from `ctx.saved_tensors`, with its attributes, such as `main_grad`.

A token holds neither, so each leaf's tokens are listed here. Not covered: tensors that hold others,
and the identity of real tensors on the CPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction
from torch.utils.weak import WeakTensorKeyDictionary

from graphmem.graph import OwnerKind
from graphmem.trace.proxies import is_own_fake
from graphmem.trace.recorder import Recorder
from graphmem.trace.saved_token import PENDING, SavedToken
from graphmem.trace.saved_variables import keepers_of
from graphmem.values.known import KnownValues
from graphmem.virtual_device.notes import NOTHING, Note
from graphmem.virtual_device.patching import Replacement

_LEAF = "_graphmem_leaf"


class SavedLeaves:
    """The tokens of each leaf that is saved, for as long as both exist."""

    def __init__(self, recorder: Recorder, known: KnownValues) -> None:
        self._recorder = recorder
        self._known = known
        self._tokens: Any = WeakTensorKeyDictionary()

    def note(self, saved: SavedToken, leaf: torch.Tensor) -> None:
        """Note that a token stands for a leaf."""
        tokens = self._tokens.get(leaf)
        if tokens is None:
            tokens = self._tokens[leaf] = weakref.WeakSet()
        tokens.add(saved)
        saved.leaf = weakref.ref(leaf)

    def note_unpacked(self, saved: SavedToken, alias: torch.Tensor) -> None:
        """Note that a tensor stands for the leaf of a token."""
        if saved.leaf is not None:
            setattr(alias, _LEAF, Note(saved.leaf))

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

        def assign(tensor: torch.Tensor, new: torch.Tensor) -> None:
            tokens = [*self._tokens.get(tensor, ()), *keepers_of(tensor)]
            data.__set__(tensor, new)
            self._renew(tokens, tensor)

        def of_function(node: Any) -> Any:
            held = saved_tensors.__get__(node)
            return held and tuple(map(_leaf_of, held))

        return [
            (torch.Tensor, "data", property(data.__get__, assign)),
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


def _leaf_of(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The leaf that an unpacked tensor stands for, or itself."""
    leaf = getattr(tensor, _LEAF, NOTHING).value
    found: torch.Tensor | None = None if leaf is None else leaf()
    return tensor if found is None else found
