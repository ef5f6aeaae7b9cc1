"""The user's own source files, for the page's view of lines with their bytes.

A step names files; what lies there now may be another version, or another project's file. So a
file is taken only if each recorded line still has code, in the function that was recorded; an edit
within a line escapes this.
"""

from __future__ import annotations

import tokenize
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

from graphmem.frames import Origin, origin_of
from graphmem.graph import Source, StepGraph

_MOST_LETTERS = 400_000
"""Of all files together; the page stays small enough to be mailed."""


def source_files(graph: StepGraph) -> dict[str, str]:
    """The texts of the user's files, by the names that the step gives them.

    Those that allocate most come first; the rest is left out when the limit is reached.
    """
    lines: defaultdict[str, set[Source]] = defaultdict(set)
    nbytes: Counter[str] = Counter()
    for storage in graph.storages:
        source = None if storage.op is None else graph.ops[storage.op].source
        if source is not None:
            lines[source.file].add(source)
            nbytes[source.file] += storage.nbytes
    found: dict[str, str] = {}
    left = _MOST_LETTERS
    for file, _ in nbytes.most_common():
        text = _own_text(file)
        if text is not None and len(text) <= left and _is_same_code(text, lines[file]):
            found[file] = text
            left -= len(text)
    return found


def _own_text(file: str) -> str | None:
    """The text of a file that the user wrote; None for packages, and for what cannot be read."""
    path = Path.cwd() / file
    if path.suffix != ".py" or origin_of(str(path)) is not Origin.USER:
        return None
    try:
        with tokenize.open(path) as opened:
            return opened.read(_MOST_LETTERS + 1)
    except (OSError, SyntaxError, UnicodeError):
        return None


def _is_same_code(text: str, sources: set[Source]) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            code = compile(text, "<source>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
    return {(each.function, each.line) for each in sources} <= set(_lines(code))


def _lines(code: CodeType) -> Iterator[tuple[str, int]]:
    """Each line that computes something, with its function's name."""
    lines = {line for *_, line in code.co_lines() if line is not None}
    if len(lines) > 1 and not code.co_name.startswith("<"):
        lines.discard(code.co_firstlineno)  # `def` itself: a step names a line of the body
    yield from ((code.co_name, line) for line in lines)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines(constant)
