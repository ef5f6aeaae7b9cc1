"""The packed objects that an autograd node keeps in its fields.

From torch 2.10 on, `_raw_saved_FIELD.data` returns them. Before, a field only shows what it unpacks
to, so the unpack hooks are made to return a stand-in that identifies the packed object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils._python_dispatch import _disable_current_modes

from graphmem import constructors
from graphmem.torch_releases import PACKED_TENSORS_CAN_BE_READ, installed_release

_RAW = "_raw_saved_"


class _OfThread(threading.local):
    """The requested objects, by their stand-in's storage; None if nobody is peeking."""

    asked_for: dict[int, tuple[Any, torch.Tensor]] | None = None


def names_of(node: Any) -> tuple[str, ...]:
    """The fields that a node exposes, such as "self" and "result"."""
    kind = type(node)
    names = _NAMES.get(kind)
    if names is None:
        raw = (name for name in dir(kind) if name.startswith(_RAW))
        names = _NAMES[kind] = tuple(name.removeprefix(_RAW) for name in raw)
    return names


_NAMES: WeakKeyDictionary[type, tuple[str, ...]] = WeakKeyDictionary()
"""By class: compiled code has one of its own, which goes with it."""


class SavedFields:
    """Reads the fields of nodes without unpacking them."""

    def __init__(self) -> None:
        self._of_thread = _OfThread()

    def packed_in(self, node: Any, field: str) -> Iterator[tuple[str, Any]]:
        """The packed objects in a field, each with its name, which has the position in a list.

        Raises:
            RuntimeError: the field was released, or the node is a Python function that saved none.
        """
        if PACKED_TENSORS_CAN_BE_READ.holds_in(installed_release()):
            held = getattr(node, f"{_RAW}{field}")
            raw = held if isinstance(held, tuple) else (held,)
            packed = [None if each is None else each.data for each in raw]
        else:
            held = self._peeked(node, field)
            packed = held if isinstance(held, list) else [held]
        is_list = isinstance(held, (tuple, list))
        for position, data in enumerate(packed):
            yield f"{field}[{position}]" if is_list else field, data

    def give_hooks(
        self,
        node: Any,
        pack: Callable[[str, torch.Tensor], Any],
        unpack: Callable[[Any], Any],
        needs: Callable[[torch.Tensor], bool],
    ) -> None:
        """Give hooks to tensors that a node saved without (`SavedVariable::register_hooks`).

        Args:
            node: the node.
            pack: packs a tensor of a field.
            unpack: unpacks what `pack` returned.
            needs: whether a tensor gets hooks. Numbers have none, or they would count as tensors.
        """
        for field in names_of(node):
            try:
                packed = list(self.packed_in(node, field))
                held = getattr(node, f"{_RAW}{field}")
            except RuntimeError:  # released before
                continue
            variables = held if isinstance(held, (tuple, list)) else (held,)
            for variable, (_, each) in zip(variables, packed, strict=True):
                if isinstance(each, torch.Tensor) and needs(each):
                    _give_hooks(variable, partial(pack, field), unpack)

    def tensors_of(self, node: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """What a node saved without hooks, with the names of its fields."""
        for field in names_of(node):
            try:
                shown = getattr(node, _shown(node, field))
            except RuntimeError:  # released before
                continue
            for each in shown if isinstance(shown, (tuple, list)) else [shown]:
                if isinstance(each, torch.Tensor):
                    yield field, each

    def stand_in_for(self, packed: Any) -> torch.Tensor | None:
        """The tensor that an unpack hook must return while a field is peeked at; else None."""
        asked_for = self._of_thread.asked_for
        if asked_for is None:
            return None
        # a transform of `torch.func` would wrap it, and its wrappers have no storage
        with torch._C._DisableFuncTorch(), torch._C._DisableTorchDispatch():
            stand_in = constructors.empty(0, device="cpu")
        asked_for[stand_in.untyped_storage()._cdata] = packed, stand_in
        return stand_in

    def _peeked(self, node: Any, field: str) -> Any:
        asked_for: dict[int, tuple[Any, torch.Tensor]] = {}
        self._of_thread.asked_for = asked_for
        try:
            with torch._C._DisableTorchDispatch():
                shown = getattr(node, _shown(node, field))
                items = list(shown) if isinstance(shown, (tuple, list)) else [shown]
                packed = [_asked_for(item, asked_for) for item in items]
        finally:
            self._of_thread.asked_for = None
        return packed if isinstance(shown, (tuple, list)) else packed[0]


def _give_hooks(variable: Any, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
    """The variable keeps the hooks, but not `pack`, which knows its node."""
    waiting = [pack]

    def pack_once(tensor: torch.Tensor) -> Any:
        return waiting.pop()(tensor)

    with _disable_current_modes():
        variable.register_hooks(pack_once, unpack)


def _shown(node: Any, field: str) -> str:
    """A C++ node has `_saved_FIELD`; a Python function has the public `saved_tensors`."""
    name = f"_saved_{field}"
    return name if hasattr(type(node), name) else f"saved_{field}"


def _asked_for(shown: Any, asked_for: dict[int, tuple[Any, torch.Tensor]]) -> Any:
    if not isinstance(shown, torch.Tensor):
        return None
    packed, _ = asked_for.get(shown.untyped_storage()._cdata, (shown, None))
    return packed
