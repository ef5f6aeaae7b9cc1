"""Output formats of a check, one module for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from graphmem.gate.check import Check
from graphmem.gate.formats.github import as_github
from graphmem.gate.formats.json import as_json
from graphmem.gate.formats.junit import as_junit
from graphmem.gate.formats.markdown import as_markdown
from graphmem.gate.formats.sarif import as_sarif
from graphmem.gate.formats.text import as_text

FORMATS: Mapping[str, Callable[[Check], str]] = MappingProxyType(
    {
        "text": as_text,
        "json": as_json,
        "markdown": as_markdown,
        "github": as_github,
        "junit": as_junit,
        "sarif": as_sarif,
    }
)

__all__ = ["FORMATS"]
