"""Writes of kernels that do nothing here: what was known of the memory is forgotten.

PyTorch's dispatcher sees no launch of a kernel that a program or a library brings along.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from graphmem.values.held import HeldValues
from graphmem.virtual_device.fake_mode import VirtualFakeMode


def is_known(argument: Any) -> bool:
    """Whether an argument is a tensor whose values are known."""
    known = _values(argument)
    return known is not None and known.saved(argument) is not None


def forget(arguments: Iterable[Any]) -> None:
    """Forget the values of the tensors among a kernel's arguments, which it may have written."""
    for argument in arguments:
        known = _values(argument)
        if known is not None:
            known.forget(argument)


def _values(argument: Any) -> HeldValues | None:
    if not isinstance(argument, FakeTensor) or not isinstance(argument.fake_mode, VirtualFakeMode):
        return None
    return argument.fake_mode.known
