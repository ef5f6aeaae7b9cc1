"""One rank of many: what a program finds of its process group while graphmem runs it alone.

Nothing goes over the network. Every other rank is taken to do what this one does, at the same
time, with the same values: an assumption that the report lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed

from graphmem.trace.recorder import Recorder
from graphmem.virtual_gpu.patching import Replacement

__all__ = ["groups_taken_down", "replacements"]


def replacements(recorder: Recorder) -> list[Replacement]:
    """The attributes of `torch.distributed` to replace while a program runs."""
    from graphmem.ranks import ddp, dtensor, fsdp2, init  # a build may lack what they import

    return [
        *init.replacements(recorder),
        *ddp.replacements(recorder),
        *dtensor.replacements(),
        *fsdp2.replacements(recorder),
    ]


@contextmanager
def groups_taken_down() -> Iterator[None]:
    """Take down the groups that a program has left when the context closes."""
    try:
        yield
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
