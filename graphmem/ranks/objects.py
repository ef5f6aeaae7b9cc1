"""Objects that one rank sends to all, so that the others receive that rank's own values.

`broadcast_object_list` and `scatter_object_list` send pickled objects and their lengths through
`broadcast` and `scatter` of their own module. Nothing else calls them there: programs call those of
`torch.distributed`. A receiving rank has no values of its own to take instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import distributed_c10d

from graphmem.ranks.error_messages import RankDoesNotRunError
from graphmem.ranks.group import Mail
from graphmem.virtual_device.patching import Replacement


def replacements(mail: Mail) -> list[Replacement]:
    """List the functions to replace."""
    broadcast, scatter = distributed_c10d.broadcast, distributed_c10d.scatter

    def broadcast_values(tensor: torch.Tensor, *, group_src: int, group: Any) -> None:
        broadcast(tensor, group_src=group_src, group=group)
        sent = [tensor] * group.size() if group.rank() == group_src else None
        _exchange(mail, group, group_src, sent, tensor)

    def scatter_values(
        tensor: torch.Tensor, scatter_list: Any = None, *, group_src: int, group: Any
    ) -> None:
        scatter(tensor, scatter_list, group_src=group_src, group=group)
        _exchange(mail, group, group_src, scatter_list, tensor)

    return [
        (distributed_c10d, "broadcast", broadcast_values),
        (distributed_c10d, "scatter", scatter_values),
    ]


def _exchange(
    mail: Mail, group: Any, source: int, sent: list[torch.Tensor] | None, received: torch.Tensor
) -> None:
    rank = group.rank()
    if sent is not None:
        for other in range(group.size()):
            if other != rank:
                mail.send(group, other, sent[other])
    elif not mail.expect(group, source, received)():
        raise RankDoesNotRunError(rank, source)
