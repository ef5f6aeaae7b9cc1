"""The line that calls a module, and whether it does so through `torch.utils.checkpoint`."""

from __future__ import annotations

import msgspec


class ModuleCall(msgspec.Struct, frozen=True):
    """The first call of a module, or its first checkpointed one.

    Attributes:
        source: the user's line; without one on the stack, that of a package; else None.
        checkpointed: whether `torch.utils.checkpoint` runs the module; a module inside a
            checkpointed one is not marked itself.
    """

    source: str | None
    checkpointed: bool
