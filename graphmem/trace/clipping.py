"""The assumption about a norm by which DeepSpeed clips gradients: it is 1.0.

Its optimizer for bfloat16 multiplies the gradients, in place, only if the norm on the card exceeds
what is allowed (`clip_tensors_by_global_norm`, deepspeed/runtime/utils.py of 0.19.8). Any other
number that only a real run knows is taken as 1.0 as well where a program reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from types import ModuleType
from typing import Any

import torch

from graphmem import constructors
from graphmem.trace.reads import Reads
from graphmem.values.rules import Rule
from graphmem.virtual_device.libraries.imports import prepared
from graphmem.virtual_device.patching import replaced

_RULE = Rule("the norm of all gradients", "1.0", "the card does no arithmetic")


def known(reads: Reads) -> AbstractContextManager[None]:
    """Assume norms while the context is open."""

    def prepare(utils: ModuleType) -> AbstractContextManager[None]:
        clip = _clipping(utils.clip_tensors_by_global_norm, reads)
        return replaced([(utils, "clip_tensors_by_global_norm", clip)])

    return prepared("deepspeed.runtime.utils", prepare)


def _clipping(clip: Callable[..., Any], reads: Reads) -> Callable[..., Any]:
    @wraps(clip)
    def clipping(*args: Any, global_norm: torch.Tensor | None = None, **kwargs: Any) -> Any:
        if isinstance(global_norm, torch.Tensor):
            with torch._C._DisableTorchDispatch():  # this is not the program's operation
                norm = constructors.full(global_norm.shape, 1.0, device="cpu")
            reads.known.assume(global_norm, norm, _RULE)
        return clip(*args, global_norm=global_norm, **kwargs)

    return clipping
