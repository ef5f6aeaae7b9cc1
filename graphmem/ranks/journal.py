"""What a rank writes down of its collectives, for a comparison with those of other ranks.

A long run repeats a few collectives many times: each kind is written once, and each collective as a
number. The values that ranks exchanged are kept as checksums, since each rank is given its own in
place of others' (`graphmem.ranks.group`): where they differ, the ranks may go different ways from
there on although real ones would not.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
import torch
from torch.utils._python_dispatch import _disable_current_modes

from graphmem.frames import is_program
from graphmem.graph import Source
from graphmem.ranks.world import World
from graphmem.trace.descriptions import DTYPE_NAMES
from graphmem.values.known import KnownValues

FOLDER = "GRAPHMEM_RANK_COLLECTIVES"
"""The variable with the folder that several ranks write to."""

_NAMES = "torch/distributed/distributed_c10d.py"


class Kind(msgspec.Struct, frozen=True):
    """A collective at a line of the program.

    Attributes:
        operation: what the backend does.
        alike: what must be alike on all ranks: the types and numbers of elements of tensors, of
            a message the latter.
        tensors: the same in words, with the sizes of tensors.
        name: the function that the program called.
        place: the line, in words; "" if there is none.
    """

    operation: str
    alike: str
    tensors: str
    name: str
    place: str


class OfGroup(msgspec.Struct):
    """The collectives of a group on one device, or its messages from one rank to another.

    Attributes:
        ranks: the group's.
        number: counts the groups of the same ranks, in the order in which they were made.
        device: "cuda" or "cpu"; each has a backend of its own.
        way: of messages, the ranks that send and receive, and the tag; () for collectives.
        made: the kind of each collective.
        order: the number of collectives that the rank made before each, in any group.
        values: checksums of what this rank gave in, by the collective's position.
    """

    ranks: list[int]
    number: int
    device: str
    way: tuple[int, ...] = ()
    made: list[int] = []
    order: list[int] = []
    values: dict[int, int] = {}


class Collectives(msgspec.Struct):
    """The collectives of a rank; `is_stopped` if `--max-steps` ended it."""

    is_stopped: bool
    kinds: list[Kind]
    sequences: list[OfGroup]

    @classmethod
    def read(cls, folder: Path, rank: int) -> Self | None:
        """Read what a rank wrote; None if it made no groups."""
        path = folder / f"{rank}.collectives"
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.exists() else None


Group = tuple[tuple[int, ...], int]


class Journal:
    """Notes the collectives of the rank that runs here, if others run as well.

    Attributes:
        arrives: whether what is exchanged now really comes from other ranks.
    """

    def __init__(
        self,
        known: KnownValues,
        place: Callable[[], Source | None],
        is_stopped: Callable[[], bool],
    ) -> None:
        """Begin.

        Args:
            known: the values of tensors.
            place: finds the line that runs.
            is_stopped: whether the program has been stopped, so that it only cleans up.
        """
        folder = os.environ.get(FOLDER)
        self._folder = Path(folder) if folder else None
        self._known = known
        self._world = World.of(os.environ)  # programs may unset the variables
        self._place = place
        self._is_stopped = is_stopped
        self._groups: Counter[tuple[int, ...]] = Counter()
        self._kinds: dict[Kind, int] = {}
        self._sequences: dict[tuple[Group, str, tuple[int, ...]], OfGroup] = {}
        self._made = 0
        self.arrives = False
        self._are_weights = False

    @property
    def is_open(self) -> bool:
        """Whether collectives are noted."""
        return self._folder is not None

    @property
    def exchanges_weights(self) -> bool:
        """Whether what is exchanged now are weights, which no program goes by."""
        return self._are_weights

    def place(self) -> Source | None:
        """The user's line, and a package's."""
        return self._place()

    def group(self, ranks: Sequence[int]) -> Group:
        """Name a new group alike on all of its ranks."""
        key = tuple(sorted(map(int, ranks)))  # a program's may be of NumPy
        self._groups[key] += 1
        return key, self._groups[key]

    @contextmanager
    def arriving(self, do_arrive: bool = True) -> Iterator[None]:
        """Let collectives exchange values that really come from other ranks, if they do."""
        before, self.arrives = self.arrives, do_arrive
        try:
            yield
        finally:
            self.arrives = before

    @contextmanager
    def sharing_weights(self) -> Iterator[None]:
        """Let collectives exchange weights, which no program goes by."""
        self._are_weights = True
        try:
            yield
        finally:
            self._are_weights = False

    def note(
        self,
        group: Group,
        device: str,
        operation: str,
        tensors: Sequence[torch.Tensor] | str,
        given: Sequence[torch.Tensor] = (),
    ) -> None:
        """Note a collective.

        Args:
            group: from `group`.
            device: "cuda" or "cpu".
            operation: what the backend does.
            tensors: those that must be alike on all ranks, or what else must be.
            given: tensors whose values other ranks are sent.
        """
        if self._is_stopped():
            return
        if isinstance(tensors, str):
            alike = words = tensors
        else:
            alike, words = (", ".join(map(each, tensors)) for each in (_counted, _in_words))
        sequence = self._sequence(group, device)
        if not self.arrives:
            self._note_values(sequence, given)
        self._append(sequence, Kind(operation, alike, words, called() or operation, self._line()))

    def note_message(self, group: Group, tensor: torch.Tensor, way: tuple[int, ...]) -> None:
        """Note a message that this rank sends or receives.

        Args:
            group: from `group`.
            tensor: what is sent, or takes what is received.
            way: the ranks that send and receive, and the tag.
        """
        if self._is_stopped() or self._world is None:
            return
        is_sent = way[0] == self._world.rank
        other = f"to rank {way[1]}" if is_sent else f"from rank {way[0]}"
        words, name = f"{_in_words(tensor)} {other}", "send" if is_sent else "recv"
        kind = Kind("message", str(tensor.numel()), words, called() or name, self._line())
        self._append(self._sequence(group, tensor.device.type, way), kind)

    def _sequence(self, group: Group, device: str, way: tuple[int, ...] = ()) -> OfGroup:
        ranks, number = group
        found = self._sequences.get((group, device, way))
        if found is None:
            found = self._sequences[group, device, way] = OfGroup(list(ranks), number, device, way)
        return found

    def _append(self, sequence: OfGroup, kind: Kind) -> None:
        sequence.order.append(self._made)
        self._made += 1
        sequence.made.append(self._kinds.setdefault(kind, len(self._kinds)))

    def _line(self) -> str:
        """The user's line, or a package's if the user called none."""
        place = self._place()
        return "" if place is None else (place.called_from or place).in_words

    def _note_values(self, sequence: OfGroup, tensors: Sequence[torch.Tensor]) -> None:
        """Note a checksum of the known values, by which a program may choose what it does."""
        found = None
        with _disable_current_modes():
            for tensor in tensors:
                known = None if self._is_weight(tensor) else self._known.of(tensor)
                if known is not None:
                    found = zlib.crc32(_bytes(known.tensor), found or 0)
        if found is not None:
            sequence.values[len(sequence.made)] = found

    def _is_weight(self, tensor: torch.Tensor) -> bool:
        is_of_weights = self._are_weights and tensor.is_floating_point()
        return is_of_weights or isinstance(tensor, torch.nn.Parameter)

    def write(self) -> None:
        """Write a file for the process that compares ranks."""
        if self._folder is not None and self._world is not None and self._folder.is_dir():
            found = Collectives(
                self._is_stopped(), list(self._kinds), list(self._sequences.values())
            )
            (self._folder / f"{self._world.rank}.collectives").write_bytes(
                msgspec.json.encode(found)
            )


def _bytes(tensor: torch.Tensor) -> Any:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.contiguous().flatten().view(torch.uint8).numpy()


def _counted(tensor: torch.Tensor) -> str:
    return f"{DTYPE_NAMES[tensor.dtype]} * {tensor.numel()}"


def _in_words(tensor: torch.Tensor) -> str:
    sizes = ", ".join(map(str, tensor.shape))
    return f"{DTYPE_NAMES[tensor.dtype]}[{sizes}]"


def called() -> str | None:
    """The function of `torch.distributed` that the program called, if it is on the stack."""
    frame: Any = sys._getframe(1)
    found = None
    while frame is not None and not is_program(frame.f_code.co_filename):
        name = frame.f_code.co_name
        if frame.f_code.co_filename.endswith(_NAMES) and not name.startswith("_"):
            found = name
        frame = frame.f_back
    return found
