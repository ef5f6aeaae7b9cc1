"""Objects that ranks send: pickled as they are of real tensors, and received with their values.

`broadcast_object_list` and `scatter_object_list` send pickled objects and their lengths through
`broadcast` and `scatter` of their own module, `all_gather_object` and `gather_object` through
`all_gather`, from 2.15 on `all_gather_single`, and `gather`. Nothing else calls them there with
what `_object_to_tensor` returns: programs call those of `torch.distributed`. A rank that is sent an
object has no values of its own to take instead; of what is gathered, it takes its own for ranks
that do not run.

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
from graphmem.ranks.journal import Journal
from graphmem.ranks.mail import Mail
from graphmem.virtual_device.patching import Replacement


def replacements(mail: Mail, journal: Journal) -> list[Replacement]:
    """List the functions to replace."""
    broadcast, scatter = distributed_c10d.broadcast, distributed_c10d.scatter
    all_gather, gather = distributed_c10d.all_gather, distributed_c10d.gather

    to_tensor: Any = distributed_c10d._object_to_tensor

    def object_to_tensor(*args: Any) -> Any:
        tensor, size = to_tensor(*args)
        mail.keep(tensor)
        mail.keep(size)
        return tensor, size

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
        if group.rank() == group_src:
            mail.write_own(tensor, scatter_list[group_src])
        _exchange(mail, group, group_src, scatter_list, tensor)

    def all_gather_values(outputs: Any, sent: torch.Tensor, group: Any = None) -> None:
        group = group or distributed_c10d._get_default_group()
        with journal.arriving(mail.are_beside(group)):
            all_gather(outputs, sent, group=group)
        mail.meet(group, sent, outputs)

    def gather_values(
        sent: torch.Tensor, gather_list: Any = None, *, group_dst: int, group: Any
    ) -> None:
        with journal.arriving(mail.are_beside(group)):
            gather(sent, gather_list, group_dst=group_dst, group=group)
        mail.meet(group, sent, gather_list or ())

    def all_gather_single_values(
        output: torch.Tensor, sent: torch.Tensor, group: Any = None, async_op: bool = False
    ) -> Any:
        if not mail.keeps(sent):  # of `all_gather_into_tensor`
            return all_gather_single(output, sent, group, async_op)
        group = group or distributed_c10d._get_default_group()
        with journal.arriving(mail.are_beside(group)):
            all_gather_single(output, sent, group)
        mail.meet(group, sent, output.chunk(group.size()))
        return None

    all_gather_single: Any = vars(distributed_c10d).get("all_gather_single")  # since 2.14
    single = [(distributed_c10d, "all_gather_single", all_gather_single_values)]
    return [
        *(single if all_gather_single else ()),
        (distributed_c10d, "broadcast", broadcast_values),
        (distributed_c10d, "scatter", scatter_values),
        (distributed_c10d, "all_gather", all_gather_values),
        (distributed_c10d, "gather", gather_values),
        (distributed_c10d, "_object_to_tensor", object_to_tensor),
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
    elif not mail.expect(group, source, received, has_room=True)():
        raise RankDoesNotRunError(rank, source)
