"""Replace attributes for as long as a context is open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from graphmem.caller.turns import uninterrupted
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.manifest import check_replaced

Replacement = tuple[Any, str, Any]
_replaced: dict[int, Any] = {}
"""What was there before, by the identity of what is there now."""


def original_of(value: Any) -> Any:
    """What a value replaces, however many times over; itself where it replaces nothing."""
    while id(value) in _replaced:
        value = _replaced[id(value)]
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
    missing = object()
    try:
        for owner, name, value in replacements:
            check_replaced(owner, name, installed_release())
            before = vars(owner).get(name, missing)
            undo.append((owner, name, before))
            setattr(owner, name, value)
            if callable(value) and before is not missing and before is not value:
                _replaced[id(value)] = before
                noted.append(id(value))
        yield
    finally:
        with uninterrupted():
            for identity in noted:
                _replaced.pop(identity, None)
            for owner, name, value in reversed(undo):
                if value is missing:
                    delattr(owner, name)
                else:
                    setattr(owner, name, value)
