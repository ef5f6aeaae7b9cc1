"""The variable that keeps a storage alive, through containers and autograd's graph.

The search starts at names: the variables of the running functions, the globals of their modules,
the attributes of models. From there it follows lists, tuples, sets, dicts and the attributes of
objects to tensors, and from each tensor its gradient function's graph to what autograd saved there.
The first name that reaches a storage is its holder.

Not covered: containers nested deeper than `DEPTH`, and objects that only C++ holds.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import torch

from graphmem.frames import is_program
from graphmem.graph import Source
from graphmem.trace.location import Location
from graphmem.trace.naming import variables_of
from graphmem.trace.recorder import Recorder
from graphmem.trace.retaining_lines import Function, retaining_line
from graphmem.trace.saved_tensors import SavedTensorHooks

DEPTH = 4
_PLAIN = (str, bytes, int, float, type(None), type, ModuleType)


class Variable(NamedTuple):
    """A variable of a file: a global, or a local one of a function."""

    name: str
    file: str
    function: Function | None


@dataclass(frozen=True)
class Referrer:
    """A variable, and the line that stores objects in it."""

    name: str
    source: Source | None

    def __str__(self) -> str:
        return f"`{self.name}`" if self.source is None else f"`{self.name}` ({self.source})"


@dataclass(frozen=True)
class Retention:
    """How a storage is held.

    Attributes:
        by: the variable.
        through_graph: whether it holds a tensor whose autograd graph holds the storage.
    """

    by: Referrer
    through_graph: bool


def holders_of(
    wanted: Iterable[int], recorder: Recorder, saved: SavedTensorHooks, location: Location
) -> dict[int, Retention]:
    """The holder of each storage, by id, except for storages that no name reaches."""
    search = _Search(set(wanted), recorder, saved)
    for variable, value in named_values(location):
        if not search.missing:
            break
        search.look(variable, value)
    return search.found


class _Search:
    """A search that visits each object and each node once."""

    def __init__(self, missing: set[int], recorder: Recorder, saved: SavedTensorHooks) -> None:
        self.missing = missing
        self.found: dict[int, Retention] = {}
        self._recorder = recorder
        self._saved = saved
        self._seen: set[int] = set()
        self._nodes: set[Any] = set()

    def look(self, variable: Variable, value: Any) -> None:
        """Follow one named value."""
        tensors = list(_tensors_below(value, DEPTH, self._seen))
        for tensor in tensors:
            storage = self._recorder.storage_of(tensor)
            if storage is not None:
                self._found(storage.id, variable, through_graph=False)
        for tensor in tensors:
            if tensor.grad_fn is not None:
                self._follow(tensor.grad_fn, variable)

    def _follow(self, node: Any, variable: Variable) -> None:
        stack = [node]
        while stack:
            node = stack.pop()
            if node in self._nodes:
                continue
            self._nodes.add(node)
            for storage in self._saved.storages_of(node):
                self._found(storage.id, variable, through_graph=True)
            stack += [following for following, _ in node.next_functions if following is not None]

    def _found(self, storage: int, variable: Variable, *, through_graph: bool) -> None:
        if storage in self.missing:
            self.missing.discard(storage)
            name, file, function = variable
            line = retaining_line(file, name, of_function=function)
            self.found[storage] = Retention(Referrer(name, line), through_graph)


def named_values(location: Location) -> Iterator[tuple[Variable, Any]]:
    """Each variable with its value; variables that outlive a function come first."""
    frames = list(location.user_frames())
    names = ["__main__", *(frame.f_globals.get("__name__", "") for frame in frames)]
    for module in map(_module, dict.fromkeys(names)):
        if module is not None:
            for name, value in list(vars(module).items()):
                yield Variable(name, str(module.__file__), None), value
    for frame in reversed(frames):
        for name, value in variables_of(frame).items():
            yield Variable(name, frame.f_code.co_filename, Function.of(frame)), value


def modules_of_functions(error: BaseException | None) -> Iterator[torch.nn.Module]:
    """Modules in the variables of the program's functions that an error ended, outermost first."""
    for frame, _ in traceback.walk_tb(error.__traceback__ if error is not None else None):
        if is_program(frame.f_code.co_filename):
            for value in variables_of(frame).values():
                if isinstance(value, torch.nn.Module):
                    yield value


def _module(name: str) -> ModuleType | None:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return module if file is not None and is_program(file) else None


def _tensors_below(value: Any, depth: int, seen: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif not isinstance(value, _PLAIN) and depth and id(value) not in seen:
        seen.add(id(value))
        for item in _items(value):
            yield from _tensors_below(item, depth - 1, seen)


def _items(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    module = getattr(type(value), "__module__", "")
    if module.partition(".")[0] in ("torch", "graphmem", "builtins"):
        return []
    return list(getattr(value, "__dict__", {}).values())
