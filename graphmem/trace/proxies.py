"""A program on the card that calls `make_fx`, whose mode notes operations before they run.

The mode is below those of a program wherever it was entered, so the trace hands operations to it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

_MODE = torch._C._TorchDispatchModeKey.PROXY


def is_noting() -> bool:
    """Whether `make_fx` notes operations now."""
    return torch._C._get_dispatch_mode(_MODE) is not None


def noted(
    trace: AbstractContextManager[Any], func: Any, types: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Let `make_fx` note an operation, and run it in the trace."""
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    mode: Any = torch._C._get_dispatch_mode(_MODE)
    with disable_proxy_modes_tracing(), trace:
        return mode.__torch_dispatch__(func, types, args, kwargs)
