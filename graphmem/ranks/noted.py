"""A group that notes each collective, with the tensors that all ranks must have alike.

Which those are is what PyTorch compares under `TORCH_DISTRIBUTED_DEBUG=DETAIL`: the operation, and
of its tensors the number, types and sizes (`CollectiveFingerPrint` in
torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp of 2.13). Sizes may differ in `alltoall`, in
coalesced collectives, and in lists of unequal tensors.

A message is noted by the rank that sends it and by the one that receives it. NCCL requires "the
same datatype and the same count" (`ncclSend`, nccl.h), but PyTorch itself sends an int64 to a
float32 (up to 2.9, `_get_init_p2p_neighbors_ops`, torch/distributed/pipelining/stage.py), so the
type is not compared. `ProcessGroupNCCL::send` ignores the tag, gloo does not.

Of the sizes only the number of elements matters, which is all that NCCL is told: `input.numel()` in
`allreduce_impl`, `broadcast`, `reduce`, `allgather` and `_allgather_base`, `output.numel()` in
`reduce_scatter` and `_reduce_scatter_base` (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp),
`inputs.numel()` in `gather` and `outputs.numel()` in `scatter` (torch/csrc/cuda/nccl.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import utils
from torch.distributed.fsdp import _init_utils as fsdp

from graphmem.ranks import exchanges
from graphmem.ranks.group import LoneGroup
from graphmem.ranks.journal import Group, Journal
from graphmem.ranks.sizes import check_rank
from graphmem.virtual_device.patching import Replacement

Tensors = Sequence[torch.Tensor]
Alike = tuple[Tensors, Tensors]
"""The tensors that a rank gives in, and those that all ranks must have alike."""


def _all(tensors: Tensors | torch.Tensor, *rest: Any) -> Alike:
    listed = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    return listed, listed


def _single(output: torch.Tensor, sent: torch.Tensor, *rest: Any) -> Alike:
    return [sent], [sent]


def _both(output: torch.Tensor, sent: torch.Tensor, *rest: Any) -> Alike:
    return [sent], [sent, output]


def _uneven(output: torch.Tensor, sent: torch.Tensor, *rest: Any) -> Alike:
    return [sent], []


def _coalesced(outputs: Any, inputs: Tensors = (), *rest: Any) -> Alike:
    return inputs if isinstance(inputs, list) else outputs, []


def _gathered(outputs: Sequence[Tensors], inputs: Tensors, *rest: Any) -> Alike:
    return inputs, inputs if _are_even(outputs) else []


def _to_root(outputs: Sequence[Tensors], inputs: Tensors, *rest: Any) -> Alike:
    return inputs, inputs


def _from_root(outputs: Tensors, inputs: Sequence[Tensors], *rest: Any) -> Alike:
    return [each for parts in inputs for each in parts], outputs


def _scattered(outputs: Tensors, inputs: Sequence[Tensors], *rest: Any) -> Alike:
    given = [each for parts in inputs for each in parts]
    return given, outputs if _are_even(inputs) else []


def _nothing(*arguments: Any) -> Alike:
    return [], []


def _are_even(lists: Sequence[Tensors]) -> bool:
    return len({each.shape for each in lists[-1]}) == 1 if lists else True


_NOTED: dict[str, tuple[str, Callable[..., Alike]]] = {
    "allreduce": ("all_reduce", _all),
    "allreduce_coalesced": ("all_reduce_coalesced", _coalesced),
    "reduce": ("reduce", _all),
    "broadcast": ("broadcast", _all),
    "barrier": ("barrier", _nothing),
    "monitored_barrier": ("monitored_barrier", _nothing),
    "allgather": ("all_gather", _gathered),
    "all_gather_single": ("all_gather_into_tensor", _single),
    "all_gather_single_coalesced": ("all_gather_into_tensor_coalesced", _coalesced),
    "allgather_coalesced": ("all_gather_coalesced", _coalesced),
    "gather": ("gather", _to_root),
    "scatter": ("scatter", _from_root),
    "reduce_scatter": ("reduce_scatter", _scattered),
    "reduce_scatter_single": ("reduce_scatter_tensor", _both),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced", _coalesced),
    "all_to_all_single": ("all_to_all_single", _uneven),
    "alltoall": ("all_to_all", _coalesced),
}


class NotedGroup(LoneGroup):
    """The ranks of a group, seen from one that runs beside others."""

    journal: Journal
    key: Group

    def note(self, operation: str, alike: Tensors | str, given: Tensors = ()) -> None:
        """Note a collective."""
        tensors = given or (() if isinstance(alike, str) else alike)
        device = next((each.device.type for each in tensors), None)
        if device is None:
            device = "cuda" if torch.device("cuda") in self.device_types else "cpu"
        self.journal.note(self.key, device, operation, alike, given)

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> Any:
        """Send tensors to another rank."""
        check_rank("Send", destination, self._size)
        self._note_message(tensors, self._rank, destination, tag)
        return super().send(tensors, destination, tag)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Any:
        """Receive tensors from another rank."""
        check_rank("Recv", source, self._size)
        self._note_message(tensors, source, self._rank, tag)
        return super().recv(tensors, source, tag)

    def _note_message(self, tensors: Tensors, source: int, destination: int, tag: int) -> None:
        ranks = [int(rank) for rank in torch.distributed.get_process_group_ranks(self)]
        for each in tensors:
            way = ranks[source], ranks[destination], 0 if each.is_cuda else tag
            self.journal.note_message(self.key, each, way)

    def exchange(self, operation: str, given: Tensors, arguments: Sequence[Any]) -> Any:
        """Begin to exchange values, unless objects are sent, which do so themselves."""
        if self.journal.arrives:
            return None
        return exchanges.begin(self._mail, self, operation, given, arguments)


def _noting(method: Callable[..., Any], operation: str, parts: Callable[..., Alike]) -> Any:
    def noted(group: NotedGroup, *arguments: Any, **options: Any) -> Any:
        given, alike = parts(*arguments)
        arrive = group.exchange(operation, given, arguments)
        with group.journal.arriving(group.journal.arrives or arrive is not None):
            group.note(operation, alike, given)
        work = method(group, *arguments, **options)
        if arrive is not None:
            work.arrivals.append(arrive)
        return work

    return noted


_methods = vars(LoneGroup)
for _name, (_operation, _parts) in _NOTED.items():
    _noted = _noting(_methods[_name], _operation, _parts)
    for _other, _method in _methods.items():
        if _method is _methods[_name]:  # its name in other releases
            setattr(NotedGroup, _other, _noted)


def replacements(journal: Journal) -> list[Replacement]:
    """List the function by which wrappers give all ranks the weights of one."""
    share = utils._sync_params_and_buffers

    def share_weights(*arguments: Any, **options: Any) -> None:
        with journal.sharing_weights():
            share(*arguments, **options)

    return [(each, "_sync_params_and_buffers", share_weights) for each in (utils, fsdp)]
