"""`batch_isend_irecv` on the card: one work for all messages, as NCCL coalesces them.

The function coalesces only groups whose type is exactly `ProcessGroup`
(torch/distributed/distributed_c10d.py of 2.11); for others it returns a work for each message.
"""

from __future__ import annotations

from typing import Any

import torch.distributed
from torch.distributed import distributed_c10d

from graphmem.ranks.group import LoneGroup
from graphmem.virtual_device.patching import Replacement


def replacements() -> list[Replacement]:
    """List the functions to replace."""
    one_by_one = distributed_c10d.batch_isend_irecv

    def batch_isend_irecv(p2p_op_list: Any) -> Any:
        group = _group_on_card(p2p_op_list)
        if group is None:
            return one_by_one(p2p_op_list)
        group._start_coalescing()
        try:
            one_by_one(p2p_op_list)
        finally:
            work = group._end_coalescing()
        return [work]

    return [
        (module, "batch_isend_irecv", batch_isend_irecv)
        for module in (distributed_c10d, torch.distributed)
    ]


def _group_on_card(messages: Any) -> LoneGroup | None:
    """The group of a list of messages, if NCCL sends them."""
    if not isinstance(messages, list) or not messages:
        return None
    first = messages[0]
    if not isinstance(first, distributed_c10d.P2POp) or not first.tensor.is_cuda:
        return None
    group: Any = first.group or distributed_c10d._get_default_group()
    return group if isinstance(group, LoneGroup) else None
