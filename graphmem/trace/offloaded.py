"""`save_on_cpu`: what it keeps on the host goes back to the card, and no program reads it."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu

from graphmem.trace.reads import Reads
from graphmem.virtual_device.patching import Replacement


def replacement(reads: Reads) -> Replacement:
    """The attribute to replace.

    Args:
        reads: would list each copy to the host as a read.
    """
    make = save_on_cpu.__init__

    @wraps(make)
    def make_unseen(hooks: Any, *args: Any, **options: Any) -> None:
        make(hooks, *args, **options)
        pack = hooks.pack_hook

        def pack_unseen(tensor: torch.Tensor) -> Any:
            with reads.unseen():
                return pack(tensor)

        hooks.pack_hook = pack_unseen

    return save_on_cpu, "__init__", make_unseen
