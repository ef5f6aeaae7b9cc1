"""Objects that ranks send: pickled as they are of real tensors, and received with their values.

`broadcast_object_list` and `scatter_object_list` send pickled objects and their lengths through
`broadcast` and `scatter` of their own module. Nothing else calls them there: programs call those of
`torch.distributed`. A receiving rank has no values of its own to take instead.

Up to torch 2.11 the stages of a pipeline send meta tensors, to tell each other shapes.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._utils import _rebuild_meta_tensor_no_storage
from torch.distributed import distributed_c10d

from graphmem.ranks.error_messages import RankDoesNotRunError
from graphmem.ranks.group import Mail
from graphmem.ranks.journal import Journal
from graphmem.virtual_device.patching import Replacement


def replacements(mail: Mail, journal: Journal) -> list[Replacement]:
    """List the functions to replace."""
    broadcast, scatter = distributed_c10d.broadcast, distributed_c10d.scatter

    def broadcast_values(tensor: torch.Tensor, *, group_src: int, group: Any) -> None:
        with journal.arriving():
            broadcast(tensor, group_src=group_src, group=group)
        sent = [tensor] * group.size() if group.rank() == group_src else None
        _exchange(mail, group, group_src, sent, tensor)

    def scatter_values(
        tensor: torch.Tensor, scatter_list: Any = None, *, group_src: int, group: Any
    ) -> None:
        with journal.arriving():
            scatter(tensor, scatter_list, group_src=group_src, group=group)
        _exchange(mail, group, group_src, scatter_list, tensor)

    return [
        (distributed_c10d, "broadcast", broadcast_values),
        (distributed_c10d, "scatter", scatter_values),
        (distributed_c10d, "_pickler", _Pickler),
    ]


class _Pickler(pickle.Pickler):
    """Writes a fake meta tensor as PyTorch writes a meta tensor, to the same number of bytes.

    torch/_tensor.py, `Tensor._reduce_ex_internal`.
    """

    def reducer_override(self, obj: Any) -> Any:
        """How to make the object again; `NotImplemented` if it says so itself."""
        if not isinstance(obj, FakeTensor) or not obj.is_meta:
            return NotImplemented
        looks = (obj.dtype, tuple(obj.shape), obj.stride(), obj.requires_grad)
        return _rebuild_meta_tensor_no_storage, looks


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
