"""The hooks for saved tensors that are on in a thread, innermost last, and setting them aside.

Since torch 2.8 PyTorch tells them (`_top_saved_tensors_default_hooks`, torch/csrc/autograd/
init.cpp). Before, all who push and pop them from Python are watched.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import SAVED_TENSOR_HOOKS_CAN_BE_READ
from graphmem.virtual_device.patching import Replacement

_autograd: Any = torch._C._autograd
_PUSH, _POP = "_push_saved_tensors_default_hooks", "_pop_saved_tensors_default_hooks"


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []


_of_thread = _OfThread()


def watched() -> list[Replacement]:
    """The functions to replace before the first hooks are pushed."""
    if SAVED_TENSOR_HOOKS_CAN_BE_READ.holds_in(installed_release()):
        return []
    push, pop = getattr(_autograd, _PUSH), getattr(_autograd, _POP)

    def push_and_note(pack: Any, unpack: Any) -> None:
        push(pack, unpack)
        _of_thread.pairs.append((pack, unpack))

    def pop_and_note() -> None:
        pop()
        _of_thread.pairs.pop()

    return [(_autograd, _PUSH, push_and_note), (_autograd, _POP, pop_and_note)]


@contextmanager
def set_aside() -> Iterator[None]:
    """Do without hooks while the context is open."""
    hooks = []
    while (pair := _innermost()) is not None:
        hooks.append(pair)
        _autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)


def _innermost() -> tuple[Any, Any] | None:
    if SAVED_TENSOR_HOOKS_CAN_BE_READ.holds_in(installed_release()):
        found: tuple[Any, Any] | None = _autograd._top_saved_tensors_default_hooks(True)
        return found
    return _of_thread.pairs[-1] if _of_thread.pairs else None
