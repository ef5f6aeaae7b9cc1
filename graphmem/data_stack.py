"""Room for the Python frames of a deep program.

CPython keeps frames in chunks of 16 KiB and unmaps a chunk as soon as its first frame returns
(`push_chunk` and `_PyThreadState_PopFrame` in Python/pystate.c). A loop that calls a function
across the end of a chunk therefore maps memory, and faults on it, at each call: PyTorch's compiler
spends up to a third of its time so, depending on how deep it was called. A frame that is too large
for a chunk gets a chunk of its size, rounded up to a power of two; its callees share what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_SLOTS = (1 << 17) + 64
"""Of 8 bytes, more than half of 2 MiB: room for thousands of frames; only what is used costs."""


def with_room(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Wrap a function so that all that it calls finds room in one chunk."""

    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=_SLOTS)
    return wraps(function)(call)
