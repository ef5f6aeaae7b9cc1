"""PyTorch's profiler profiles the host only; there is no device to profile.

With `ProfilerActivity.CUDA` it would record CUDA events around each operation in a CPU build (with
an error each time), and need a driver in a CUDA build. Here it profiles the CPU only: device times
are 0 and device allocations are not shown (`memory._record_memory_history` has them).
"""

from __future__ import annotations

import functools
from typing import Any

from torch._C._profiler import ProfilerActivity, ProfilerState
from torch.autograd.profiler import profile

from graphmem.virtual_device.patching import Replacement


def profiler_replacements() -> list[Replacement]:
    """List the methods to replace."""
    return [(profile, "__init__", _host_only(profile.__init__))]


def _host_only(begin: Any) -> Any:
    @functools.wraps(begin)
    def init(profiler: Any, *args: Any, **kwargs: Any) -> None:
        begin(profiler, *args, **kwargs)
        if profiler.enabled and profiler.use_device == "cuda":
            profiler.use_device = None
            profiler.profiler_kind = ProfilerState.KINETO
            profiler.kineto_activities.discard(ProfilerActivity.CUDA)

    return init
