"""Compare two reports: what appeared, disappeared, grew, shrank and moved at the peak.

Clauses:
  (1) storages are matched by module, operation and category, never by position; several with the
      same key are summed;
  (2) bytes that disappeared in one place and appeared in another, with equal operation and size,
      moved;
  (3) equal differences of equal layers are folded, `h.[0-11].mlp`, also if all moved likewise, as
      those of a list of layers that has another name;
  (4) the difference that explains most of the peak's change comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from graphmem.gate.blame import blame
from graphmem.gate.causes import Cause, causes_of
from graphmem.gate.lock import entry_of
from graphmem.layer_ranges import fold, members, numbers_in
from graphmem.report import Report
from graphmem.report.schema import Holder, Peak

SCHEMA = "graphmem.diff/1"

Kind = Literal["appeared", "disappeared", "grew", "shrank", "moved"]


class ReportDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between two reports.

    Attributes:
        module: its module; may stand for equal layers, `layers` of them.
        before, after: requested bytes at the peak, of one of the layers.
        moved_from: its previous category and module.
        source, owner: those of the current holder; for what disappeared, of the previous one.
    """

    kind: Kind
    category: str
    module: str
    op: str
    before: int
    after: int
    layers: int
    moved_from: str | None
    source: str | None
    owner: str

    @property
    def growth(self) -> int:
        """Bytes added by all layers."""
        return (self.after - self.before) * self.layers


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """Two predictions of one target.

    Attributes:
        differences: of storages.
        checkpointing: the modules whose checkpointing is gone or new; the differences include the
            activations.
    """

    schema: str = SCHEMA
    name: str
    before: Peak
    after: Peak
    differences: list[ReportDifference]
    checkpointing: list[Cause] = []

    @property
    def growth(self) -> int:
        """The change of the peak of allocated bytes."""
        return self.after.allocated - self.before.allocated


class _Place(NamedTuple):
    module: str
    op: str
    category: str


class _Change(NamedTuple):
    """A difference without its module, so that equal layers compare equal.

    Attributes:
        moved_from: with a `#` for each number of a layer, if those are the module's own.
    """

    kind: Kind
    category: str
    op: str
    before: int
    after: int
    moved_from: str | None
    source: str | None
    owner: str


_Groups = dict[_Place, list[Holder]]


def diff_reports(name: str, before: Report, after: Report) -> Diff:
    """Compare two reports."""
    folded: dict[_Change, dict[str, _Change]] = {}
    for module, change in _changes(_grouped(before), _grouped(after)):
        folded.setdefault(change, {})[module] = change
    differences = [
        _difference(module, change)
        for modules in folded.values()
        for module, change in fold(modules).items()
    ]
    sign = 1 if after.peak.allocated >= before.peak.allocated else -1
    differences.sort(key=lambda each: (-sign * each.growth, each.category, each.module, each.op))
    causes = causes_of(entry_of(before), entry_of(after), after)
    return Diff(
        name=name,
        before=before.peak,
        after=after.peak,
        differences=differences,
        checkpointing=[each for each in causes if each.checkpointing],
    )


def _difference(module: str, change: _Change) -> ReportDifference:
    layers = len(list(members(module)))
    made = ReportDifference(module=module, layers=layers, **change._asdict())
    if made.moved_from is None:
        return made
    numbers = iter(numbers_in(module))
    return replace(made, moved_from=re.sub("#", lambda _: next(numbers), made.moved_from))


def _grouped(report: Report) -> _Groups:
    groups: _Groups = {}
    for holder in report.at_peak.holders:
        op = (holder.op or "").removesuffix(".default")
        groups.setdefault(_Place(holder.module, op, holder.category), []).append(holder)
    return groups


def _changes(old: _Groups, new: _Groups) -> Iterator[tuple[str, _Change]]:
    gone = {place: _bytes(old[place]) for place in old if place not in new}
    for place, holders in new.items():
        after = _bytes(holders)
        if place in old:
            before = _bytes(old[place])
            if before != after:
                kind: Kind = "grew" if after > before else "shrank"
                yield place.module, _change(kind, place, before, after, None, holders)
            continue
        origin = _origin(place, after, gone)
        if origin is None:
            yield place.module, _change("appeared", place, 0, after, None, holders)
            continue
        del gone[origin]
        module = _numbered_as(origin.module, place.module) or "no module"
        place_before = f"{origin.category} in {module}"
        yield place.module, _change("moved", place, after, after, place_before, holders)
    for place, before in gone.items():
        yield place.module, _change("disappeared", place, before, 0, None, old[place])


def _origin(place: _Place, nbytes: int, gone: dict[_Place, int]) -> _Place | None:
    """The previous place with the same operation and bytes.

    Preferably in the same module, else in one of the same layer.
    """
    same = [each for each, size in gone.items() if each.op == place.op and size == nbytes]
    numbers = numbers_in(place.module)
    return min(
        same,
        key=lambda each: (each.module != place.module, numbers_in(each.module) != numbers, each),
        default=None,
    )


def _numbered_as(origin: str, module: str) -> str:
    """The name of a module, with a `#` for each number if another one has the same."""
    numbers = numbers_in(origin)
    if numbers != numbers_in(module):
        return origin
    return ".".join("#" if part in numbers else part for part in origin.split("."))


def _change(
    kind: Kind,
    place: _Place,
    before: int,
    after: int,
    moved_from: str | None,
    holders: list[Holder],
) -> _Change:
    source, owner = blame(holders)
    return _Change(kind, place.category, place.op, before, after, moved_from, source, owner)


def _bytes(holders: list[Holder]) -> int:
    return sum(holder.bytes for holder in holders)
