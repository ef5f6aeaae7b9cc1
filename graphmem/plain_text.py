"""What is printed with rich, as plain text for files."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console

PLAIN_WIDTH = 100


def plain_text(show: Callable[[Console], None], width: int = PLAIN_WIDTH) -> str:
    """What `show` prints, without colour and as many columns wide."""
    buffer = io.StringIO()
    show(Console(file=buffer, width=width, highlight=False))
    return buffer.getvalue()
