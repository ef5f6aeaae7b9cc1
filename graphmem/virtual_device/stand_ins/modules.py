"""Modules made of a stand-in's functions."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MARK = "__graphmem_stand_in__"


def made(name: str, held: Mapping[str, Any]) -> ModuleType:
    """A package of this name with these contents, and no files."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    vars(module).update(held, **{_MARK: True})
    return module


def is_made(module: ModuleType) -> bool:
    """Whether a module is one of those."""
    return hasattr(module, _MARK)
