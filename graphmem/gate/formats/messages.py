"""Sentences shared by all formats."""

from __future__ import annotations

from graphmem.gate.causes import Cause
from graphmem.gate.check import Check, Result
from graphmem.gate.compare import Finding
from graphmem.gate.lock import Entry
from graphmem.report.answer import where
from graphmem.report.schema import OnCard
from graphmem.units import counted, format_bytes, format_exact


def summary(check: Check) -> str:
    """A summary of all targets in one line."""
    counts: dict[str, int] = {}
    for result in check.results:
        counts[result.status] = counts.get(result.status, 0) + 1
    parts = ", ".join(f"{count} {status}" for status, count in counts.items())
    cached = sum(result.is_cached for result in check.results)
    targets = counted(len(check.results), "target")
    written = f"; {_baseline_of(check)}" if check.is_update else ""
    return f"{targets}: {parts or 'none'}; {check.analysed} measured, {cached} cached{written}"


def _baseline_of(check: Check) -> str:
    failed = sum(result.failure is not None for result in check.results)
    if not failed:
        return "this is the baseline now"
    return f"the baseline of the {counted(failed, 'target')} with an error is as before"


def finding(result: Result, each: Finding) -> str:
    """The exceeded limit with exact bytes; for `fits`, the request that fails."""
    card = result.verdict and result.verdict.on_card
    if each.rule == "fits" and card and card.refused:
        return (
            f"{result.name}: fits: {format_exact(card.refused.requested)} requested "
            f"{where(card.refused)}, refused: {format_bytes(each.after - each.limit)} above the "
            f"{each.allowance}{_doubt(card)}. {card.refused.message}"
        )
    was = "" if each.before is None else f"{format_exact(each.before)} before, "
    return (
        f"{result.name}: {each.rule}: {was}{format_exact(each.after)} now, "
        f"{format_bytes(each.after - each.limit)} above {each.allowance}"
    )


def _doubt(card: OnCard) -> str:
    return ", within the uncertainty of the available memory" if card.within_estimate else ""


def cause(each: Cause) -> str:
    """A cause: module, line, owner, bytes before and after."""
    layers = f" in each of {each.layers}" if each.layers > 1 else ""
    size, sizes = format_bytes(each.growth), f"{format_exact(each.after)}{layers}"
    if each.before is not None:
        size, sizes = signed(each.growth), f"{each.before:,} -> {sizes}"
    if each.checkpointing is not None:
        module = each.module or "the whole model"
        line = f", {_CALLED[each.checkpointing]} at {each.source}" if each.source else ""
        what = f"checkpointing of {module} is {each.checkpointing}"
        what += f" ({each.instead} instead)" if each.instead else ""
        return f"{what}: {size} {in_words(each.category)}{line}; {sizes}"
    place = f"in {each.module}" if each.module else "outside any module"
    where = f" ({each.source})" if each.source else ""
    category = in_words(each.category)
    return f"{size} {category} {place}{where}: {each.owner or _NOTHING}; {sizes}"


def in_words(category: str) -> str:
    """A category as a word of a sentence."""
    return "kept by the script" if category == "kept" else category.replace("_", " ")


_CALLED = {"gone": "called without it", "new": "called"}
_NOTHING = "none is alive at the peak now"


def headline(result: Result, *, is_update: bool = False) -> str:
    """What comes before the causes if no limit is exceeded."""
    if result.status == "smaller":
        return f"{result.name} shrank"
    return f"{result.name} grew" if is_update else f"{result.name} grew within its limits"


def causes(result: Result) -> list[str]:
    """The causes, one line each, and the rest, so that every byte of the change is covered."""
    verdict = result.verdict
    if verdict is None:
        return []
    lines = [cause(each) for each in verdict.causes]
    written = format_bytes if any(each.before is None for each in verdict.causes) else signed
    by_size = sorted(verdict.rest.items(), key=lambda item: -abs(item[1]))
    rest = [f"{written(nbytes)} {in_words(category)}" for category, nbytes in by_size if nbytes]
    name = "everything else" if lines else "the only change"
    return [*lines, f"{name}: {', '.join(rest)}"] if rest else lines


def failure(result: Result) -> str:
    """The reason why a target could not be analysed."""
    assert result.failure is not None
    hint = f" (hint: {result.failure.hint})" if result.failure.hint else ""
    return f"{result.name}: {result.failure.message}{hint}"


def change(before: Entry | None, after: Entry) -> str:
    """The difference of the peaks, in words."""
    if before is None:
        return "no baseline"
    difference = after.allocated - before.allocated
    if not difference:
        return "same"
    share = f" ({100 * difference / before.allocated:+.1f} %)" if before.allocated else ""
    return f"{signed(difference)}{share}"


def signed(nbytes: int) -> str:
    """A difference with its sign."""
    return f"{'+' if nbytes > 0 else ''}{format_bytes(nbytes)}"


def advice(check: Check) -> str | None:
    """Advice on what to do with the baseline, if anything."""
    if check.is_update:
        return None
    statuses = {result.status for result in check.results}
    verdicts = [result.verdict for result in check.results if result.verdict]
    if any(finding.before is not None for each in verdicts for finding in each.findings):
        return "if the growth is intended, `graphmem check --update` makes it the baseline"
    if "new" in statuses:
        return "`graphmem check --update` adds the new targets to the baseline"
    if "smaller" in statuses:
        return "`graphmem check --update` tightens the baseline"
    return None


def baseline_note(result: Result) -> str | None:
    """A note if the baseline is from another torch or for another card."""
    verdict = result.verdict
    if verdict is None or verdict.before is None:
        return None
    before, after = verdict.before, verdict.after
    if before.torch != after.torch:
        return f"the baseline was made with torch {before.torch}, this with {after.torch}"
    if before.gpu != after.gpu:
        return f"the baseline was made for {before.gpu}, this for {after.gpu}"
    return None


def card_note(result: Result) -> str | None:
    """A note if the step barely fits."""
    card = result.verdict and result.verdict.on_card
    if not card or not card.fits or not (card.within_estimate or card.cache_emptied):
        return None
    emptied = " only because PyTorch flushed its cache" if card.cache_emptied else ""
    return f"{result.name} fits{emptied}, with {format_exact(card.margin)} left{_doubt(card)}"
