"""PyTorch's profiler sees what the host does; of the device there is nothing to see.

Asked for `ProfilerActivity.CUDA`, it would record CUDA's events around each operation in a CPU
build (with an error for each), and ask for a driver in a CUDA build. Here it profiles the CPU
alone: times on the device are 0, allocations of the device are not shown
(`memory._record_memory_history` has them).
"""

from __future__ import annotations

import functools
from typing import Any

from torch._C._profiler import ProfilerActivity, ProfilerState
from torch.autograd.profiler import profile

from graphmem.virtual_gpu.patching import Replacement


def profiler_replacements() -> list[Replacement]:
    """The methods to replace."""
    return [(profile, "__init__", _on_the_host_alone(profile.__init__))]


def _on_the_host_alone(begin: Any) -> Any:
    @functools.wraps(begin)
    def init(profiler: Any, *args: Any, **kwargs: Any) -> None:
        begin(profiler, *args, **kwargs)
        if profiler.use_device == "cuda":
            profiler.use_device = None
            profiler.profiler_kind = ProfilerState.KINETO
            profiler.kineto_activities.discard(ProfilerActivity.CUDA)

    return init
