"""Libraries that check for fake tensors, and then take the code path of an export.

`transformers` does from version 5 on (`is_fake_tensor`, transformers/utils/import_utils): it then
builds attention masks that a run leaves out, and skips reading values off tensors. A step on the
virtual card is a run, so the check returns False. The function is replaced as soon as the program
has loaded it, since `generate` asks before it calls a module: graphmem itself does not import
transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from graphmem.virtual_device.libraries.imports import executed_by, run_own_code
from graphmem.virtual_device.patching import Replacement

_MODULE = "transformers.utils.import_utils"


def is_loaded() -> bool:
    """Whether the program has loaded the library that checks."""
    return hasattr(sys.modules.get(_MODULE), "is_fake_tensor")


def when_loaded(call: Callable[[], None]) -> AbstractContextManager[None]:
    """Call a function once the program has loaded the library, while a context is open."""

    def load(module: ModuleType) -> None:
        run_own_code(module)
        call()

    return executed_by(_MODULE, load)


def replacements() -> Iterator[Replacement]:
    """The attribute to replace."""
    asking: Any = sys.modules[_MODULE]
    yield asking, "is_fake_tensor", _never


def _never(value: object) -> bool:
    return False
