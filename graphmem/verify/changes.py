"""The common form of recorded and predicted events: allocations and frees, in order.

An allocation is identified by its ordinal within the window and its requested bytes; a free by the
allocation that it ends. Addresses, segments and the moment of a free request do not count.

Autocast keeps its copies of weights in a hash map by address and clears it all at once
(aten/src/ATen/autocast_mode.cpp), so no prediction can know the order of those frees; since no
allocation comes between them, no figure depends on it. `follow_order` takes it from the recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from graphmem.errors import InputError
from graphmem.events import Birth, LifeEvent
from graphmem.graph import Op, OwnerKind, StepGraph, Storage
from graphmem.recordings import Event, Frame, Recording
from graphmem.verify.messages import UnusableRecordingError

_ENGINE = "autograd's thread"


@dataclass(frozen=True, slots=True)
class Change:
    """One allocation or free.

    Attributes:
        is_alloc: which of the two.
        nbytes: requested bytes.
        allocation: ordinal of the allocation made or ended, from 0; None: from before the window.
        where: the line or operation that caused it, for people.
        in_any_order: it is one of several simultaneous frees, whose order depends on addresses.
    """

    is_alloc: bool
    nbytes: int
    allocation: int | None
    where: str
    in_any_order: bool = False

    def is_like(self, other: Change) -> bool:
        """Whether both are equal apart from their source."""
        return _identity(self) == _identity(other)

    def __str__(self) -> str:
        if self.is_alloc:
            return f"+ {self.nbytes:>14,}  #{self.allocation}  {self.where}"
        of = "from before" if self.allocation is None else f"of #{self.allocation}"
        return f"- {self.nbytes:>14,}  {of}  {self.where}"


def recorded_changes(recording: Recording, *, starts_empty: bool) -> list[Change]:
    """Read the allocations and completed frees of a recording.

    Args:
        recording: the recording.
        starts_empty: nothing was allocated before the first event.

    Raises:
        InputError: the events free memory that was never allocated, or allocate memory in use.
    """
    reader = _RecordingReader(recording.name, starts_empty)
    for index, event in enumerate(recording.events):
        if not is_change(event):
            continue
        if event.action == "alloc":
            reader.allocate(index, event)
        else:
            reader.free(index, event)
    return reader.changes


def is_change(event: Event) -> bool:
    """Whether an event is an allocation or a completed free."""
    return event.action in ("alloc", "free_completed") and bool(event.size)


def changes_since(changes: Sequence[Change], since: int) -> list[Change]:
    """The changes from index `since` on, with allocations counted from there."""
    before = sum(change.is_alloc for change in changes[:since])
    return [replace(change, allocation=_later(change, before)) for change in changes[since:]]


def _later(change: Change, before: int) -> int | None:
    ordinal = change.allocation
    return None if ordinal is None or ordinal < before else ordinal - before


class _RecordingReader:
    """Follows addresses through a recording's events."""

    def __init__(self, name: str, starts_empty: bool) -> None:
        self.changes: list[Change] = []
        self._name = name
        self._starts_empty = starts_empty
        self._live: dict[int, Change] = {}
        self._freed: set[int] = set()
        self._count = 0

    def allocate(self, index: int, event: Event) -> None:
        """Add an allocation."""
        if event.address in self._live:
            raise self._error(index, "allocates a block that is in use")
        change = Change(True, event.size, self._count, _recorded_at(event))
        self._count += 1
        self._live[event.address] = change
        self._freed.discard(event.address)
        self.changes.append(change)

    def free(self, index: int, event: Event) -> None:
        """Add a free."""
        allocated = self._live.pop(event.address, None)
        if allocated is None and (self._starts_empty or event.address in self._freed):
            raise self._error(index, "frees memory that is not allocated")
        if allocated is not None and allocated.nbytes != event.size:
            raise self._error(
                index, f"frees {event.size} bytes where {allocated.nbytes} were allocated"
            )
        self._freed.add(event.address)
        ordinal = None if allocated is None else allocated.allocation
        where = "" if allocated is None else allocated.where
        self.changes.append(Change(False, event.size, ordinal, where))

    def _error(self, index: int, what: str) -> InputError:
        return UnusableRecordingError(self._name, index, what)


def _recorded_at(event: Event) -> str:
    user = event.user_frame
    innermost = next((frame for frame in event.frames if frame.filename.endswith(".py")), None)
    if user is None:
        return _ENGINE if innermost is None else _at(innermost)
    if innermost is None or innermost == user:
        return _at(user)
    return f"{_at(user)} < {_at(innermost)}"


def _at(frame: Frame) -> str:
    file = frame.filename.replace("\\", "/").rpartition("/")[2]
    return f"{file}:{frame.line} {frame.function}"


def predicted_changes(events: Sequence[LifeEvent], graph: StepGraph) -> list[Change]:
    """Convert events of `simulate.life_events`, or a part of them, to the common form."""
    ordinals: dict[int, int] = {}
    found = []
    for event in events:
        storage, born = event.storage, isinstance(event, Birth)
        if born:
            ordinals[storage.id] = len(ordinals)
        found.append(
            Change(
                is_alloc=born,
                nbytes=storage.nbytes,
                allocation=ordinals.get(storage.id),
                where=_predicted_at(graph, storage),
                in_any_order=not born and storage.owned_as(OwnerKind.AUTOCAST_CACHE) is not None,
            )
        )
    return found


def follow_order(predicted: Sequence[Change], recorded: Sequence[Change]) -> list[Change]:
    """Put the prediction's frees without a known order into the recording's order.

    A run of such frees stays as it is if the recording does not end the same allocations there.
    """
    result = list(predicted)
    start = 0
    for in_any_order, run in groupby(predicted, key=lambda change: change.in_any_order):
        end = start + len(list(run))
        order = {_identity(change): i for i, change in enumerate(recorded[start:end])}
        if in_any_order and set(map(_identity, result[start:end])) == order.keys():
            result[start:end] = sorted(
                result[start:end], key=lambda change: order[_identity(change)]
            )
        start = end
    return result


def _identity(change: Change) -> tuple[bool, int, int | None]:
    return change.is_alloc, change.nbytes, change.allocation


def _predicted_at(graph: StepGraph, storage: Storage) -> str:
    op = graph.op_of(storage)
    what = "" if op is None or storage.id in op.births else f"{_owner(storage)} of "
    return _owner(storage) if op is None else what + describe(op)


def describe(op: Op) -> str:
    """Describe an operation by its name, autograd node, module and source line."""
    parts = (op.autograd_node, op.module, str(op.source or ""))
    return " ".join((op.target, *(f"({part})" for part in parts if part)))


def _owner(storage: Storage) -> str:
    return storage.owners[0].name or str(storage.owners[0].kind) if storage.owners else "nobody"
