"""Find the line of a key in a TOML text, for messages; tomllib does not tell."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any


def line_of(text: str, keys: Sequence[str]) -> int:
    """The line, from 1, on which the value at `keys` begins.

    For a missing key, the line of the innermost existing table around it.
    """
    lines = text.splitlines()
    for depth in range(len(keys), 0, -1):
        line = _line_of(lines, keys[:depth])
        if line is not None:
            return line
    return 1


def _line_of(lines: list[str], keys: Sequence[str]) -> int | None:
    """The first line that defines a key: a table's header, or a value's key."""
    for first, line in enumerate(lines):
        if keys[-1] in line and _has(_parsed(lines[: _end_of_value(lines, first)]), keys):
            return first + 1
    return None


def _end_of_value(lines: list[str], first: int) -> int:
    """The number of lines up to the end of the value that begins on line `first`."""
    for end in range(first + 1, len(lines) + 1):
        if _parsed(lines[:end]) is not None:
            return end
    return len(lines)


def _parsed(lines: list[str]) -> dict[str, Any] | None:
    try:
        return tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError:
        return None


def _has(table: Any, keys: Sequence[str]) -> bool:
    for key in keys:
        if not isinstance(table, dict) or key not in table:
            return False
        table = table[key]
    return True
