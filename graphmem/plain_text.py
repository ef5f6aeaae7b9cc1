r"""Text that only shows: nothing that a name holds moves the cursor, colours or hides what follows.

Names of modules, files and targets come from the code under analysis, or from a report that a
stranger made; they may hold escape sequences. What is printed goes through `Console` here or
`visible`, which write such characters as JSON does, `\u001b`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from typing import Any

import rich.console
from rich.segment import Segment

PLAIN_WIDTH = 100

# Controls but tab and line feed (C0, DEL, C1), marks that turn the direction of writing (Unicode
# Standard Annex #9), and halves of surrogate pairs, which stand for bytes that are not UTF-8.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The text with controls written out; a JSON document stays one and means the same."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Console(rich.console.Console):
    """A console whose controls are its own."""

    def render(
        self, renderable: Any, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As rich does it, with the controls of texts written out."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def plain_text(show: Callable[[Console], None], width: int = PLAIN_WIDTH) -> str:
    """What `show` prints, without colour and as many columns wide."""
    buffer = io.StringIO()
    show(Console(file=buffer, width=width, highlight=False))
    return buffer.getvalue()
