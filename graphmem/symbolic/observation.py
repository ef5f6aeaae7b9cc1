"""The storages of one trace at one moment, in a form that can be matched with other traces.

Clauses:
  (1) traces have the same structure if the operations that allocate are the same, in the same
      modules, in the same order, with as many allocations each; then storages are matched one by
      one, by position;
  (2) otherwise they have the same kinds of structure if the sets of these operations are equal when
      modules that differ only in their number (`h.0`, `h.1`) count as one; then storages are
      matched by kind, and their bytes are added;
  (3) otherwise they cannot be matched.
  (4) A moment is identified by the allocation that begins it. In another trace it is the same one
      among the allocations of its kind, counted from the first or from the last, whichever is
      nearer: the last block of a deeper model is still the last one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Literal, NamedTuple

from graphmem import events
from graphmem.events import LifeEvent
from graphmem.forward_passes import fullest_forward, saved_at
from graphmem.graph import Category, OwnerKind, StepGraph, Storage
from graphmem.report.build import module_of

Subject = Literal["peak", "saved", "steady", "parameters"]
"""Which bytes: alive at the peak, held by autograd after the forward pass, alive when the last
iteration is over, parameters."""

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True)
class HeldStorage:
    """One storage that is alive at the moment.

    Attributes:
        position: its key for matching by clause (1).
        kind: its key for matching by clause (2).
        nbytes: requested bytes.
        itemsize: bytes of one element.
        module: the module it belongs to, or "".
        what: the name of its owner, or of the operation that made it.
    """

    position: Hashable
    kind: Hashable
    nbytes: int
    itemsize: int
    category: Category
    module: str
    what: str


@dataclass(frozen=True)
class BirthKind:
    """The kind of an allocation; clause (4) counts those of one kind together.

    Attributes:
        scratch: the purpose of a kernel's scratch memory, else None.
    """

    step: int
    phase: str
    module: str
    target: str
    scratch: str | None

    def __str__(self) -> str:
        phase = f"the {self.phase} phase of step {self.step}" if self.step >= 0 else "setup"
        where = f" in {self.module}" if self.module else ""
        return f"in {phase} at {self.target.removesuffix('.default')}{where}"


class ObservedBirth(NamedTuple):
    """One allocation: its bytes, and the total of requested bytes after it."""

    kind: BirthKind
    nbytes: int
    after: int


@dataclass(frozen=True)
class MatchedMoment:
    """A moment, by clause (4).

    Attributes:
        number: its number among those of its kind, from 0; or from the last, -1, if nearer.
    """

    kind: BirthKind
    number: int


@dataclass(frozen=True)
class Observation:
    """One trace.

    Attributes:
        operations: target, module and number of allocations of each operation that allocates.
        storages: the bytes of each storage that the trace allocated.
        held: the storages that are alive at the moment asked for.
        births: the allocations on the device, in order.
    """

    operations: tuple[tuple[str, str, int], ...]
    storages: tuple[int, ...]
    held: tuple[HeldStorage, ...]
    births: tuple[ObservedBirth, ...]

    @property
    def requested(self) -> int:
        """Requested bytes at the moment."""
        return sum(each.nbytes for each in self.held)

    @cached_property
    def highest(self) -> int:
        """The most requested bytes at any moment."""
        return max((birth.after for birth in self.births), default=0)

    @property
    def highest_place(self) -> MatchedMoment:
        """The first moment with that many."""
        number = next(i for i, birth in enumerate(self.births) if birth.after == self.highest)
        return self.places[number]

    @cached_property
    def born(self) -> dict[Hashable, int]:
        """The bytes of all allocations of each kind, without scratch memory."""
        found: dict[Hashable, int] = {}
        for birth in self.births:
            if birth.kind.scratch is None:
                found[birth.kind] = found.get(birth.kind, 0) + birth.nbytes
        return found

    @cached_property
    def places(self) -> list[MatchedMoment]:
        """Every moment, in order."""
        return _places([birth.kind for birth in self.births])

    def requested_at(self, places: Iterable[MatchedMoment]) -> dict[MatchedMoment, int]:
        """Requested bytes at moments, leaving out those that this trace does not have."""
        totals: dict[BirthKind, list[int]] = {}
        for birth in self.births:
            totals.setdefault(birth.kind, []).append(birth.after)
        return {
            place: totals[place.kind][place.number]
            for place in places
            if -len(totals.get(place.kind, ())) <= place.number < len(totals.get(place.kind, ()))
        }

    def has_structure_of(self, other: Observation) -> bool:
        """Whether the structure is the same, clause (1)."""
        same_count = len(self.storages) == len(other.storages)
        return same_count and self.operations == other.operations

    def has_kinds_of(self, other: Observation) -> bool:
        """Whether the kinds of structure are the same, clause (2)."""
        return self._kinds == other._kinds

    def first_difference(self, other: Observation) -> tuple[str, str]:
        """Describe the first operations that differ: this trace's and the other's."""
        for mine, theirs in zip_longest(self.operations, other.operations):
            if mine != theirs:
                return _in_words(mine), _in_words(theirs)
        return "the same operations", "the same operations"

    @cached_property
    def _kinds(self) -> frozenset[tuple[str, str]]:
        return frozenset((target, folded(module)) for target, module, _ in self.operations)


def folded(name: str) -> str:
    """A qualified name with `*` for each number in it."""
    return _NUMBER.sub("*", name)


def place_of(graph: StepGraph, replayed: Sequence[LifeEvent], born: Storage) -> MatchedMoment:
    """The moment at which the storage `born` is allocated."""
    births = [event.storage for event in replayed if isinstance(event, events.Birth)]
    number = next(i for i, storage in enumerate(births) if storage.id == born.id)
    return _places([_birth_kind(storage, graph) for storage in births])[number]


def observe(
    graph: StepGraph, replayed: Sequence[LifeEvent], subject: Subject, place: MatchedMoment
) -> Observation | None:
    """Observe a trace at the subject's moment; None if it has no moment like `place`.

    Args:
        graph: the trace.
        replayed: its births and deaths, as `graphmem.simulate.life_events` orders them.
        subject: which bytes.
        place: the moment of the peak; other subjects have their own.
    """
    if subject == "peak":
        born = _find(graph, replayed, place)
        if born is None:
            return None
        index = next(i for i, event in enumerate(replayed) if event.storage.id == born.id)
        tick, alive = replayed[index].tick, _alive(replayed[: index + 1])
    elif subject == "saved":
        tick, alive = _saved(graph)
    else:
        tick, alive = graph.end, _alive(replayed)
    if subject == "parameters":
        alive = [each for each in alive if each.owned_as(OwnerKind.PARAMETER)]
    return Observation(
        operations=tuple((op.target, op.module, len(op.births)) for op in graph.ops if op.births),
        storages=tuple(storage.nbytes for storage in graph.storages),
        held=tuple(_held(alive, tick, graph)),
        births=tuple(_births(graph, replayed)),
    )


def _places(kinds: Sequence[BirthKind]) -> list[MatchedMoment]:
    """The moment of each allocation, by clause (4)."""
    counts = Counter(kinds)
    seen: Counter[BirthKind] = Counter()
    places = []
    for kind in kinds:
        before, after = seen[kind], counts[kind] - 1 - seen[kind]
        places.append(MatchedMoment(kind, before if before <= after else -1 - after))
        seen[kind] += 1
    return places


def _birth_kind(storage: Storage, graph: StepGraph) -> BirthKind:
    op = graph.op_of(storage)
    scratch = storage.owners[0].name if storage.id >= len(graph.storages) else None
    if op is None:
        return BirthKind(-1, "", "", "", scratch)
    phase = graph.phases[op.phase]
    return BirthKind(phase.step, phase.name, folded(op.module), op.target, scratch)


def _births(graph: StepGraph, replayed: Sequence[LifeEvent]) -> Iterator[ObservedBirth]:
    now = 0
    for event in replayed:
        storage = event.storage
        is_born = isinstance(event, events.Birth)
        now += storage.nbytes if is_born else -storage.nbytes
        if is_born:
            yield ObservedBirth(_birth_kind(storage, graph), storage.nbytes, now)


def _find(graph: StepGraph, replayed: Sequence[LifeEvent], place: MatchedMoment) -> Storage | None:
    births = [
        event.storage
        for event in replayed
        if isinstance(event, events.Birth) and _birth_kind(event.storage, graph) == place.kind
    ]
    return births[place.number] if -len(births) <= place.number < len(births) else None


def _alive(replayed: Sequence[LifeEvent]) -> list[Storage]:
    return list(events.alive_after(replayed).values())


def _saved(graph: StepGraph) -> tuple[int, list[Storage]]:
    """Tick and storages of what the report counts as `saved_for_backward`."""
    forward = fullest_forward(graph)
    tick = graph.end if forward is None else graph.phases[forward].end
    return tick, saved_at(tick, graph)


def _held(alive: Iterable[Storage], tick: int, graph: StepGraph) -> Iterator[HeldStorage]:
    seen: Counter[str] = Counter()
    for storage in alive:
        category = storage.category_at(tick)
        module = "" if category is Category.WORKSPACE else module_of(storage, graph)
        what = _what(storage, tick, graph)
        position: Hashable = storage.id
        if storage.id >= len(graph.storages):  # numbers of scratch memory differ between traces
            position = (what, seen[what])
            seen[what] += 1
        yield HeldStorage(
            position=position,
            kind=(category, folded(module), folded(what), storage.dtype),
            nbytes=storage.nbytes,
            itemsize=_itemsize(storage.dtype),
            category=category,
            module=module,
            what=what,
        )


def _what(storage: Storage, tick: int, graph: StepGraph) -> str:
    for kind in _NAMED:
        owner = storage.owned_as(kind)
        if owner is not None and owner.name:
            return owner.name
    op = graph.op_of(storage)
    made_by = op.target.split(".")[1] if op is not None else "made before the first operation"
    owners = storage.owners_at(tick)
    saved = [owner.name for owner in owners if owner.kind is OwnerKind.SAVED_TENSOR]
    return f"{made_by}, saved as {' and '.join(dict.fromkeys(saved))}" if saved else made_by


_NAMED = (
    OwnerKind.PARAMETER,
    OwnerKind.BUFFER,
    OwnerKind.GRADIENT,
    OwnerKind.OPTIMIZER_STATE,
    OwnerKind.AUTOCAST_CACHE,
    OwnerKind.WORKSPACE,
    OwnerKind.INPUT,
)


def _itemsize(dtype: str) -> int:
    import torch

    found: torch.dtype = getattr(torch, dtype)
    return found.itemsize


def _in_words(operation: tuple[str, str, int] | None) -> str:
    if operation is None:
        return "nothing more"
    target, module, births = operation
    return f"{target.removesuffix('.default')}{f' in {module}' if module else ''} ({births} new)"
