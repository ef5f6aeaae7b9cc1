"""Attributes by which a program hides a tensor's methods, such as GPT-NeoX's `weight.stride = 1`.

On a card nothing notices: C++ asks no object for its methods. Fake tensors are described in Python,
by PyTorch and here. So once an operation fails because a name is hidden, PyTorch's and graphmem's
own code finds the method by it, all others what the program has put there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch

from graphmem.trace.dispatch import TraceMode
from graphmem.trace.operands import tensors_of

_OWN = frozenset({"torch", "graphmem"})


class HiddenMethodsMode(TraceMode):
    """A trace that finds methods of tensors that the program has hidden.

    Attributes:
        uncovered: the methods found so, until it is closed.
    """

    def __init__(self, *watchers: Any) -> None:
        super().__init__(*watchers)
        self.uncovered = ExitStack()

    def _run(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return super()._run(func, types, args, kwargs)
        except TypeError:  # "'int' object is not callable": programs that hide nothing lose no time
            hidden = _hidden_by(tensors_of((args, *kwargs.values())))
            if not hidden:
                raise
        for name in hidden:
            setattr(torch.Tensor, name, _Method(name))
            self.uncovered.callback(delattr, torch.Tensor, name)
        return super()._run(func, types, args, kwargs)


def _hidden_by(tensors: Iterable[torch.Tensor]) -> set[str]:
    """The methods that attributes of these tensors hide."""
    of_class = vars(torch._C.TensorBase)
    attributes = {name for each in tensors for name in vars(each)} - vars(torch.Tensor).keys()
    return {name for name in attributes if callable(of_class.get(name))}


class _Method:
    """Stands in for a method of tensors, some of which have an attribute of that name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._method: Any = getattr(torch.Tensor, name)

    def __get__(self, tensor: torch.Tensor | None, kind: type) -> Any:
        if tensor is None:
            return self._method
        if self._name in vars(tensor):
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller.partition(".")[0] not in _OWN:
                return vars(tensor)[self._name]
        return self._method.__get__(tensor, kind)

    def __set__(self, tensor: torch.Tensor, value: object) -> None:
        vars(tensor)[self._name] = value

    def __delete__(self, tensor: torch.Tensor) -> None:
        del vars(tensor)[self._name]
