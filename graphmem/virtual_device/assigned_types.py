"""Assign a class or all attributes to a tensor on the virtual GPU.

compressed-tensors moves a parameter by `moved = value.to(device)`, `moved.__class__ =
value.__class__` and `moved.__dict__ = value.__dict__.copy()` (compressed_tensors/offload/utils.py,
`send_tensors`). A fake tensor has a class of its own, and knows itself by its attributes.

(1) A fake tensor that is given a class becomes what a tensor of that class is on the card
    (`parameters.py`, `subclasses.py`). One on the host is of the program's class.
(2) It keeps the attributes that make it fake and those that graphmem notes, and no other tensor
    gets them.

`graphmem/asked_types.py` finds the assignments.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem import asked_types
from graphmem.caller.tensors import ATTRIBUTES
from graphmem.virtual_device import subclasses
from graphmem.virtual_device.parameters import fake_parameters, of_every_fake
from graphmem.virtual_device.patching import Replacement

_IS_PARAMETER = "_is_param"
_NOTHING: frozenset[str] = frozenset()


def replacements() -> list[Replacement]:
    """The attribute to replace."""
    return [(asked_types, "assign", _assign)]


def _assign(value: Any, name: str, new: Any) -> None:
    if not isinstance(value, torch.Tensor):
        setattr(value, name, new)
    elif name == "__class__":
        _take_class(value, new)
    else:
        _take_attributes(value, new)


def _take_class(tensor: torch.Tensor, kind: type) -> None:
    """Clause (1)."""
    if not isinstance(tensor, FakeTensor):
        tensor.__class__ = kind
    elif issubclass(kind, torch.nn.Parameter):
        tensor.__class__ = fake_parameters(kind)
        vars(tensor)[_IS_PARAMETER] = True
    elif kind is not torch.Tensor:
        subclasses.take_class(tensor, kind)


def _take_attributes(tensor: torch.Tensor, new: dict[str, Any]) -> None:
    """Clause (2)."""
    mode = new.get("fake_mode", getattr(tensor, "fake_mode", None))
    of_fakes = _NOTHING if mode is None else of_every_fake(mode)

    def is_own(name: str) -> bool:
        return name in of_fakes or name.startswith("_graphmem_")

    kept = {name: each for name, each in ATTRIBUTES.__get__(tensor).items() if is_own(name)}
    given = {name: each for name, each in new.items() if not is_own(name)}
    ATTRIBUTES.__set__(tensor, given | kept)
