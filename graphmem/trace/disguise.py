"""Libraries that check for fake tensors, and then take the code path of an export.

`transformers` does from version 5 on (`is_fake_tensor`, transformers/utils/import_utils): it then
builds attention masks that a run leaves out, and skips reading values off tensors. A step on the
virtual card is a run, so the check returns False. The function is replaced as soon as the program
has loaded it, since `generate` asks before it calls a module: graphmem itself does not import
transformers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import ModuleType

from graphmem.virtual_device.libraries.imports import prepared
from graphmem.virtual_device.patching import replaced

_MODULE = "transformers.utils.import_utils"
_CHECK = "is_fake_tensor"


def worn() -> AbstractContextManager[None]:
    """Answer the check with False, as soon as the program has loaded it."""
    return prepared(_MODULE, _prepare)


def _prepare(asking: ModuleType) -> AbstractContextManager[None]:
    return replaced([(asking, _CHECK, _never)] if hasattr(asking, _CHECK) else [])


def _never(value: object) -> bool:
    return False
