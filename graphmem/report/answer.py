"""The first lines of a report: whether it fits, what ran out and where, the peak, what helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from graphmem.compiled_code import GRAPHS_LEFT_OUT, PADDING
from graphmem.report import collector_words
from graphmem.report.advice_info import BatchInfo, ChangeInfo
from graphmem.report.schema import GROWTH, AssumptionInfo, OnCard, Peak, Refusal, Report
from graphmem.torch_releases.assumed import above_the_kernels
from graphmem.units import counted, format_both, format_bytes, format_exact

INDENT = 2
LEAK = "a leak: "
_LEAST_PINNED = _LEAST_COPIED = 1 << 20
_LEAST_ON_HOST, _MUCH_ON_HOST = 16 << 20, 1 << 30


def indented(line: str | Text, by: int = INDENT) -> Padding:
    """A line that keeps its indent when it wraps."""
    return Padding(line if isinstance(line, Text) else Text(line), (0, 0, 0, by))


def _command(line: str, by: int) -> Text:
    """A command on a single line, however long, so that it can be pasted."""
    return Text(" " * by + line, style="cyan", no_wrap=True)


def _numbered(number: int, text: str) -> Padding:
    """An item of a list, whose further lines begin where its text does."""
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_row(f"{number}.", text)
    return Padding(row, (0, 0, 0, INDENT))


def was_used(report: Report) -> bool:
    """Whether anything ran on the card or used its memory."""
    return bool(report.peak.allocated or report.operations)


def verdict(report: Report, *, verbose: bool = False, more: str = "") -> Iterator[Text | Padding]:
    """Whether the step fits on the card; if not, which request failed."""
    card = report.on_card
    if card is None:
        return
    if card.refused is None:
        yield from _fits(report, card)
    else:
        yield from _does_not_fit(report, card, card.refused, verbose=verbose)
    if more:
        yield indented(Text("measure the largest batch and the biggest savings:", style="dim"))
        yield _command(more, 2 * INDENT)
    yield Text()


def headline(report: Report) -> Text:
    """The verdict in one line."""
    card = report.on_card
    assert card is not None
    title = f"{report.runtime.title} ({format_bytes(report.runtime.memory)})"
    doubt = ""
    more = max((highest - report.peak.allocated for _, highest in _otherwise(report)), default=0)
    if collector_words.fits_by_chance(report, card):
        doubt = f", but not if {collector_words.COLLECTOR} comes late"
    elif more > card.margin >= 0:
        doubt = f", but may not: {format_bytes(more)} more may be allocated"
    elif card.within_estimate or collector_words.fits_narrowly(report, card):
        doubt = ", but within the uncertainty of the available memory"
    if card.refused is None:
        return Text.assemble((f"fits on {title}", "bold green"), doubt)
    return Text.assemble((f"does NOT fit on {title}: out of memory", "bold red"), doubt)


def _fits(report: Report, card: OnCard) -> Iterator[Text | Padding]:
    yield headline(report)
    rest = f" and {_context(card)}" if card.allowed is None else f" of {_allowed(card.allowed)}"
    yield indented(
        f"{format_bytes(card.margin)} to spare ({format_exact(card.margin)}), after "
        f"{format_bytes(card.reserved)} reserved{rest}"
    )
    yield from map(indented, collector_words.at_verdict(report, card))
    if card.cache_emptied:
        yield indented(f"only because PyTorch flushed its cache {_times(card)} (slow)")
    if card.caught:
        yield indented(f"the program caught {counted(card.caught, 'request')} that did not fit")
    yield from _late(card)
    yield from _without(card)
    yield from _leaks(report)
    if card.grows_by:
        left = counted(card.margin // card.grows_by, "more iteration")
        yield indented(f"if it goes on, memory runs out after about {left}")


def _does_not_fit(
    report: Report, card: OnCard, refused: Refusal, *, verbose: bool
) -> Iterator[Text | Padding]:
    yield headline(report)
    yield indented(where(refused))
    after = ", even after PyTorch flushed its cache" if card.cache_emptied else ""
    free = f"{format_bytes(refused.free)} free"
    if card.allowed is not None and card.allowed - refused.reserved < refused.free:
        left = format_bytes(max(0, card.allowed - refused.reserved))
        free = f"{left} left of {_allowed(card.allowed)}"
    yield indented(
        f"{format_bytes(refused.requested)} requested ({format_exact(refused.requested)}), "
        f"{free}{after}"
    )
    yield indented(f"{format_bytes(refused.allocated)} allocated, plus {_context(card)}")
    yield from map(indented, collector_words.at_verdict(report, card))
    yield from _without(card)
    yield from _leaks(report)
    message = refused.message if verbose else ". ".join(refused.message.split(". ")[:2]) + "."
    yield indented(Text(message, style="red"))


def _allowed(limit: int) -> str:
    return f"the {format_bytes(limit)} that a memory fraction allows"


def _leaks(report: Report) -> Iterator[Padding]:
    yield from (indented(Text(line, style="bold yellow")) for line in _leaks_in_words(report))


def _leaks_in_words(report: Report) -> Iterator[str]:
    """The program's leaks, the largest first."""
    for found in report.findings:
        if found.found_by == GROWTH:
            yield from (f"{LEAK}{line}" for line in found.lines if not line.startswith(" "))


def _times(card: OnCard) -> str:
    return "once" if card.cache_emptied == 1 else f"{card.cache_emptied} times"


def _late(card: OnCard) -> Iterator[Padding]:
    if card.late:
        yield indented(
            f"may reserve up to {format_both(card.late)} more: freed while another stream used it, "
            "which a slower card holds longer"
        )


def _without(card: OnCard) -> Iterator[Padding]:
    if card.did_without:
        yield indented(
            f"{card.did_without} of cuDNN's workspaces could not be allocated: cuDNN then takes "
            "another plan, which graphmem does not know"
        )


def _context(card: OnCard) -> str:
    drivers = (("take", card.memory_spread), ("free", card.memory_surplus))
    parts = [f"some drivers {verb} another {format_bytes(n)}" for verb, n in drivers if n]
    return context_in_words(card.context, card.context_spread, card.context_uncertainty, parts)


def context_in_words(estimate: int, less: int, more: int, notes: Sequence[str] = ()) -> str:
    """An estimate of the CUDA context with its bounds, and notes on it."""
    if less == more:
        told = f"{format_bytes(estimate)} ± {format_bytes(more)} of CUDA context"
    else:
        told = f"{format_bytes(estimate)} of CUDA context"
        bounds = f"{format_bytes(estimate - less)} to {format_bytes(estimate + more)} were seen"
        notes = [bounds, *notes]
    return f"{told} ({'; '.join(notes)})" if notes else told


def peak(report: Report) -> Iterator[Text | Padding]:
    """The peak: when and where it occurs, and its share of the card."""
    found, runtime = report.peak, report.runtime
    card = report.on_card
    wanted = report.memory is not None and card is not None and not card.fits
    yield Text.assemble(
        (f"peak {format_bytes(found.allocated)} allocated", "bold"),
        f" ({format_exact(found.allocated)})",
        ", on a card that is large enough" if wanted else "",
    )
    yield indented(where(found))
    share = 100 * found.allocated / runtime.memory
    yield indented(
        Text(
            f"{share:.1f} % of {runtime.title} ({format_bytes(runtime.memory)}), "
            f"torch {runtime.torch}",
            style="dim",
        )
    )
    yield from map(indented, bounds_in_words(report))
    yield from map(indented, host_in_words(report))
    yield Text()


def bounds_in_words(report: Report) -> Iterator[str]:
    """What the peak assumes: another release's composites, choices that only a real run makes."""
    version = report.runtime.torch
    for each in report.assumptions:
        if each.what == above_the_kernels(version):
            yield f"with the {each.value}, not of {version}"
    worst, padded = report.worst_routing_peak, report.padded_peak
    if worst is not None:
        yield (
            f"assumes tokens to spread over the experts as listed below; {format_both(worst)} "
            "if all go to the same experts, bar one for each of the others"
        )
    if any((each.what, each.value) == (PADDING, "no") for each in report.assumptions):
        shown = "--assume padding=true shows the peak"
        if padded is not None:
            shown = format_both(padded)
        yield (
            "assumes that the compiler pads no product of unaligned matrices; "
            f"{shown} if it pads all"
        )
    if any(each.what == GRAPHS_LEFT_OUT for each in report.assumptions):
        yield (
            "leaves out CUDA graphs and the pool that they keep; "
            "`graphmem analyze` and `graphmem run` of the same target follow them"
        )
    for each, highest in _otherwise(report):
        yield f"may be {format_both(highest)}, for {each.what} (below): {each.why}"
    for each in report.assumptions:
        if each.at_peak:
            yield f"includes an estimate, {each.what}: {each.value}; {each.why}"
    yield from collector_words.at_peak(report)


def _otherwise(report: Report) -> Iterator[tuple[AssumptionInfo, int]]:
    """The assumptions without which the peak is known to be higher, and how high it then is."""
    for each in report.assumptions:
        if each.highest and each.highest > report.peak.allocated:
            yield each, each.highest


def host_in_words(report: Report) -> list[str]:
    """The line on the host's memory, if the step pins or offloads, or keeps much there."""
    host = report.host
    if host is None:
        return []
    parts = []
    if host.pinned_requested >= _LEAST_PINNED:
        parts.append(f"{format_bytes(host.pinned)} pinned ({format_exact(host.pinned)})")
    is_offloading = host.copied >= _LEAST_COPIED and host.tensors >= _LEAST_ON_HOST
    if parts or is_offloading or host.tensors >= _MUCH_ON_HOST:
        exact = format_exact(host.tensors)
        parts.append(f"peak of tensors on the CPU {format_bytes(host.tensors)} ({exact})")
    return ["host: " + ", ".join(parts)] if parts else []


def advice(report: Report) -> Iterator[Text | Padding]:
    """Advice: the largest batch, the changes that save most, and how to try them."""
    found = report.advice
    if found is None:
        return
    if found.batch is not None:
        yield _largest(found.batch)
        if found.batch.command and found.batch.fits != found.batch.traced:
            yield _command(found.batch.command, 2 * INDENT)
    if found.changes:
        yield Text("biggest savings, each measured", style="bold")
    for number, change in enumerate(found.changes, 1):
        yield _numbered(
            number, f"{change.what}: saves {format_bytes(change.saves)}, then {then(change)}"
        )
        yield indented(Text(f"cost: {change.price}", style="dim"), 5)
        if change.command:
            yield _command(change.command, 5)
    for each in found.unmeasured:
        yield indented(Text(each, style="dim"))
    yield Text()


def then(change: ChangeInfo) -> str:
    """The verdict after a change."""
    if change.fits:
        return f"it fits with {format_bytes(change.margin)} to spare"
    return f"it is still {format_bytes(abs(change.margin))} short"


def verdict_in_words(report: Report) -> list[str]:
    """The lines of the verdict, headline first; none for reports of older versions."""
    lines = (each.renderable if isinstance(each, Padding) else each for each in verdict(report))
    return [line.plain for line in lines if isinstance(line, Text) and line.plain]


def largest_batch_in_words(report: Report) -> str:
    """The largest batch that fits, if it was searched for."""
    batch = report.advice.batch if report.advice is not None else None
    return "" if batch is None else _largest(batch).plain


def _largest(batch: BatchInfo) -> Text:
    """The answer in one line."""
    if not batch.fits:
        return Text.assemble((f"not even a batch of {batch.fails} fits", "bold"))
    until = f", {batch.fails:,} does not fit" if batch.fails is not None else ""
    known = f"a batch of {batch.fits:,} fits"
    if batch.fails == batch.fits + 1:
        known = f"the largest batch that fits is {batch.fits:,}"
    return Text.assemble((known, "bold"), f" ({batch.traced:,} was traced{until})")


def where(place: Peak | Refusal) -> str:
    """The phase, operation, module and line of a peak or refusal, in words."""
    parts = (
        f"in the {place.phase} phase of step {place.step}" if place.step >= 0 else "before step 0",
        f"at {place.op.removesuffix('.default')}" if place.op else "",
        f"in {place.module}" if place.module else "",
        f"({place.source})" if place.source else "",
    )
    return " ".join(part for part in parts if part)


def brief(report: Report) -> Iterator[Text]:
    """Three lines: the verdict, the peak, its place or that where memory runs out, or a leak."""
    card = report.on_card
    refused = None if card is None else card.refused
    if card is None:
        yield Text(f"on {report.runtime.title} ({format_bytes(report.runtime.memory)})")
    elif refused is None:
        rest = "" if card.allowed is None else f" of {_allowed(card.allowed)}"
        yield headline(report) + Text(f": {format_bytes(card.margin)} to spare{rest}")
    else:
        yield headline(report)
    found = report.peak
    yield Text(
        f"peak {format_bytes(found.allocated)} allocated ({format_exact(found.allocated)}"
        f"{collector_words.in_brief(report)}), {format_bytes(found.reserved)} reserved"
    )
    place = where(found) if was_used(report) else "nothing ran on the card"
    last = [f"out of memory {where(refused)}"] if refused is not None else []
    yield Text("; ".join([*last, *_leaks_in_words(report)]) or place)
