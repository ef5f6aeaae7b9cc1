"""What PyTorch asks NVML about a card (`_get_pynvml_handler`, torch/cuda/__init__.py).

Logs print it, and the driver's library is not there. Work takes no time on the virtual card, so it
is idle: sensors read 0. The memory in use is what the driver has given away.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from graphmem.virtual_device.patching import Replacement

_SENSORS = ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate")


def sensors() -> list[Replacement]:
    """List the attributes of `torch.cuda` to replace."""
    cuda: Any = torch.cuda
    return [
        *((cuda, name, _idle(getattr(cuda, name))) for name in _SENSORS),
        (cuda, "device_memory_used", _memory_used),
    ]


def _idle(sensor: Callable[..., int]) -> Callable[..., int]:
    @wraps(sensor)
    def read(device: Any = None) -> int:
        torch.cuda.get_device_properties(device)  # or an error
        return 0

    return read


def _memory_used(device: Any = None) -> int:
    """The bytes of the card that are in use."""
    free, total = torch.cuda.mem_get_info(device)
    return total - free
