"""Compare a measurement with its limits and its baseline: findings, and their causes.

Clauses:
  (1) `max_*` limit the measurement, `max_increase` limits its growth over the baseline; `fits` is
      the verdict for a card (`graphmem/capacity.py`): a step that reserves more than PyTorch can
      have there still fits if emptying the cache is enough;
  (2) a category counts requested bytes at the peak; a module pattern counts those of the module
      and of everything below it;
  (3) the causes are those of the peak's change (`graphmem/gate/causes.py`); if a limit is exceeded
      although nothing grew, what the peak holds.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from graphmem.gate.causes import Cause, causes_of
from graphmem.gate.config import TargetConfig
from graphmem.gate.limits import Increase, is_below
from graphmem.gate.lock import Entry, entry_of
from graphmem.gpus import find_gpu
from graphmem.report import Report
from graphmem.report.schema import ROUNDING, OnCard
from graphmem.units import format_bytes

_CAUSES = 5


class Finding(msgspec.Struct, frozen=True):
    """A limit that is exceeded.

    Attributes:
        rule: the key of the configuration, such as `max_increase.activations`.
        before: the baseline's bytes; None if the rule does not involve the baseline.
        limit: the most bytes allowed.
        allowance: the limit as written in the configuration.
    """

    rule: str
    before: int | None
    after: int
    limit: int
    allowance: str


class TargetVerdict(msgspec.Struct, frozen=True):
    """The gate's verdict on a measured target.

    Attributes:
        before: the baseline's entry, or None.
        causes: the largest, growth first if the peak grew; empty without a change or a finding.
        rest: what all other causes add by category, and what the allocator's rounding does, so
            that causes and rest are the whole change; if nothing grew, the whole peak.
        on_card: the verdict on the card of `fits`, or None.
        budget_left: what `max_allocated` leaves of the peak, negative above it; None without it.
    """

    before: Entry | None
    after: Entry
    findings: list[Finding]
    causes: list[Cause]
    on_card: OnCard | None = None
    rest: dict[str, int] = {}
    budget_left: int | None = None


def compare(
    config: TargetConfig, before: Entry | None, report: Report, on_card: OnCard | None = None
) -> TargetVerdict:
    """Check a report against a target's limits and its baseline.

    Args:
        config: the target's limits.
        before: the baseline's entry, if any.
        report: the measurement.
        on_card: the verdict on the card of `config.fits`, if any.
    """
    after = entry_of(report)
    findings = [*_findings(config, before, after), *_refusals(config, on_card)]
    change = after.allocated - before.allocated if before is not None else 0
    exceeds_baseline = any(finding.before is not None for finding in findings)
    causes: list[Cause] = []
    rest: dict[str, int] = {}
    if findings or change:
        baseline = before if change > 0 or exceeds_baseline or not findings else None
        causes, rest = _largest(causes_of(baseline, after, report))
        whole = change if baseline is not None else after.allocated
        rest[ROUNDING] = whole - sum(rest.values()) - sum(cause.growth for cause in causes)
    budget = config.max_allocated.allocated
    left = None if budget is None else budget - after.allocated
    return TargetVerdict(before, after, findings, causes, on_card, rest, left)


def _largest(causes: list[Cause]) -> tuple[list[Cause], dict[str, int]]:
    """The largest causes in their order, and the growth of all others by category."""
    by_size = sorted(causes, key=lambda cause: (not cause.checkpointing, -abs(cause.growth)))
    largest, others = by_size[:_CAUSES], by_size[_CAUSES:]
    rest: dict[str, int] = {}
    for cause in others:
        rest[cause.category] = rest.get(cause.category, 0) + cause.growth
    return [cause for cause in causes if cause in largest], rest


def _findings(config: TargetConfig, before: Entry | None, after: Entry) -> Iterator[Finding]:
    for each in _limits(config, after):
        if each.after > each.limit:
            yield each
    if before is None:
        return
    for rule, old, new, increase in _increases(config, before, after):
        limit = increase.allowed(old)
        if new > limit:
            yield Finding(rule, old, new, limit, f"{format_bytes(old)} + {increase.text}")


def _limits(config: TargetConfig, after: Entry) -> Iterator[Finding]:
    limits = config.max_allocated
    measured: list[tuple[str, int, int | None]] = [
        ("max_allocated", after.allocated, limits.allocated),
        ("max_reserved", after.reserved, config.max_reserved),
    ]
    for key, category, limit in limits.by_category():
        measured.append((f"max_allocated.{key}", after.categories.get(category, 0), limit))
    for pattern, limit in limits.modules.items():
        measured.append((f"max_allocated.modules.{pattern}", _bytes_below(after, pattern), limit))
    for rule, nbytes, most in measured:
        if most is not None:
            yield Finding(rule, None, nbytes, most, format_bytes(most))


def _refusals(config: TargetConfig, on_card: OnCard | None) -> Iterator[Finding]:
    if config.fits is None or on_card is None or on_card.fits:
        return
    capacity = on_card.capacity
    room = f"{format_bytes(capacity)} that PyTorch can use on {find_gpu(config.fits).title}"
    yield Finding("fits", None, capacity - on_card.margin, capacity, room)


def _increases(
    config: TargetConfig, before: Entry, after: Entry
) -> Iterator[tuple[str, int, int, Increase]]:
    limits = config.max_increase
    if limits.allocated is not None:
        yield "max_increase", before.allocated, after.allocated, limits.allocated
    for key, category, limit in limits.by_category():
        old, new = (entry.categories.get(category, 0) for entry in (before, after))
        yield f"max_increase.{key}", old, new, limit
    for pattern, limit in limits.modules.items():
        old, new = (_bytes_below(entry, pattern) for entry in (before, after))
        yield f"max_increase.modules.{pattern}", old, new, limit


def _bytes_below(entry: Entry, pattern: str) -> int:
    return sum(
        nbytes
        for modules in entry.modules.values()
        for module, nbytes in modules.items()
        if is_below(module, pattern)
    )
