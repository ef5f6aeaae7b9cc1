"""A pickle that must not be loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

TRACE = Path("/tmp/graphmem-was-here")


class RunsSomething:
    """Loading its pickle leaves `TRACE`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {TRACE}",))
