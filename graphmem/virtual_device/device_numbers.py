"""`torch.device(0)`: a number means a device of the accelerator, of which a CPU build has none.

`THPDevice_pynew` (torch/csrc/Device.cpp) asks `at::getAccelerator` (`toDevice`,
torch/csrc/utils/python_arg_parser.h), which asks the CUDA library. The class `torch.device` is
immutable, and nothing may stand in for it: programs compare `type(x)` with it, and pickles name it.
So its metaclass is changed, whose `__call__` runs first. Python forbids to assign the class of such
a class, but it is the second word of every object (`struct _object`, CPython's
Include/object.h).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_TYPE_OF_OBJECT = object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)


class _Numbered(type):
    """The class of `torch.device` while there is a virtual card."""

    __slots__ = ()
    __module__ = vars(type)["__module__"]  # that of `torch.device`, not of its class

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a device."""
        only = args[0] if len(args) == 1 and not kwargs else kwargs.get("device")
        if type(only) is int and len(args) + len(kwargs) == 1 and only >= 0:
            return super().__call__("cuda", only)
        return super().__call__(*args, **kwargs)


@contextmanager
def device_numbers() -> Iterator[None]:
    """Let numbers mean CUDA devices while the context is open."""
    kind = ctypes.c_void_p.from_address(id(torch.device) + _TYPE_OF_OBJECT)
    before = kind.value
    kind.value = id(_Numbered)
    try:
        yield
    finally:
        kind.value = before
