"""What ranks send each other: the known values of tensors, by their ranks' numbers in a group.

Each group has messages of its own, as it has a communicator: a thread that writes a checkpoint
through one group exchanges objects while the main thread uses another.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from graphmem import constructors
from graphmem.ranks.messages import Messages, Numbers
from graphmem.values.held import KNOWN
from graphmem.values.known import KnownValues

MOST = 4096
"""The most elements of a tensor whose values ranks tell each other in a collective."""


class Left(NamedTuple):
    """What the ranks of a group leave for each other in a collective.

    Attributes:
        messages: those of this rank.
        ranks: the group's.
        own: this one.
        given: its values; None if they are not known.
        names: where the others' are.
    """

    messages: Messages
    ranks: Sequence[int]
    own: int
    given: Numbers | None
    names: Mapping[int, str]

    def of(self, rank: int) -> Numbers | None:
        """Wait for the values of a rank; None if they are not known."""
        if rank == self.own:
            return self.given
        return self.messages.read(self.names[rank], rank, self.own)


class Mail:
    """Sends and receives the known values of tensors."""

    def __init__(self, known: KnownValues) -> None:
        self.messages = Messages()
        self._known = known
        self._objects: Any = WeakIdKeyDictionary()

    def send(self, group: Any, destination: int, tensor: torch.Tensor) -> None:
        """Send a tensor from this rank."""
        source, other = _ranks_of(group, group.rank(), destination)
        self.messages.send(source, _in_group(group, other), self._values(tensor))

    def keep(self, tensor: torch.Tensor) -> None:
        """Keep the values of a pickled object, which its tensor loses when it is made longer."""
        self._objects[tensor] = self._values(tensor)

    def keeps(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a pickled object, or the size of one."""
        return tensor in self._objects

    def _values(self, tensor: torch.Tensor) -> list[int | float] | None:
        known = self.known(tensor)
        values: list[int | float] | None = self._objects.get(tensor)
        with _disable_current_modes():
            return values if known is None else known.flatten().tolist()

    def _joined(self, tensors: Sequence[torch.Tensor]) -> list[int | float] | None:
        parts = [self._values(each) for each in tensors]
        known = [each for each in parts if each is not None]
        return [number for each in known for number in each] if known and known == parts else None

    def expect(
        self, group: Any, source: int, tensor: torch.Tensor, *, has_room: bool = False
    ) -> Callable[[], bool]:
        """Announce a tensor to receive; the function returned waits for its values.

        Args:
            group: the group.
            source: the rank that sends, by its number in the group.
            tensor: takes the values.
            has_room: whether it may be longer than what is sent, as one that is scattered with a
                longer object (`max_tensor_size` of `scatter_object_list`).
        """
        other, this = _ranks_of(group, source, group.rank())
        message = self.messages.next(other, _in_group(group, this))

        def arrive() -> bool:
            values = self.messages.receive(message, other, this)
            room = -1 if values is None else tensor.numel() - len(values)
            if room < 0 or (room and not has_room):
                return False
            _write_long(tensor, values)
            return True

        return arrive

    def are_beside(self, group: Any) -> bool:
        """Whether all ranks of a group run, and really meet."""
        return self.messages.are_beside(torch.distributed.get_process_group_ranks(group))

    def began_beside(self, group: Any) -> bool:
        """Whether all ranks of a group were begun together, so that none has missed a message."""
        return self.messages.began_beside(torch.distributed.get_process_group_ranks(group))

    def meet(
        self, group: Any, sent: torch.Tensor | None = None, outputs: Sequence[torch.Tensor] = ()
    ) -> None:
        """Wait for the ranks of a group that run beside this one.

        Args:
            group: the group.
            sent: what this rank gives to the others.
            outputs: take what each rank gives, and copies of this rank's for those that do not run.
        """
        left = self.leave(group, *([] if sent is None else [sent]))
        ranks, given = left.ranks, left.given
        others: dict[int, Numbers | None] = {rank: left.of(rank) for rank in ranks}
        if outputs and self._known.of(outputs[0]) is None:
            others = {rank: found or given for rank, found in others.items()}
            if outputs[0]._base is not None:  # values are known of whole storages
                outputs[0]._base.detach().zero_()
        for rank, output in zip(ranks, outputs, strict=False):
            _write_long(output, others.get(rank))

    def leave(self, group: Any, *sent: torch.Tensor, more: Sequence[int] = ()) -> Left:
        """Leave values of tensors, and more, for the ranks of a group that run beside this one."""
        ranks = torch.distributed.get_process_group_ranks(group)
        own = ranks[group.rank()]
        board = _in_group(group)
        names = {rank: self.messages.next(rank, board) for rank in ranks if rank != own}
        joined = self._joined(sent)
        given = None if joined is None else [*joined, *more]
        self.messages.send(own, board, given)
        return Left(self.messages, ranks, own, given, names)

    def known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The values of a tensor, in place; None if they are not known."""
        found = self._known.of(tensor)
        return None if found is None else found.tensor

    def give(self, output: torch.Tensor, sent: Sequence[torch.Tensor], first: int = 0) -> None:
        """Note what a collective writes into a tensor on the card.

        Args:
            output: takes as many numbers as it has elements.
            sent: tensors that have these, one after the other; if those of one are not known, or
                there are too few, nothing is known of the output any more.
            first: the place of the first one.
        """
        if not isinstance(output, FakeTensor):
            return
        known = [self._known.of(each) for each in sent if output.numel() <= MOST]
        found = [each for each in known if each is not None]
        last = first + output.numel()
        if len(found) < len(known) or sum(each.tensor.numel() for each in found) < last:
            self._known.forget(output)
            return
        with _disable_current_modes():
            joined = torch.cat([each.tensor.reshape(-1) for each in found])[first:last]
            values = joined.view(output.shape).to(output.dtype)
        self._known.write(output, values, KNOWN.union(*(each.basis for each in found)))

    def write_own(self, tensor: torch.Tensor, sent: torch.Tensor) -> None:
        """Give a tensor the values of one that this rank sends to itself."""
        if self._known.of(tensor) is None:
            _write_long(tensor, self._values(sent))


def _write_long(tensor: torch.Tensor, values: Sequence[int | float] | None) -> None:
    """Give a tensor values; it may be as long as the longest object, whose end is not read."""
    if values is not None:
        room = tensor.numel()
        write(tensor, [*values[:room], *[0] * (room - len(values))])


def write(tensor: torch.Tensor, values: Numbers) -> None:
    """Give a tensor the values that came for it."""
    with _disable_current_modes():  # what is here in place of a network is not counted
        received = constructors.tensor(values, dtype=tensor.dtype).view(tensor.shape)
    with torch.no_grad():
        tensor.copy_(received)


def _in_group(group: Any, *ranks: int) -> str:
    """The name of a group, or of a rank in it, for all that know the group."""
    return ".".join([*map(str, ranks), f"group{zlib.crc32(group.pg_name.encode())}"])


def _ranks_of(group: Any, *ranks: int) -> tuple[int, ...]:
    return tuple(torch.distributed.get_global_rank(group, rank) for rank in ranks)
