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
    known = values_of(argument)
    return known is not None and known.saved(argument) is not None


def forget(arguments: Iterable[Any]) -> None:
    """Forget the values of the tensors among a kernel's arguments, which it may have written."""
    for argument in arguments:
        known = values_of(argument)
        if known is not None:
            known.forget(argument)


def values_of(argument: Any) -> HeldValues | None:
    """Who follows the values of a tensor on the virtual card; None if nobody does."""
    if not isinstance(argument, FakeTensor) or not isinstance(argument.fake_mode, VirtualFakeMode):
        return None
    return argument.fake_mode.known
