"""Results as JSON for people to look into and machines to read."""

from __future__ import annotations

from typing import Any

import msgspec


def json_text(value: Any) -> str:
    """What msgspec can encode, as indented JSON that ends with a line break."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
