"""Compare a measurement with its limits and its baseline: findings, and their causes.

Clauses:
  (1) `max_*` limit the measurement, `max_increase` limits its growth over the baseline; `fits` is
      the verdict for a card (`graphmem/capacity.py`): a step that reserves more than PyTorch can
      have there still fits if emptying the cache is enough;
  (2) a category counts requested bytes at the peak; a module pattern counts those of the module
      and of everything below it;
  (3) if a limit is exceeded, the causes are what grew at the peak by category and module; if
      nothing grew, the largest ones. A cause's line and owner are those of the current holders of
      that category and module: if a named variable holds some, the variable's line.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from graphmem.gate.blame import blame
from graphmem.gate.config import TargetConfig
from graphmem.gate.limits import Increase, is_below
from graphmem.gate.lock import Entry, entry_of
from graphmem.gpus import find_gpu
from graphmem.layer_ranges import fold, members
from graphmem.report import Report
from graphmem.report.schema import Holder, OnCard
from graphmem.units import format_bytes

_CAUSES = 5


class Cause(msgspec.Struct, frozen=True):
    """Bytes that grew at the peak; `module` may stand for equal layers, `h.[0-11].mlp`.

    Attributes:
        before, after: bytes of one of the layers; `before` is None if there is no growth.
        layers: how many modules it stands for.
        source: the line of the variable that holds it, else of the operation that made it.
        owner: why the bytes are alive.
    """

    category: str
    module: str
    before: int | None
    after: int
    layers: int
    source: str | None
    owner: str

    @property
    def growth(self) -> int:
        """Bytes added by all layers; without a baseline, all their bytes."""
        return (self.after - (self.before or 0)) * self.layers


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
        causes: what grew, largest growth first; empty without growth and findings.
        rest: the growth or shrinkage of everything else, so that causes and rest are the whole
            change; if nothing grew, the bytes of everything else.
        on_card: the verdict on the card of `fits`, or None.
        budget_left: what `max_allocated` leaves of the peak, negative above it; None without it.
    """

    before: Entry | None
    after: Entry
    findings: list[Finding]
    causes: list[Cause]
    on_card: OnCard | None = None
    rest: int = 0
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
    has_grown = before is not None and after.allocated > before.allocated
    exceeds_baseline = any(finding.before is not None for finding in findings)
    causes: list[Cause] = []
    rest = 0
    if findings or has_grown:
        baseline = before if has_grown or exceeds_baseline else None
        causes = _causes(baseline, after, report)
        change = after.allocated - (baseline.allocated if baseline is not None else 0)
        rest = change - sum(cause.growth for cause in causes)
    budget = config.max_allocated.allocated
    left = None if budget is None else budget - after.allocated
    return TargetVerdict(before, after, findings, causes, on_card, rest, left)


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
    room = f"{format_bytes(capacity)} that PyTorch can have on {find_gpu(config.fits).title}"
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


def _causes(before: Entry | None, after: Entry, report: Report) -> list[Cause]:
    """The largest growths, with equal layers folded."""
    holders: dict[tuple[str, str], list[Holder]] = {}
    for holder in report.at_peak.holders:
        holders.setdefault((holder.category, holder.module), []).append(holder)
    causes = []
    for category, modules in after.modules.items():
        grown: dict[str, tuple[int | None, int, str | None, str]] = {}
        for module, nbytes in modules.items():
            old = before.modules.get(category, {}).get(module, 0) if before else None
            if nbytes > (old or 0):
                grown[module] = (old, nbytes, *blame(holders[category, module]))
        for module, (was, nbytes, source, owner) in fold(grown).items():
            layers = len(list(members(module)))
            causes.append(Cause(category, module, was, nbytes, layers, source, owner))
    causes.sort(key=lambda cause: (-cause.growth, cause.category, cause.module))
    return causes[:_CAUSES]
