r"""Safe text output: no name can move the cursor, change colours or hide what follows.

Names of modules, files and targets come from the code under analysis, or from an untrusted report;
they may contain escape sequences. All printing goes through this `Console` or `visible`, which
write such characters in JSON's notation, `\u001b`.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, TextIO

import rich.console
from rich.segment import Segment

PLAIN_WIDTH = 100
_TRAILING_BLANKS = re.compile(" +$", re.MULTILINE)

# Controls except tab and line feed (C0, DEL, C1), marks that change the writing direction (Unicode
# Standard Annex #9), and lone surrogates, which stand for bytes that are not UTF-8.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The text with controls escaped; a JSON document stays valid and means the same."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Console(rich.console.Console):
    """A console that prints only its own controls, and `net.py:100:` as a place, not an emoji.

    Where it does not print to a terminal, lines end without the blanks that fill rich's tables.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(emoji=False, **options)

    def render(
        self, renderable: Any, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render like rich, with the controls in texts escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print like rich, into a file or a pipe without trailing blanks."""
        is_terminal = getattr(self.file, "isatty", bool)()  # without FORCE_COLOR, unlike rich's
        if is_terminal or self.is_jupyter or self._buffer_index:  # the last: it is being captured
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(_TRAILING_BLANKS.sub("", captured.get()))
        self.file.flush()


def width_for(stream: TextIO, piped: int = PLAIN_WIDTH) -> int | None:
    """The width of text on a stream: COLUMNS if it is set, a terminal's (None), else `piped`."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    return None if stream.isatty() else piped


def plain_text(show: Callable[[Console], None], width: int = PLAIN_WIDTH) -> str:
    """The output of `show`, without colour or trailing blanks, at this width."""
    buffer = io.StringIO()
    show(Console(file=buffer, width=width, highlight=False, color_system=None, force_jupyter=False))
    return buffer.getvalue()
