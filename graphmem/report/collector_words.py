"""What the report says where Python's cycle collector decided the peak (`report/collector.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from graphmem.report.collector_info import CollectorInfo
from graphmem.report.schema import OnCard, Report
from graphmem.units import format_both, format_bytes, format_exact, format_shape

COLLECTOR = "Python's cycle collector"


def fits_by_chance(report: Report, card: OnCard) -> bool:
    """Whether the program fits only because the collector came when it did."""
    left = _left(report)
    return card.fits and left is not None and left < 0


def fits_narrowly(report: Report, card: OnCard) -> bool:
    """Whether it may not fit with the least memory that was seen if the collector comes late."""
    left = _left(report)
    least = card.context_uncertainty + card.memory_spread
    return card.fits and left is not None and left < least


def at_verdict(report: Report, card: OnCard) -> Iterator[str]:
    """What a late collector leaves of the card."""
    left = _left(report)
    if left is None or left == card.margin:
        return
    if not card.fits:
        yield f"whether it fits may depend on when {COLLECTOR} runs"
    elif left < 0:
        yield f"{format_bytes(-left)} are missing ({format_exact(-left)}) if {COLLECTOR} comes late"
    else:
        yield f"{format_both(left)} if {COLLECTOR} comes late"


def at_peak(report: Report) -> Iterator[str]:
    """The bounds of the peak, and what makes it certain; each line goes on from "The peak"."""
    found = report.collector
    if not found:
        return
    low, high = found.lowest, found.highest
    told = [f"depends on when {COLLECTOR} frees {_freed(found)}"]
    if low.allocated < high.allocated:
        least, most = format_both(low.allocated), format_both(high.allocated)
        told.append(f"between {least} and {most} allocated")
    if low.reserved < high.reserved:
        # No bounds: which gaps the freed blocks leave differs from moment to moment.
        least, most = format_both(low.reserved), format_both(high.reserved)
        told.append(f"about {least} to {most} reserved")
    first, *others = told
    yield f"{first}: {', '.join(others)}"
    yield "is certain without the cycle, or with gc.disable() and gc.collect() at a fixed place"


def in_brief(report: Report) -> str:
    """The bounds of the allocated peak, to follow its bytes."""
    found = report.collector
    if not found or found.lowest.allocated == found.highest.allocated:
        return ""
    least, most = (format_bytes(each.allocated) for each in (found.lowest, found.highest))
    return f"; {least} to {most}, as {COLLECTOR} runs"


def _freed(found: CollectorInfo) -> str:
    """What the collector freed, with the largest of it."""
    shape = format_shape(found.shape)
    names = (f"`{found.name}`" if found.name else f"{found.dtype} [{shape}]", found.source)
    what, size = ", ".join(filter(None, names)), format_bytes(found.largest)
    if found.freed == 1:
        return f"{size} in a reference cycle ({what})"
    return f"{found.freed:,} tensors in reference cycles (the largest of {size}: {what})"


def _left(report: Report) -> int | None:
    """The card's capacity left if the collector comes late; None if it is not known."""
    return report.collector.margin if report.collector else None
