"""The causes of a change of the peak: what it holds more of, and what it holds less of.

Clauses:
  (1) bytes are compared by category and module, and layers whose names differ in a number
      together: where a moment later in the backward pass holds for `blocks.5.up` what an earlier
      one held for `blocks.1.up`, nothing has changed. Parameters, buffers and optimizer states,
      which last, are compared one by one. Groups with the same line and owner are one cause;
  (2) if checkpointing of modules that still run is gone, their additional activations are one
      cause, and the first; if it is new, the activations that they no longer hold are one;
  (3) a cause's line and owner are those of the current holders: if a named variable holds some, the
      variable's line; for checkpointing, the line that calls the module now;
  (4) without a baseline, the causes are what the peak holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from graphmem.gate.blame import blame
from graphmem.gate.lock import Entry
from graphmem.graph import Category
from graphmem.layer_ranges import fold, members, unfold
from graphmem.module_calls import ModuleCall
from graphmem.report import Report

_MOST_NAMES = 3
_LASTING = (Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE)
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")

Checkpointing = Literal["gone", "new"]


class Cause(msgspec.Struct, frozen=True):
    """Bytes that were added or removed; `module` may stand for several, `h.[0-11].mlp`.

    Attributes:
        before, after: bytes of each of the layers; `before` is None without a baseline.
        layers: how many modules have these bytes each; 1 if the bytes are those of all together.
        source: the line of the variable that holds it, else of the operation that made it.
        owner: why the bytes are alive; "" if nothing is left.
        checkpointing: whether checkpointing of the modules is gone or new.
        instead: the modules within that have it instead; "" if none do.
    """

    category: str
    module: str
    before: int | None
    after: int
    layers: int
    source: str | None
    owner: str
    checkpointing: Checkpointing | None = None
    instead: str = ""

    @property
    def growth(self) -> int:
        """Bytes added by all layers; without a baseline, all their bytes."""
        return (self.after - (self.before or 0)) * self.layers


class _Change(NamedTuple):
    before: int
    after: int


_Changes = dict[str, dict[str, _Change]]


def causes_of(before: Entry | None, after: Entry, report: Report) -> list[Cause]:
    """All causes, the largest in the direction of the whole change first."""
    changes = _changes(before, after)
    causes: list[Cause] = []
    if before is not None and before.checkpointed is not msgspec.UNSET:
        causes += _checkpointing(before.checkpointed, report.calls, changes)
    causes += _by_layer_group(changes, report, has_baseline=before is not None)
    direction = 1 if before is None or after.allocated >= before.allocated else -1

    def order(cause: Cause) -> tuple[object, ...]:
        is_against = cause.growth * direction < 0
        size = -abs(cause.growth)
        return is_against, not cause.checkpointing, size, cause.category, cause.module

    return sorted(causes, key=order)


def _changes(before: Entry | None, after: Entry) -> _Changes:
    old = before.modules if before is not None else {}
    changes: _Changes = {}
    for category in {**after.modules, **old}:
        was, now = old.get(category, {}), after.modules.get(category, {})
        both = {name: _Change(was.get(name, 0), now.get(name, 0)) for name in {**now, **was}}
        changes[category] = both
    return changes


def _checkpointing(
    before: Sequence[str], calls: Mapping[str, ModuleCall], changes: _Changes
) -> Iterator[Cause]:
    """Take the activations that checkpointing explains out of the changes."""
    old = [name for folded in before for name in members(folded)]
    now = unfold(calls)
    new = [name for name, call in now.items() if call.checkpointed]
    gone = {name: now[name].source for name in old if name in now and not _is_within(name, new)}
    added = {name: now[name].source for name in new if not _is_within(name, old)}
    activations = changes.get(Category.ACTIVATION, {})
    what: Checkpointing
    for what, sign, modules in (("gone", 1, gone), ("new", -1, added)):
        for folded, source in fold(modules).items():
            outer = list(members(folded))
            within = {name: each for name, each in activations.items() if _is_within(name, outer)}
            total = _total(within.values())
            if (total.after - total.before) * sign <= 0:
                continue
            finer = {name: 0 for name in new if what == "gone" and _is_within(name, outer)}
            instead = ", ".join(fold(finer))
            yield Cause(Category.ACTIVATION, folded, *total, 1, source, "", what, instead)
            for name in within:
                del activations[name]


def _by_layer_group(changes: _Changes, report: Report, *, has_baseline: bool) -> Iterator[Cause]:
    alike: dict[tuple[str, str | None, str, bool], dict[str, _Change]] = {}
    for category, group in _layer_groups(changes):
        holders = report.at_peak.holders
        now = [each for each in holders if each.category == category and each.module in group]
        total = _total(group.values())
        key = (category, *(blame(now) if now else (None, "")), total.after > total.before)
        alike.setdefault(key, {}).update(group)
    for (category, source, owner, _), modules in alike.items():
        one, layers = _total(modules.values()), 1
        if len(set(modules.values())) == 1:
            one, layers = next(iter(modules.values())), len(modules)
        before = one.before if has_baseline else None
        yield Cause(category, _names(modules), before, one.after, layers, source, owner)


def _layer_groups(changes: _Changes) -> Iterator[tuple[str, dict[str, _Change]]]:
    """The changes of each group of equal layers that has changed as a whole."""
    for category, modules in changes.items():
        groups: dict[str, dict[str, _Change]] = {}
        for name, each in modules.items():
            if each.before != each.after:
                key = name if category in _LASTING else _NUMBER.sub("*", name)
                groups.setdefault(key, {})[name] = each
        for group in groups.values():
            total = _total(group.values())
            if total.before != total.after:
                yield category, group


def _names(modules: Iterable[str]) -> str:
    folded = list(fold(dict.fromkeys(modules, 0)))
    if len(folded) > 1:
        folded = [name or "no module" for name in folded]
    more = f" and {len(folded) - _MOST_NAMES} more" if len(folded) > _MOST_NAMES else ""
    return ", ".join(folded[:_MOST_NAMES]) + more


def _total(changes: Iterable[_Change]) -> _Change:
    listed = list(changes)
    return _Change(sum(each.before for each in listed), sum(each.after for each in listed))


def _is_within(module: str, outer: Sequence[str]) -> bool:
    return any(not name or module == name or module.startswith(f"{name}.") for name in outer)
