"""The parameters and buffers of TorchScript's modules.

Such a module holds a tensor's contents (`c10::TensorImpl`) in C++, and not its object: where an
object has swapped its contents, as one that moves to the virtual card, the module has to be given
the object again.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from graphmem.caller.tensors import TensorNote, Tensors

_SLOTS = ("_parameters", "_buffers")


class ScriptedModules:
    """Where scripted modules have which tensors."""

    def __init__(self, objects: Iterable[Any], tensors: Tensors) -> None:
        self._held: list[tuple[weakref.ref[torch.nn.Module], str, str, TensorNote]] = []
        for module in objects:
            if isinstance(module, torch.jit.ScriptModule):
                for slots in _SLOTS:
                    for name, tensor in vars(module).get(slots, {}).items():
                        note = None if tensor is None else tensors.note_of(tensor)
                        if note is not None:
                            self._held.append((weakref.ref(module), slots, name, note))

    def put_back(self) -> None:
        """Give each module its tensors, which have their own contents again."""
        for held_by, slots, name, note in self._held:
            module, tensor = held_by(), note.tensor()
            if module is not None and tensor is not None:
                vars(module)[slots][name] = tensor
