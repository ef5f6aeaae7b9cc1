"""What ranks send each other: the known values of tensors, by their ranks' numbers in a group."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from graphmem.ranks.messages import Messages
from graphmem.values.known import KnownValues


class Mail:
    """Sends and receives the known values of tensors."""

    def __init__(self, known: KnownValues) -> None:
        self.messages = Messages()
        self._known = known
        self._objects: Any = WeakIdKeyDictionary()

    def send(self, group: Any, destination: int, tensor: torch.Tensor) -> None:
        """Send a tensor from this rank."""
        source, other = _ranks_of(group, group.rank(), destination)
        self.messages.send(source, other, self._values(tensor))

    def keep(self, tensor: torch.Tensor) -> None:
        """Keep the values of a pickled object, which its tensor loses when it is made longer."""
        self._objects[tensor] = self._values(tensor)

    def _values(self, tensor: torch.Tensor) -> list[int | float] | None:
        known = self._known.of(tensor)
        values: list[int | float] | None = self._objects.get(tensor)
        return values if known is None else known.tensor.flatten().tolist()

    def expect(self, group: Any, source: int, tensor: torch.Tensor) -> Callable[[], bool]:
        """Announce a tensor to receive; the function returned waits for its values."""
        other, this = _ranks_of(group, source, group.rank())
        message = self.messages.next(other, this)

        def arrive() -> bool:
            values = self.messages.receive(message, other, this)
            if values is None or len(values) != tensor.numel():
                return False
            _write(tensor, values)
            return True

        return arrive

    def are_beside(self, group: Any) -> bool:
        """Whether all ranks of a group run, and really meet."""
        return self.messages.are_beside(torch.distributed.get_process_group_ranks(group))

    def meet(
        self, group: Any, sent: torch.Tensor | None = None, outputs: Sequence[torch.Tensor] = ()
    ) -> None:
        """Wait for the ranks of a group that run beside this one.

        Args:
            group: the group.
            sent: what this rank gives to the others.
            outputs: take what each rank gives, and copies of this rank's for those that do not run.
        """
        ranks = torch.distributed.get_process_group_ranks(group)
        own = ranks[group.rank()]
        board = f"group{zlib.crc32(group.pg_name.encode())}"
        names = {rank: self.messages.next(rank, board) for rank in ranks if rank != own}
        given = None if sent is None else self._values(sent)
        self.messages.send(own, board, given)
        others = {rank: self.messages.read(name, rank, own) for rank, name in names.items()}
        if outputs and self._known.of(outputs[0]) is None:
            others = dict.fromkeys(ranks, given) | {k: v for k, v in others.items() if v}
            if outputs[0]._base is not None:  # values are known of whole storages
                outputs[0]._base.detach().zero_()
        for rank, output in zip(ranks, outputs, strict=False):
            _write_long(output, others.get(rank))

    def write_own(self, tensor: torch.Tensor, sent: torch.Tensor) -> None:
        """Give a tensor the values of one that this rank sends to itself."""
        if self._known.of(tensor) is None:
            _write_long(tensor, self._values(sent))


def _write_long(tensor: torch.Tensor, values: Sequence[int | float] | None) -> None:
    """Give a tensor values; it may be as long as the longest object, whose end is not read."""
    if values is not None:
        room = tensor.numel()
        _write(tensor, [*values[:room], *[0] * (room - len(values))])


def _write(tensor: torch.Tensor, values: Sequence[int | float]) -> None:
    with _disable_current_modes():  # what is here in place of a network is not counted
        received = torch.tensor(values, dtype=tensor.dtype).view(tensor.shape)
    with torch.no_grad():
        tensor.copy_(received)


def _ranks_of(group: Any, *ranks: int) -> tuple[int, ...]:
    return tuple(torch.distributed.get_global_rank(group, rank) for rank in ranks)
