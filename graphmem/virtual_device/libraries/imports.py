"""Intercept the import of a module while a context is open."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


@contextmanager
def executed_by(name: str, execute: Callable[[ModuleType], None]) -> Iterator[None]:
    """Let `execute` run the code of the module `name` when it is imported.

    Args:
        name: the module's full name.
        execute: called with the module; it runs the module's own code (`run_own_code`).
    """
    finder = _Finder(name, execute)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def run_own_code(module: ModuleType) -> None:
    """Run a module's code by its own loader, as `execute` of `executed_by` has to."""
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    module.__spec__.loader.exec_module(module)


@contextmanager
def prepared(
    name: str, prepare: Callable[[ModuleType], AbstractContextManager[None]]
) -> Iterator[None]:
    """Open a context with the module `name`, now if it is imported, and whenever it is.

    Args:
        name: the module's full name.
        prepare: makes the context, which stays open as long as this one.
    """
    with ExitStack() as stack:

        def execute(module: ModuleType) -> None:
            run_own_code(module)
            stack.enter_context(prepare(module))

        if name in sys.modules:
            stack.enter_context(prepare(sys.modules[name]))
        stack.enter_context(executed_by(name, execute))
        yield


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, execute: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._execute = execute

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as Python does, and wrap its loader."""
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._execute)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, own: importlib.abc.Loader, execute: Callable[[ModuleType], None]) -> None:
        self._own = own
        self._execute = execute

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module by its own loader."""
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Put the module's own loader back, then run its code."""
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._own
        self._execute(module)
