"""Libraries that ask whether a tensor is a fake one, and then take the way of an export.

`transformers` does from its fifth version on (`is_fake_tensor`, transformers/utils/import_utils):
it then builds attention masks that a run leaves out, and does without what it reads from a tensor.
A step on the virtual card is a run, so it is told no.

The function is replaced once the program has loaded it: graphmem imports no transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from graphmem.virtual_gpu.patching import Replacement

_MODULE = "transformers.utils.import_utils"


def is_loaded() -> bool:
    """Whether the program has loaded the library that asks."""
    return hasattr(sys.modules.get(_MODULE), "is_fake_tensor")


def replacements() -> Iterator[Replacement]:
    """The attribute to replace."""
    asking: Any = sys.modules[_MODULE]
    yield asking, "is_fake_tensor", _never


def _never(value: object) -> bool:
    return False
