"""A process group of one process: the memory that collectives use, without the other ranks.

Clauses (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of 2.11):
  (1) `allgather` into a list of equal tensors gathers into one flat tensor, from which they are
      copied; `reduce_scatter` of such a list first copies it into one (`newLikeFlat`);
  (2) a barrier reduces one float, which its work holds; it is on the rank's card if the program
      names no device (`guessDeviceIdForRank`). A byte there, by which it is dispatched, stays until
      the next barrier (`static at::Tensor tensor`, ProcessGroup.hpp);
  (3) everything else works in the memory that it is given;
  (4) a message sent or received holds no tensors but as its result (`pointToPoint` calls
      `recordStream` and stashes nothing; fixtures/cuda/ranks/pipeline_gpipe, rank 1), so a slow
      card may reserve them longer. Those between `_start_coalescing` and `_end_coalescing` have one
      work for all, without a result; each pair of ranks has its own stream for the others
      (`getKeySendRecv`);
  (5) the work of any other collective holds its arguments, among them the list that `allgather`
      copies to, until it is waited for. If nobody waits, as when only its future is taken, a
      later collective of the group releases them (`graphmem.ranks.unwaited`).

Every other rank is assumed to send what this one does: what is gathered, scattered or exchanged is
a copy of this rank's tensor if programs may read it, and sums of known values count each rank once.
Those sent from one rank to one other have that rank's own values, and ranks that run beside this
one are waited for at a barrier (graphmem/ranks/messages.py).
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import filterfalse, zip_longest
from typing import Any, NoReturn

import torch
from torch._C import _distributed_c10d as c10d
from torch.utils._python_dispatch import _disable_current_modes

from graphmem import constructors
from graphmem.ranks import sizes
from graphmem.ranks.copies import combine_copies, copy, copy_to_each, flat_like, is_read
from graphmem.ranks.error_messages import AnySourceError
from graphmem.ranks.mail import Mail
from graphmem.ranks.unwaited import Shelf, Unwaited
from graphmem.ranks.works import Arrival, DoneWork, MessageStream, Tensors, is_on_card

_ProcessGroup: Any = c10d.ProcessGroup

ALL = -1
"""In place of one rank: all of a batch's, which share a stream."""


class LoneGroup(_ProcessGroup):  # type: ignore[misc]
    """The ranks of a group, seen from the one that runs.

    Methods have PyTorch's names and arguments; those renamed in 2.13 have both names.

    Attributes:
        device_types: the devices of the backends that the program asked for; NCCL's has no CPU.
            Objects are sent as a tensor on one of them (`_get_object_coll_device`).
        byte_of_barrier: what the last barrier left on the card; one for all groups.
        kept_own: called when another rank broadcasts numbers, and this one keeps its own.
        name_received: called with a tensor that takes a message, and the rank that sends it.
    """

    byte_of_barrier: torch.Tensor | None = None
    kept_own: Callable[[], object]
    name_received: Callable[[torch.Tensor, int], object]

    def __init__(
        self,
        rank: int,
        size: int,
        mail: Mail,
        card: torch.device,
        unwaited: Unwaited,
        joined: Callable[[], object],
        guessed: Callable[[], object],
    ) -> None:
        """Make a group.

        Args:
            rank: the rank that runs.
            size: the number of ranks.
            mail: carries values to and from other ranks.
            card: the card of this rank.
            unwaited: releases what collectives hold that nobody waited for.
            joined: called at the first collective on the card, when NCCL makes a communicator
                (`ProcessGroupNCCL::initNCCLComm`).
            guessed: called when the rank receives parts of unequal sizes from ranks that do not run
                beside it.
        """
        super().__init__(rank, size)
        self._joined: Callable[[], object] | None = joined
        self._mail = mail
        self._card = card
        self._unwaited = unwaited
        self._guessed = guessed
        self._rank = rank
        self._size = size
        self._name = ""
        self.device_types: list[torch.device] = []
        self._shelves: list[Shelf] = []
        self._coalesced: tuple[list[torch.Tensor], list[Arrival]] | None = None
        self._streams: defaultdict[int, MessageStream] = defaultdict(MessageStream)

    def _begun(self, result: Tensors, held: Sequence[Any] = ()) -> DoneWork:
        """Begin a collective, and release what earlier ones held (clause 5)."""
        self._join((*result, *held))
        now = self._unwaited.began()
        kept = [each for each in self._shelves if each.held]
        over = [each.held for each in kept if each.is_over(now)]
        if over:
            self._unwaited.let_go(self, over)
        work = DoneWork(result, list(held))
        self._shelves = [*kept, Shelf(now, work.held, weakref.ref(work))]
        return work

    def never_joins(self) -> None:
        """Note that NCCL does not carry its collectives on the card."""
        self._joined = None

    def _join(self, used: Sequence[Any]) -> None:
        sizes.check_backend(used, self.device_types)
        if self._joined is not None and any(map(is_on_card, used)):
            joined, self._joined = self._joined, None
            joined()

    def size(self) -> int:
        """The number of ranks."""
        return self._size

    def rank(self) -> int:
        """The rank that runs."""
        return self._rank

    def getBackendName(self) -> str:  # noqa: N802 - its name in C++
        """The backend's name in error messages."""
        return "graphmem"

    @property
    def _device_types(self) -> list[torch.device]:
        return self.device_types

    def _get_backend(self, device: torch.device) -> LoneGroup:
        """Return the backend of a device; Inductor asks for it if its cache has a graph.

        `add_ephemeral_timeout_increase_for_distributed`, torch/_inductor/codecache.py.
        """
        return self

    @property
    def pg_name(self) -> str:
        """The name under which it is registered, or was until it was destroyed."""
        return self._name or str(torch.distributed.distributed_c10d._world.pg_names[self])

    group_name = pg_name

    def keep_name(self) -> None:
        """Keep its name: `destroy_process_group` forgets that before it asks for it."""
        self._name = self.pg_name

    # In place -----------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors | torch.Tensor, opts: Any = None) -> DoneWork:
        """Give each rank the sum."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        self._sum(tensors, opts)
        return self._begun(tensors, list(tensors))

    def _sum(self, tensors: Tensors, opts: Any) -> None:
        operation = getattr(opts, "reduceOp", c10d.ReduceOp.SUM)
        for tensor in tensors:
            if tensor.device.type == "cpu":
                combine_copies(tensor, operation, self._size)
                continue
            known = self._mail.known(tensor)
            if known is not None:
                with _disable_current_modes():  # a card does no more than the collective
                    combine_copies(known, operation, self._size)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> DoneWork:
        """Give each rank the sums."""
        self._sum(tensors, opts)
        return self._begun(tensors, _unless_waiting(tensors, opts))

    def reduce(self, tensors: Tensors, opts: Any = None) -> DoneWork:
        """Give one rank the sum."""
        sizes.check_rank("Reduce", getattr(opts, "rootRank", 0), self._size)
        self._sum(tensors, opts)
        return self._begun(tensors, list(tensors))

    def broadcast(self, tensors: Tensors, opts: Any = None) -> DoneWork:
        """Give every rank what one sends."""
        root = getattr(opts, "rootRank", 0)
        sizes.check_rank("Broadcast", root, self._size)
        if root != self._rank and any(map(is_read, tensors)) and not self._mail.began_beside(self):
            self.kept_own()
        return self._begun(tensors, list(tensors))

    def barrier(self, opts: Any = None) -> DoneWork:
        """Wait for all ranks that run (clause 2)."""
        self._mail.meet(self)
        if getattr(opts, "device", None) == torch.device("cpu"):
            return self._begun([])
        LoneGroup.byte_of_barrier = constructors.empty(1, dtype=torch.uint8, device=self._card)
        return self._begun([], [constructors.zeros(1, device=self._card)])

    def monitored_barrier(self, *args: Any, **options: Any) -> None:
        """Wait for all ranks that run."""
        self._mail.meet(self)

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> DoneWork | None:
        """Send tensors to another rank."""
        sizes.check_rank("Send", destination, self._size)
        for tensor in filter(is_read, tensors):
            self._mail.send(self, destination, tensor)
        return self._message(tensors, destination)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> DoneWork | None:
        """Receive tensors from another rank."""
        sizes.check_rank("Recv", source, self._size)
        arrivals = [self._mail.expect(self, source, each) for each in filter(is_read, tensors)]
        for tensor in filterfalse(is_read, tensors):
            self._mail.give(tensor, [])
        for tensor in filter(is_on_card, tensors):
            self.name_received(tensor, source)
        return self._message(tensors, source, arrivals)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> NoReturn:
        """Refuse: NCCL has no such message, and with gloo it depends on which rank is first."""
        if any(map(is_on_card, tensors)):
            raise NotImplementedError("ProcessGroupNCCL does not support recvAnysource")
        raise AnySourceError()

    def _message(
        self, tensors: Tensors, peer: int, arrivals: Sequence[Arrival] = ()
    ) -> DoneWork | None:
        """Begin to send or receive (clause 4)."""
        if self._coalesced is not None:
            self._join(tensors)
            self._coalesced[0].extend(tensors)
            self._coalesced[1].extend(arrivals)
            return None
        work = self._begun(tensors)
        work.arrivals += arrivals
        work.done = self._done(tensors, peer)
        return work

    def _done(self, tensors: Tensors, peer: int = ALL) -> Any:
        on_card = [each for each in tensors if each.is_cuda]
        return self._streams[peer].take(on_card) if on_card else None

    def _start_coalescing(self, device: Any = None) -> None:
        self._coalesced = [], []

    def _end_coalescing(self, device: Any = None) -> DoneWork:
        work = DoneWork([], [])
        tensors, work.arrivals = self._coalesced or ([], [])
        work.done, self._coalesced = self._done(tensors), None
        return work

    # From one tensor to another -----------------------------------------------------------------

    def allgather(
        self, outputs: Sequence[list[torch.Tensor]], inputs: Tensors, opts: Any = None
    ) -> DoneWork:
        """Give every rank what each sends (clause 1)."""
        held: list[Any] = [list(inputs), [list(gathered) for gathered in outputs]]
        for gathered, sent in zip(outputs, inputs, strict=True):
            held.append(flat_like(gathered))
            copy_to_each(self._mail, gathered, sent)
        return self._begun([each for gathered in outputs for each in gathered], held)

    def all_gather_single(
        self, output: torch.Tensor, sent: torch.Tensor, opts: Any = None
    ) -> DoneWork:
        """Give every rank what each sends, in one tensor."""
        sizes.check_gathered(output, sent, self._size)
        self._gather_copies(output, sent)
        return self._begun([output], [sent, output])

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> DoneWork:
        """Gather several tensors at once."""
        for output, sent in zip(outputs, inputs, strict=True):
            self._gather_copies(output, sent)
        return self._begun(outputs, [*outputs, *inputs])

    def _gather_copies(self, output: torch.Tensor, sent: torch.Tensor) -> None:
        if is_read(output):
            for each in output.view(-1).chunk(self._size):
                copy(self._mail, each, sent.reshape(-1))
        else:
            self._mail.give(output, [sent] * self._size)

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> DoneWork:
        """Gather several lists at once."""
        for gathered in outputs:
            for each, sent in zip(gathered, inputs, strict=True):
                copy(self._mail, each, sent)
        return self._begun([each for gathered in outputs for each in gathered])

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> DoneWork:
        """Give one rank what each sends."""
        for gathered, sent in zip(outputs, inputs, strict=False):
            copy_to_each(self._mail, gathered, sent)
        return self._begun([each for gathered in outputs for each in gathered], [*outputs, *inputs])

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> DoneWork:
        """Give each rank its part of what one sends."""
        for output, parts in zip_longest(outputs, inputs):
            if parts is None:  # another rank's
                self._mail.give(output, [])
            else:
                copy(self._mail, output, parts[self._rank])
        return self._begun(outputs, [*outputs, *inputs])

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[list[torch.Tensor]], opts: Any = None
    ) -> DoneWork:
        """Give each rank its part of the sum (clause 1)."""
        held: list[Any] = [list(outputs), [list(parts) for parts in inputs]]
        for output, parts in zip(outputs, inputs, strict=True):
            held.append(flat_like(parts))
            copy(self._mail, output, parts[self._rank])
        self._sum(outputs, opts)
        return self._begun(outputs, held)

    def reduce_scatter_single(
        self, output: torch.Tensor, sent: torch.Tensor, opts: Any = None
    ) -> DoneWork:
        """Give each rank its part of the sum of one tensor."""
        sizes.check_scattered(output, sent, self._size)
        self._scatter_sum(output, sent, opts)
        return self._begun([output], [sent, output])

    def _scatter_sum(self, output: torch.Tensor, sent: torch.Tensor, opts: Any) -> None:
        if is_read(output):
            copy(self._mail, output, sent.reshape(-1).chunk(self._size)[self._rank])
        else:
            self._mail.give(output, [sent], self._rank * output.numel())
        self._sum([output], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> DoneWork:
        """Reduce several tensors at once."""
        for output, sent in zip(outputs, inputs, strict=True):
            self._scatter_sum(output, sent, opts)
        return self._begun(outputs, _unless_waiting([*outputs, *inputs], opts))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        sent: torch.Tensor,
        output_splits: Any = None,
        input_splits: Any = None,
        opts: Any = None,
    ) -> DoneWork:
        """Give each rank a part of what each sends."""
        received, given = sizes.listed(output_splits), sizes.listed(input_splits)
        if received or given:
            sizes.check_split(sent, given, self._size)
            sizes.check_split(output, received, self._size)
        copy(self._mail, output, sent)
        is_certain = len(set(received)) <= 1 or sizes.are_of_one_rank(received, given)
        if not is_certain and not self._mail.began_beside(self):
            self._guessed()
        return self._begun([output], [sent, output])

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> DoneWork:
        """`all_to_all_single` for lists."""
        for output, sent in zip(outputs, inputs, strict=True):
            copy(self._mail, output, sent)
        if len({each.shape for each in outputs}) > 1 and not self._mail.began_beside(self):
            self._guessed()
        return self._begun(outputs, [*outputs, *inputs])

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _unless_waiting(arguments: Tensors, opts: Any) -> list[torch.Tensor]:
    """What a coalesced collective holds: nothing if the caller is to wait for it (`asyncOp`)."""
    return list(arguments) if getattr(opts, "asyncOp", True) else []
