"""Modules, optimizers and their like: what hangs on their attributes.

Their containers are noted as they are, item by item, and plain objects by their attributes. Neither
keeps a module alive, nor a tensor that has moved to the card: the program may let go of them, and
the card's memory is free then. One that is gone by the end and belongs to one that is not is made
again from its attributes; nobody can tell, since nobody held it.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from graphmem.caller.tensors import Note, Tensors

_MAPPINGS = (dict, OrderedDict, defaultdict)
_SEQUENCES = (list, deque, set)
_NOT_LOOKED_INTO = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, partial)
_DEEPEST = 4
"""How many plain objects below a module's attributes are looked into, one inside the other."""


class Objects:
    """What objects held."""

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
        """Give back to each that is still there what it held."""
        for record in self._records.values():
            alive = record.ref()
            if alive is not None and record.attributes is not None:
                record.attributes.put_back(vars(alive))

    def _noted(self, value: Any, depth: int) -> Any:
        """What stands for a value in a note: itself where it cannot change."""
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
    """Whether an object is code, or torch's own."""
    return isinstance(value, _NOT_LOOKED_INTO) or type(value).__module__.startswith("torch.")


class _Items:
    """What a container held, in order: keys, where it has any, and values."""

    def __init__(self, keys: list[Any] | None, values: list[Any]) -> None:
        self.keys = keys
        self.values = values

    def put_back(self, container: Any) -> None:
        """Make a container hold this again; one that does is not touched."""
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
    """The value for which a note stands; what it held is put back first."""
    if isinstance(noted, Note):
        return noted.tensor()
    return noted.put_back() if isinstance(noted, _NOTES) else noted


class _Container:
    """A dict, a list, a set or a deque."""

    def __init__(self, container: Any) -> None:
        self.container = container
        self.items: _Items | None = None

    def put_back(self) -> Any:
        """The container, with what it held."""
        items, self.items = self.items, None
        if items is not None:
            items.put_back(self.container)
        return self.container


class _Plain:
    """An object of a class that is not known here."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.attributes: _Items | None = None

    def put_back(self) -> Any:
        """The object, with the attributes that it had."""
        attributes, self.attributes = self.attributes, None
        if attributes is not None:
            attributes.put_back(vars(self.value))
        return self.value


class _Tuple:
    """A tuple: it cannot change, what it holds can."""

    def __init__(self, value: tuple[Any, ...], items: list[Any]) -> None:
        self.value = value
        self.items = items

    def put_back(self) -> tuple[Any, ...]:
        """The tuple."""
        items, self.items = self.items, []
        for item in items:
            _was(item)
        return self.value


class _Record:
    """A module, an optimizer or their like, which may be gone before the end."""

    def __init__(self, value: Any) -> None:
        self.ref = weakref.ref(value, self._forget_containers)
        self.attributes: _Items | None = None
        self._kind: Any = type(value)
        self._again: Any = None

    def _forget_containers(self, ref: Any) -> None:
        """Its containers go with it; to hold them would hold what is in them."""
        for value in self.attributes.values if self.attributes is not None else ():
            if isinstance(value, _Container):
                value.container = _empty_like(value.container)

    def put_back(self) -> Any:
        """The object, made again if it is gone."""
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
