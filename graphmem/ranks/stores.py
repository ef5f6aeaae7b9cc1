"""Stores of keys without the network.

A store lacks what other ranks should have written: waiting for that is an error after a second.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed

_PATIENCE = timedelta(seconds=1)
_HashStore: Any = vars(torch.distributed)["HashStore"]


class LoneStore(_HashStore):  # type: ignore[misc]
    """A store that only this rank writes to."""

    def __init__(self) -> None:
        super().__init__()
        super().set_timeout(_PATIENCE)

    def set_timeout(self, timeout: timedelta) -> None:
        """Do nothing: no other rank will write, so waiting is pointless."""

    def wait(self, keys: list[str], timeout: timedelta = _PATIENCE) -> None:
        """Wait for keys, but not for long."""
        super().wait(keys, min(timeout, _PATIENCE))


class LoneTcpStore(LoneStore):
    """What `torch.distributed.TCPStore` makes: neither a server nor a client.

    Attributes:
        host, port: where the server would be.
        libuvBackend: whether libuv would serve it.
    """

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        *rest: Any,
        use_libuv: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.host = host_name
        self.port = port
        self.libuvBackend = use_libuv


class LoneFileStore(LoneStore):
    """What `torch.distributed.FileStore` makes: no file.

    Attributes:
        path: where the file would be.
    """

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        super().__init__()
        self.path = file_name
