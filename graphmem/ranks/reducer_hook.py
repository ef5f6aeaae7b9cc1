"""The hook of DistributedDataParallel's reducer on a parameter's `AccumulateGrad`."""

from __future__ import annotations

import weakref
from typing import Any, Protocol


class _Reducer(Protocol):
    def gradient_is_ready(self, index: int) -> None: ...


class ReducerHook:
    """Keeps neither the reducer nor its parameters, as `~Reducer` removes its hooks."""

    def __init__(self, reducer: _Reducer, index: int, *, is_for_python: bool) -> None:
        """Make the hook of a parameter.

        Args:
            reducer: what to tell.
            index: the parameter's.
            is_for_python: whether hooks in Python reduce under compiled autograd.
        """
        self._reducer = weakref.ref(reducer)
        self._index = index
        self._is_for_python = is_for_python

    def __call__(self, *_: Any) -> None:
        """Tell the reducer, if it is still there."""
        alive = self._reducer()
        if alive is not None:
            alive.gradient_is_ready(self._index)

    def when_compiled(self) -> None:
        """Do nothing in compiled autograd's graph (`Reducer::Reducer`, c10d/reducer.cpp).

        Raises:
            RuntimeError: PyTorch's, unless hooks in Python reduce.
        """
        if not self._is_for_python:
            raise RuntimeError(
                "Compiled autograd is not compatible with C++ DDP Reducer, please use "
                'torch._dynamo.config.optimize_ddp="python_reducer".'
            )
