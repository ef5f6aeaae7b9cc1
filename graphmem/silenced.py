"""Keep a library from logging what it also raises, or what does not matter here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from logging import Logger


@contextmanager
def silenced(logger: Logger) -> Iterator[None]:
    """Disable a logger while the context is open."""
    was_silent, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_silent
