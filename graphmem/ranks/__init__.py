"""One rank of many: what a program finds of its process group while graphmem runs it alone.

Nothing goes over the network. Every other rank is taken to do what this one does, at the same
time, with the same values: an assumption that the report lists.
"""

from __future__ import annotations

from graphmem.ranks import ddp, dtensor, init
from graphmem.ranks.init import groups_taken_down
from graphmem.ranks.world import World
from graphmem.trace.recorder import Recorder
from graphmem.virtual_gpu.patching import Replacement

__all__ = ["World", "groups_taken_down", "replacements"]


def replacements(recorder: Recorder) -> list[Replacement]:
    """The attributes of `torch.distributed` to replace while a program runs."""
    return [*init.replacements(recorder), *ddp.replacements(), *dtensor.replacements()]
