"""`torch.distributed.rpc`, whose calls run in processes that do not exist here.

`init_rpc` opens a TCP store and waits half an hour for the others, deaf to signals.
"""

from __future__ import annotations

from typing import Any

from torch.distributed import rpc

from graphmem.ranks.error_messages import RemoteCallsError
from graphmem.virtual_device.patching import Replacement


def replacements() -> list[Replacement]:
    """List the functions to replace; none in a build without RPC."""
    return [(rpc, "init_rpc", _reject)] if rpc.is_available() else []


def _reject(*arguments: Any, **options: Any) -> None:
    raise RemoteCallsError()
