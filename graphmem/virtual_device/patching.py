"""Replace attributes for as long as a context is open."""

from __future__ import annotations

import functools
import importlib.util
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any

from graphmem.caller.turns import uninterrupted
from graphmem.errors import InternalError
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.manifest import check_replaced

Replacement = tuple[Any, str, Any]
_MISSING = object()
_open: dict[int, list[Replacement]] = {}
"""The previous values, one list per open context, by the list's identity; newest last."""
_functions: dict[int, tuple[Any, Any]] = {}
"""Replacement functions and the values they replaced, by the functions' identity."""


class Method:
    """A replacement of a tensor method that equals the original, so that tables find it.

    Classes with `__torch_function__` look up the function that C++ passes, which is the original;
    a table filled while the virtual card is on has this one instead.
    """

    def __init__(self, original: Any, call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._original = getattr(original, "_original", original)
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the replacement."""
        return self._call(*args, **kwargs)

    def __get__(self, tensor: Any, kind: Any = None) -> Any:
        return self if tensor is None else MethodType(self._call, tensor)

    def __hash__(self) -> int:
        return hash(self._original)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original


def original_of(value: Any) -> Any:
    """Return the original that a value replaces, through any number of replacements, or itself."""
    while id(value) in _functions:
        _, value = _functions[id(value)]
    return value


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Set each `(owner, name, value)`, and restore the previous values in reverse order.

    Raises:
        InputError: the installed PyTorch lacks one of its names.
        InternalError: a name of PyTorch has no row in `graphmem/torch_releases/`.
    """
    undo: list[Replacement] = []
    noted: list[int] = []
    _open[id(undo)] = undo
    try:
        for owner, name, value in replacements:
            check_replaced(owner, name, installed_release())
            before = vars(owner).get(name, _MISSING)
            undo.append((owner, name, before))
            _name_after(value, getattr(owner, name, None), name)
            setattr(owner, name, value)
            if callable(value) and before is not _MISSING and original_of(before) is not value:
                _functions[id(value)] = value, before
                noted.append(id(value))
        yield
    finally:
        del _open[id(undo)]
        with uninterrupted():
            for identity in noted:
                _functions.pop(identity, None)
            for owner, name, value in reversed(undo):
                _put(owner, name, value)


@contextmanager
def suspended(chosen: Callable[[Any, str], bool] = lambda owner, name: True) -> Iterator[None]:
    """Restore the originals while the context is open, as for importing a module.

    Args:
        chosen: whether to restore an owner's name.
    """
    stand_ins: list[Replacement] = []
    for undo in reversed(_open.values()):
        for owner, name, value in reversed(undo):
            if chosen(owner, name):
                stand_ins.append((owner, name, vars(owner).get(name, _MISSING)))
                _put(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in reversed(stand_ins):
            _put(owner, name, value)


def stand_ins() -> Iterator[tuple[Any, Any]]:
    """Yield every function that is replaced now, with its replacement."""
    for value, _ in list(_functions.values()):
        yield original_of(value), value


def _name_after(value: Any, before: Any, name: str) -> None:
    """Name a function of ours as what it replaces: Thunder looks PyTorch's up by their names."""
    if isinstance(value, FunctionType) and value.__module__.partition(".")[0] == "graphmem":
        value.__name__ = getattr(before, "__name__", name)
        value.__qualname__ = getattr(before, "__qualname__", value.__name__)


def _put(owner: Any, name: str, value: Any) -> None:
    if value is not _MISSING:
        setattr(owner, name, value)
    elif name in vars(owner):  # it is not if the originals are already restored
        delattr(owner, name)


def run_again(module: ModuleType) -> ModuleType:
    """Execute a module's source again, over the replacements in force, as another module."""
    spec = importlib.util.find_spec(module.__name__)
    if spec is None or spec.loader is None:
        raise InternalError(f"{module.__name__} has no source")
    again = importlib.util.module_from_spec(spec)
    with replaced([(typing, "overload", lambda function: function)]):  # whose list would keep it
        spec.loader.exec_module(again)
    return again
