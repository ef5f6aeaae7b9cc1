"""The baseline, `graphmem.lock`: exact bytes by target, phase, category and module.

Clauses:
  (1) everything is sorted and nothing depends on the machine, so the same code gives the same text;
  (2) one line stands for all equal layers (graphmem/layer_ranges.py);
  (3) an entry changes only when its bytes or its checkpointed modules change: a new torch that
      changes none leaves it as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from graphmem.errors import InputError
from graphmem.gate.messages import (
    LockEncodingError,
    LockSchemaError,
    NotLockError,
    UnreadableLockError,
)
from graphmem.layer_ranges import fold, unfold
from graphmem.report import Report

FILE = "graphmem.lock"
SCHEMA = "graphmem.lock/1"
_HEADER = "# The baseline of `graphmem check`, in bytes; `graphmem check --update` writes it.\n"
_CONFLICT = re.compile(r"^(<<<<<<<|=======|>>>>>>>)", re.MULTILINE)

Modules = dict[str, dict[str, int]]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one target.

    Attributes:
        gpu, torch: the card and version it was predicted for.
        allocated, reserved: bytes at the peak of allocated bytes.
        checkpointed: the modules that `torch.utils.checkpoint` runs, equal layers folded; unset in
            baselines of older versions.
        phases: the highest allocated bytes of each phase, over all steps.
        categories: bytes at the peak.
        modules: the same bytes by category and module, without the allocator's rounding.
    """

    gpu: str
    torch: str
    allocated: int
    reserved: int
    checkpointed: list[str] | msgspec.UnsetType = msgspec.UNSET
    phases: dict[str, int]
    categories: dict[str, int]
    modules: Modules

    def same_bytes(self, other: Entry) -> bool:
        """Whether two entries are equal apart from the version of torch."""
        return msgspec.structs.replace(other, torch=self.torch) == self


class Lock(msgspec.Struct, frozen=True, kw_only=True):
    """A baseline: entries by target name."""

    schema: str = SCHEMA
    targets: dict[str, Entry] = {}

    def updated(self, measured: Mapping[str, Entry], configured: frozenset[str]) -> Lock:
        """The baseline with changed entries replaced.

        Args:
            measured: the new measurements.
            configured: the names of all targets; entries of others are dropped.
        """
        kept = {name: entry for name, entry in self.targets.items() if name in configured}
        for name, entry in measured.items():
            if name not in kept or not kept[name].same_bytes(entry):
                kept[name] = entry
        return Lock(targets=kept)

    def to_toml(self) -> str:
        """The text of the file."""
        targets = {}
        for name in sorted(self.targets):
            entry = self.targets[name]
            modules = {each: fold(entry.modules[each]) for each in sorted(entry.modules)}
            folded = msgspec.structs.replace(
                entry,
                phases=dict(sorted(entry.phases.items())),
                categories=dict(sorted(entry.categories.items())),
                modules=modules,
            )
            targets[name] = folded
        text = msgspec.toml.encode(msgspec.structs.replace(self, targets=targets)).decode()
        return _HEADER + text


def entry_of(report: Report) -> Entry:
    """The baseline's entry for a report."""
    phases: dict[str, int] = {}
    for step in report.steps:
        for phase in step.phases:
            phases[phase.name] = max(phases.get(phase.name, 0), phase.peak)
    modules: Modules = {}
    for holder in report.at_peak.holders:
        of_category = modules.setdefault(holder.category, {})
        of_category[holder.module] = of_category.get(holder.module, 0) + holder.bytes
    return Entry(
        gpu=report.runtime.gpu,
        torch=report.runtime.torch,
        allocated=report.peak.allocated,
        reserved=report.peak.reserved,
        checkpointed=_checkpointed(report),
        phases=phases,
        categories={name: size for name, size in report.at_peak.by_category.items() if size},
        modules=modules,
    )


def _checkpointed(report: Report) -> list[str] | msgspec.UnsetType:
    if not report.calls:
        return msgspec.UNSET
    calls = unfold(report.calls)
    return list(fold({name: 0 for name, call in calls.items() if call.checkpointed}))


def read_lock(path: Path) -> Lock:
    """Read a baseline; an empty one if there is no file.

    Raises:
        InputError: the file has merge conflicts, or is not a baseline.
    """
    if not path.exists():
        return Lock()
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UnreadableLockError(path.name, error.strerror) from error
    except UnicodeDecodeError as error:
        raise LockEncodingError(path.name) from error
    conflict = _CONFLICT.search(text)
    if conflict:
        line = text.count("\n", 0, conflict.start()) + 1
        raise LockConflictError(
            f"{path.name}:{line} has a merge conflict",
            hint="`graphmem check --update` measures the merged code and rewrites the file",
        )
    try:
        lock = msgspec.toml.decode(text, type=Lock)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotLockError(path.name, error) from error
    if lock.schema != SCHEMA:
        raise LockSchemaError(path.name, lock.schema, SCHEMA)
    return Lock(targets={name: _unfolded(entry) for name, entry in lock.targets.items()})


def has_conflict(text: str) -> bool:
    """Whether the text of a baseline contains conflict markers."""
    return _CONFLICT.search(text) is not None


class LockConflictError(InputError):
    """The baseline contains git's conflict markers."""


def _unfolded(entry: Entry) -> Entry:
    modules = {category: unfold(sizes) for category, sizes in entry.modules.items()}
    return msgspec.structs.replace(entry, modules=modules)
