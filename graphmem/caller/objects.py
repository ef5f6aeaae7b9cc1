"""The attributes of modules, optimizers and the like.

Containers are noted item by item, and plain objects by their attributes. The notes keep neither a
module alive nor a tensor that has moved to the card: if the program drops them, their memory on the
card is freed. A module that is gone by the end, but belongs to one that still exists, is rebuilt
from its attributes; nobody can tell the difference, since nobody held it.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from graphmem.caller.tensors import TensorNote, Tensors

_MAPPINGS = (dict, OrderedDict, defaultdict)
_SEQUENCES = (list, deque, set)
_NOT_LOOKED_INTO = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, partial)
_DEEPEST = 4
"""How many levels of nested plain objects below a module's attributes are noted."""


class Objects:
    """The attributes that objects had."""

    def __init__(self, found: Iterable[Any], tensors: Tensors) -> None:
        found = list(found)
        self._tensors = tensors
        self._seen: dict[int, Any] = {}
        self._records = {id(each): _Record(each) for each in found}
        for each in found:
            record = self._records[id(each)]
            record.attributes = self._items_of(vars(each), _DEEPEST)
        self._seen.clear()

    def put_back(self) -> None:
        """Restore class and attributes of each object that still exists."""
        for record in self._records.values():
            alive = record.ref()
            if alive is not None and record.attributes is not None:
                record.attributes.put_back(vars(alive))
                record.restore_class(alive)

    def _noted(self, value: Any, depth: int) -> Any:
        """The note of a value: the value itself if it cannot change."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        if isinstance(value, torch.Tensor):
            note = self._tensors.note_of(value)
            if note is None:
                return value
            note.held = value
            return note
        record = self._records.get(id(value))
        if record is not None:
            return record
        if kind is tuple:
            return _Tuple(value, [self._noted(each, depth) for each in value])
        if kind in _MAPPINGS or kind in _SEQUENCES:
            return self._container(value, depth)
        if depth and hasattr(value, "__dict__") and not _is_left_alone(value):
            return self._plain_object(value, depth - 1)
        return value

    def _container(self, value: Any, depth: int) -> Any:
        known = self._seen.get(id(value))
        if known is None:
            known = self._seen[id(value)] = _Container(value)
            known.items = self._items_of(value, depth)
        return known

    def _plain_object(self, value: Any, depth: int) -> Any:
        known = self._seen.get(id(value))
        if known is None:
            known = self._seen[id(value)] = _Plain(value)
            known.attributes = self._items_of(vars(value), depth)
        return known

    def _items_of(self, container: Any, depth: int) -> _Items:
        if type(container) in _MAPPINGS:
            keys = [self._noted(key, depth) for key in container]
            return _Items(keys, [self._noted(value, depth) for value in container.values()])
        return _Items(None, [self._noted(value, depth) for value in container])


_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device})


def _is_left_alone(value: Any) -> bool:
    """Whether an object is code, or one of torch's."""
    return isinstance(value, _NOT_LOOKED_INTO) or type(value).__module__.startswith("torch.")


class _Items:
    """The contents of a container, in order: keys, if it has any, and values."""

    def __init__(self, keys: list[Any] | None, values: list[Any]) -> None:
        self.keys = keys
        self.values = values

    def put_back(self, container: Any) -> None:
        """Restore a container's contents; an unchanged container is not touched."""
        values = [_was(value) for value in self.values]
        if self.keys is None:
            if not _are_same(list(container), values):
                container.clear()
                (container.update if isinstance(container, set) else container.extend)(values)
            return
        keys = [_was(key) for key in self.keys]
        if not _are_same([*container, *container.values()], [*keys, *values]):
            container.clear()
            container.update(zip(keys, values, strict=True))


def _are_same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(_is, now, before))


def _is(one: Any, other: Any) -> bool:
    return one is other


def _was(noted: Any) -> Any:
    """The value for which a note stands, with its contents restored."""
    if isinstance(noted, TensorNote):
        return noted.tensor()
    return noted.put_back() if isinstance(noted, _NOTES) else noted


class _Container:
    """A dict, a list, a set or a deque."""

    def __init__(self, container: Any) -> None:
        self.container = container
        self.items: _Items | None = None

    def put_back(self) -> Any:
        """Restore the contents; returns the container."""
        items, self.items = self.items, None
        if items is not None:
            items.put_back(self.container)
        return self.container


class _Plain:
    """An object of any other class."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.attributes: _Items | None = None

    def put_back(self) -> Any:
        """Restore the attributes; returns the object."""
        attributes, self.attributes = self.attributes, None
        if attributes is not None:
            attributes.put_back(vars(self.value))
        return self.value


class _Tuple:
    """A tuple: it cannot change, but its items can."""

    def __init__(self, value: tuple[Any, ...], items: list[Any]) -> None:
        self.value = value
        self.items = items

    def put_back(self) -> tuple[Any, ...]:
        """Restore the items; returns the tuple."""
        items, self.items = self.items, []
        for item in items:
            _was(item)
        return self.value


class _Record:
    """A module, an optimizer or the like, which may be gone by the end."""

    def __init__(self, value: Any) -> None:
        self.ref = weakref.ref(value, self._forget_containers)
        self.attributes: _Items | None = None
        self._kind: Any = type(value)
        self._again: Any = None

    def restore_class(self, value: Any) -> None:
        """Undo what `parametrize` and the first call of a lazy module do to a module's class."""
        if type(value) is not self._kind:
            value.__class__ = self._kind

    def _forget_containers(self, ref: Any) -> None:
        """Drop the contents of its containers, which holding the containers would keep alive."""
        for value in self.attributes.values if self.attributes is not None else ():
            if isinstance(value, _Container):
                value.container = _empty_like(value.container)

    def put_back(self) -> Any:
        """Return the object, rebuilt if it is gone."""
        value = self.ref()
        if value is None:
            value = self._again
        if value is None:
            value = self._again = self._kind.__new__(self._kind)
            if self.attributes is not None:
                self.attributes.put_back(vars(value))
        return value


_NOTES = (_Container, _Plain, _Tuple, _Record)


def _empty_like(container: Any) -> Any:
    if isinstance(container, defaultdict):
        return defaultdict(container.default_factory)
    if isinstance(container, deque):
        return deque(maxlen=container.maxlen)
    return type(container)()
