"""Results as JSON that both people and programs can read."""

from __future__ import annotations

from typing import Any

import msgspec


def json_text(value: Any) -> str:
    """Encode a value as indented JSON that ends with a newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
