"""Import the libraries whose own code makes a change."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from graphmem.changes.messages import PackageNeededError


def import_package(name: str, option: str) -> ModuleType:
    """Import a library that an option needs.

    Raises:
        InputError: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise PackageNeededError(option, error.name or name) from error
