"""Change environment variables of this process for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment(wanted: Mapping[str, str | None]) -> Iterator[None]:
    """Set these variables while the context is open, then restore them.

    None: the variable is not set.
    """
    before = {name: os.environ.get(name) for name in wanted}
    _set(wanted)
    try:
        yield
    finally:
        _set(before)


def _set(wanted: Mapping[str, str | None]) -> None:
    for name, text in wanted.items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text
