"""Replace attributes for as long as a context is open."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import MethodType, ModuleType
from typing import Any

from graphmem.caller.turns import uninterrupted
from graphmem.errors import InternalError
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.manifest import check_replaced

Replacement = tuple[Any, str, Any]
_MISSING = object()
_open: dict[int, list[Replacement]] = {}
"""What was there before, by the identity of its list: one for each context, the newest last."""
_functions: dict[int, tuple[Any, Any]] = {}
"""Functions that stand in for others and what was there before, by their identity."""


class Method:
    """A method of tensors that is found where the one is that it stands in for.

    Classes with `__torch_function__` look in tables for the function that C++ names, which is the
    original; a table that is filled on the virtual card has this in its place.
    """

    def __init__(self, original: Any, call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._original = getattr(original, "_original", original)
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What stands in for the method."""
        return self._call(*args, **kwargs)

    def __get__(self, tensor: Any, kind: Any = None) -> Any:
        return self if tensor is None else MethodType(self._call, tensor)

    def __hash__(self) -> int:
        return hash(self._original)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original


def original_of(value: Any) -> Any:
    """What a value replaces, however many times over; itself where it replaces nothing."""
    while id(value) in _functions:
        _, value = _functions[id(value)]
    return value


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Set each `(owner, name, value)`, and put back what was there in reverse order.

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
            setattr(owner, name, value)
            if callable(value) and before is not _MISSING and before is not value:
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
    """Put back what was there while the context is open, as for a module that is imported in it.

    Args:
        chosen: whether an owner's name is put back.
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
    """Every function that is replaced now, with what stands in for it."""
    for value, _ in list(_functions.values()):
        yield original_of(value), value


def _put(owner: Any, name: str, value: Any) -> None:
    if value is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def run_again(module: ModuleType) -> ModuleType:
    """Another module of the same source, made of what is replaced now."""
    spec = importlib.util.find_spec(module.__name__)
    if spec is None or spec.loader is None:
        raise InternalError(f"{module.__name__} has no source")
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    return again
