"""Random generators: the global ones of torch, Python and numpy, and the caller's own."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch

_Generator: Any = torch.Generator


class Generators:
    """The states of random generators, to restore later."""

    def __init__(self, found: Iterable[Any]) -> None:
        self._undo: list[Callable[[], object]] = []
        self._known: dict[int, Any] = {}
        self._note_global_ones()
        for each in found:
            self.before_draw(each)

    def before_draw(self, generator: Any) -> None:
        """Note the state of a generator that is about to draw."""
        if type(generator) is not _Generator or id(generator) in self._known:
            return
        self._known[id(generator)] = generator
        state = generator.get_state()
        self._undo.append(lambda: generator.set_state(state))

    def _note_global_ones(self) -> None:
        of_torch, of_python = torch.default_generator.get_state(), random.getstate()
        self._known[id(torch.default_generator)] = torch.default_generator
        self._undo.append(lambda: torch.default_generator.set_state(of_torch))
        self._undo.append(lambda: random.setstate(of_python))
        numpy: Any = sys.modules.get("numpy.random")
        if numpy is not None:
            of_numpy = numpy.get_state()
            self._undo.append(lambda: numpy.set_state(of_numpy))

    def put_back(self) -> None:
        """Restore the state of each generator."""
        for undo in self._undo:
            undo()


def generators_on_the_stack() -> list[Any]:
    """The generators in variables, arguments, closures and globals of the caller's functions."""
    frame: FrameType | None = sys._getframe(1)
    found: list[Any] = []
    seen: set[int] = set()
    while frame is not None:
        held = [*gc.get_referents(frame), *_globals_once(frame.f_globals, seen)]
        for value in held:
            found += _in_value(value)
        frame = frame.f_back
    return found


def _globals_once(names: dict[str, Any], seen: set[int]) -> list[Any]:
    if id(names) in seen:
        return []
    seen.add(id(names))
    return list(names.values())


def _in_value(value: Any) -> list[Any]:
    """The generators in a variable: the value itself, in a cell, or in a function's closure."""
    kind = type(value)
    if kind is _Generator:
        return [value]
    if kind.__name__ == "cell":
        return _in_cell(value)
    cells = getattr(value, "__closure__", None) if kind.__name__ == "function" else None
    return [each for cell in cells or () for each in _in_cell(cell)]


def _in_cell(cell: Any) -> list[Any]:
    try:
        inside = cell.cell_contents
    except ValueError:  # empty
        return []
    return [inside] if type(inside) is _Generator else []
