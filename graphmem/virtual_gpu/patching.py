"""Replace attributes for as long as a context is open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from graphmem.caller.turns import uninterrupted
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.manifest import check_replaced

Replacement = tuple[Any, str, Any]


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Set each `(owner, name, value)`, and put back what was there in reverse order.

    Raises:
        InputError: the installed PyTorch lacks one of its names.
        InternalError: a name of PyTorch has no row in `graphmem/torch_releases/`.
    """
    undo: list[Replacement] = []
    missing = object()
    try:
        for owner, name, value in replacements:
            check_replaced(owner, name, installed_release())
            undo.append((owner, name, vars(owner).get(name, missing)))
            setattr(owner, name, value)
        yield
    finally:
        with uninterrupted():
            for owner, name, value in reversed(undo):
                if value is missing:
                    delattr(owner, name)
                else:
                    setattr(owner, name, value)
