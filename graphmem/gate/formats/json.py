"""JSON format for programs: schema `graphmem.check/1`."""

from __future__ import annotations

import msgspec

from graphmem.gate.check import Check
from graphmem.json_text import json_text


def as_json(check: Check) -> str:
    """The outcome as indented JSON, with its exit code."""
    table = {**msgspec.to_builtins(check), "exit_code": check.exit_code}
    return json_text(table)
