"""Two reports beside each other: what appeared, went, grew, shrank and moved at the peak.

Clauses:
  (1) storages are matched by module, operation and category, never by position; several of one
      kind are one sum;
  (2) what went in one place and appeared in another, with equal operation and bytes, moved;
  (3) equal differences of equal layers are one, `h.[0-11].mlp`;
  (4) what explains most of the change of the peak comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from graphmem.gate.blame import blame
from graphmem.layer_ranges import fold, members
from graphmem.report import Report
from graphmem.report.schema import Holder, Peak

SCHEMA = "graphmem.diff/1"

Kind = Literal["appeared", "went", "grew", "shrank", "moved"]


class ReportDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it was.

    Attributes:
        module: may stand for equal layers; `layers` says how many.
        before, after: requested bytes at the peak, of one of the layers.
        moved_from: module and category where it was before.
        source, owner: of what is there now, or was before where it went.
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
        """Bytes added by all of the layers."""
        return (self.after - self.before) * self.layers


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """Two predictions of one target."""

    schema: str = SCHEMA
    name: str
    before: Peak
    after: Peak
    differences: list[ReportDifference]

    @property
    def growth(self) -> int:
        """What the peak of allocated bytes gained."""
        return self.after.allocated - self.before.allocated


class _Place(NamedTuple):
    module: str
    op: str
    category: str


class _Change(NamedTuple):
    """All of a difference but its module, so that equal layers are equal."""

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
        ReportDifference(module=module, layers=len(list(members(module))), **change._asdict())
        for modules in folded.values()
        for module, change in fold(modules).items()
    ]
    sign = 1 if after.peak.allocated >= before.peak.allocated else -1
    differences.sort(key=lambda each: (-sign * each.growth, each.category, each.module, each.op))
    return Diff(name=name, before=before.peak, after=after.peak, differences=differences)


def _grouped(report: Report) -> _Groups:
    groups: _Groups = {}
    for holder in report.at_peak.holders:
        op = (holder.op or "").removesuffix(".default")
        groups.setdefault(_Place(holder.module, op, holder.category), []).append(holder)
    return groups


def _changes(old: _Groups, new: _Groups) -> Iterator[tuple[str, _Change]]:
    went = {place: _bytes(old[place]) for place in old if place not in new}
    for place, holders in new.items():
        after = _bytes(holders)
        if place in old:
            before = _bytes(old[place])
            if before != after:
                kind: Kind = "grew" if after > before else "shrank"
                yield place.module, _change(kind, place, before, after, None, holders)
            continue
        origin = _origin(place, after, went)
        if origin is None:
            yield place.module, _change("appeared", place, 0, after, None, holders)
            continue
        del went[origin]
        place_before = f"{origin.category} in {origin.module or 'no module'}"
        yield place.module, _change("moved", place, after, after, place_before, holders)
    for place, before in went.items():
        yield place.module, _change("went", place, before, 0, None, old[place])


def _origin(place: _Place, nbytes: int, went: dict[_Place, int]) -> _Place | None:
    """Where something of the same operation and bytes was before, the same module first."""
    same = [each for each, size in went.items() if each.op == place.op and size == nbytes]
    return min(same, key=lambda each: (each.module != place.module, each), default=None)


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
