"""The report for people: the peak and its holders first, then the phases and the categories."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from graphmem.plain_text import plain_text
from graphmem.report.categories import CATEGORY_COLOURS, CATEGORY_NAMES
from graphmem.report.schema import AssumptionInfo, Holder, OnCard, Peak, Refusal, Report, StepInfo
from graphmem.units import format_bytes, format_exact

LARGEST = 5
MOST_STEPS = 8
FIRST_STEPS = 3
LAST_STEPS = 2
_BLOCKS = " ▁▂▃▄▅▆▇█"
_EIGHTHS = ("", *"▏▎▍▌▋▊▉█")
_BAR_WIDTH = 24
_INDENT = " " * 5


def report_as_text(report: Report) -> str:
    """The report as plain text of 100 columns."""
    return plain_text(partial(print_report, report))


def print_report(report: Report, console: Console) -> None:
    """Print the report; the blanks that fill a table's last cells are for terminals only."""
    if console.is_terminal:
        _print(report, console)
        return
    with console.capture() as printed:
        _print(report, console)
    console.file.write(re.sub(" +$", "", printed.get(), flags=re.MULTILINE))


def _print(report: Report, console: Console) -> None:
    parts = (
        _headline,
        _verdict,
        _timeline,
        _largest,
        _steps,
        _categories,
        _allocator,
        _findings,
        _footer,
        _assumptions,
    )
    for part in parts if _was_used(report) else (_unused, _findings, _assumptions):
        for line in part(report):
            console.print(line)


def _was_used(report: Report) -> bool:
    """Whether anything ran on the card or took memory there."""
    return bool(report.peak.allocated or report.operations or report.steps)


def _unused(report: Report) -> Iterator[Text]:
    runtime = report.runtime
    yield Text.assemble(("peak 0 B allocated (0 bytes)", "bold"), ": nothing ran on the card")
    yield Text(
        f"{_INDENT}{runtime.title} ({format_bytes(runtime.memory)}), torch {runtime.torch}",
        style="dim",
    )


def _headline(report: Report) -> Iterator[Text]:
    peak = report.peak
    yield Text.assemble(
        ("peak ", "bold"),
        (format_bytes(peak.allocated), "bold"),
        f" allocated ({format_exact(peak.allocated)})",
    )
    yield Text(f"{_INDENT}{where(peak)}")
    runtime = report.runtime
    share = 100 * peak.allocated / runtime.memory
    yield Text(
        f"{_INDENT}on {runtime.title} ({format_bytes(runtime.memory)}, {share:.1f} % of it), "
        f"torch {runtime.torch}",
        style="dim",
    )
    yield from _routing(report)
    yield Text()


def _routing(report: Report) -> Iterator[Text]:
    """The bound, where the peak hangs on a routing that only a real run knows."""
    worst = report.worst_routing_peak
    if worst is not None:
        yield Text(
            f"{_INDENT}with tokens spread over experts as assumed below; {format_bytes(worst)} "
            f"({format_exact(worst)}) if all go to the same experts, but one for each of the others"
        )


def where(place: Peak | Refusal) -> str:
    """The moment and the place in words."""
    parts = (
        f"in the {place.phase} phase of step {place.step}" if place.step >= 0 else "before step 0",
        f"at {place.op.removesuffix('.default')}" if place.op else "",
        f"in {place.module}" if place.module else "",
        f"({place.source})" if place.source else "",
    )
    return " ".join(part for part in parts if part)


def _verdict(report: Report) -> Iterator[Text | Padding]:
    """Whether the step fits on the card, and what PyTorch would say where it does not."""
    if report.memory is None:
        return
    card = report.memory.on_card
    title = report.runtime.title
    doubt = ", within the estimate of the card's room" if card.within_estimate else ""
    if card.refused is None:
        yield Text.assemble((f"fits on {title}", "bold green"), doubt)
        yield Text(
            f"{_INDENT}{format_bytes(card.margin)} left ({format_exact(card.margin)}) beside "
            f"{format_bytes(card.reserved)} reserved and {_context(card)}"
        )
        yield from _emptied(card)
    else:
        yield Text.assemble((f"runs out on {title}", "bold red"), doubt)
        yield Text(f"{_INDENT}{where(card.refused)}")
        yield Text(
            f"{_INDENT}{format_bytes(card.refused.requested)} requested "
            f"({format_exact(card.refused.requested)}) beside {_context(card)}"
        )
        yield from _emptied(card)
        yield Padding(Text(card.refused.message, style="red"), (0, 0, 0, len(_INDENT)))
    yield Text()


def _context(card: OnCard) -> str:
    context = context_in_words(card.context, card.context_spread, card.context_uncertainty)
    return f"{context}{_spread(card)}"


def context_in_words(estimate: int, less: int, more: int) -> str:
    """An estimate of the CUDA context with its bounds."""
    if less == more:
        return f"{format_bytes(estimate)} ± {format_bytes(more)} of CUDA context"
    bounds = f"{format_bytes(estimate - less)} to {format_bytes(estimate + more)} were seen"
    return f"{format_bytes(estimate)} of CUDA context ({bounds})"


def _spread(card: OnCard) -> str:
    spread = ((card.memory_spread, "less"), (card.memory_surplus, "more"))
    parts = [f"{format_bytes(nbytes)} {word}" for nbytes, word in spread if nbytes]
    return f" (some drivers leave {', others '.join(parts)})" if parts else ""


def _emptied(card: OnCard) -> Iterator[Text]:
    if card.cache_emptied:
        times = "once" if card.cache_emptied == 1 else f"{card.cache_emptied} times"
        yield Text(f"{_INDENT}PyTorch emptied its cache {times} on the way")
    if card.did_without:
        yield Text(
            f"{_INDENT}{card.did_without} of cuDNN's workspaces were refused: it takes another "
            "plan, which is not known"
        )


def _timeline(report: Report) -> Iterator[Text]:
    """Allocated bytes over the trace, as one line of blocks that stand on 0."""
    if not report.timeline:
        return
    highest = max(1, *report.timeline)
    top = len(_BLOCKS) - 1
    blocks = "".join(_BLOCKS[-(-nbytes * top // highest)] for nbytes in report.timeline)
    steps = f"  {len(report.steps)} steps" if report.steps else ""
    yield Text.assemble(_INDENT, (blocks, "cyan"), (steps, "dim"))
    yield Text()


def _largest(report: Report) -> Iterator[Text | Table]:
    if not report.at_peak.holders:
        return
    yield Text(f"the {LARGEST} largest holders at the peak, and why each is alive", style="bold")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for holder in report.at_peak.holders[:LARGEST]:
        table.add_row(format_bytes(holder.bytes), _describe(holder))
    yield table
    yield Text()


def _describe(holder: Holder) -> Text:
    shape = " x ".join(map(str, holder.shape)) or "scalar"
    where = " ".join(
        part for part in (holder.module, f"({holder.source})" if holder.source else "") if part
    )
    return Text.assemble(
        f"{holder.dtype} [{shape}] {where}\n".replace(" \n", "\n"), (holder.reason, "dim")
    )


def _steps(report: Report) -> Iterator[Text | Table]:
    if not report.steps:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("step")
    table.add_column("phase")
    for column in ("start", "peak", "end"):
        table.add_column(column, justify="right", no_wrap=True)
    shown = _shown_steps(report)
    for before, step in zip([None, *shown], shown, strict=False):
        if before is not None and step.step != before.step + 1:
            table.add_row("…")
        for i, phase in enumerate(step.phases):
            table.add_row(
                str(step.step) if not i else "",
                phase.name,
                *(_both(nbytes) for nbytes in (phase.start, phase.peak, phase.end)),
            )
    yield table
    yield Text()


def _shown_steps(report: Report) -> list[StepInfo]:
    """All steps, or where they are many, the first, the last and that of the peak."""
    if len(report.steps) <= MOST_STEPS:
        return report.steps
    shown = {*range(FIRST_STEPS), report.peak.step, *range(len(report.steps))[-LAST_STEPS:]}
    return [step for step in report.steps if step.step in shown]


def _both(nbytes: int) -> str:
    return f"{nbytes:,}"


def _categories(report: Report) -> Iterator[Text | Table]:
    total = report.peak.allocated
    if not total:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("at the peak")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for category, nbytes in sorted(report.at_peak.by_category.items(), key=lambda item: -item[1]):
        if nbytes:
            name = CATEGORY_NAMES[category]
            share = f"{100 * nbytes / total:.1f} %"
            table.add_row(name, format_bytes(nbytes), f"{nbytes:,}", share, _bar(category, report))
    yield table
    yield Text()


def _bar(category: str, report: Report) -> Text:
    """A bar as long as the category's share, in eighths of a letter."""
    eighths = round(8 * _BAR_WIDTH * report.at_peak.by_category[category] / report.peak.allocated)
    blocks = _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8]
    return Text(blocks, style=CATEGORY_COLOURS[category])


def _allocator(report: Report) -> Iterator[Text | Table]:
    """The pools at the peak, and what of them holds no tensor's bytes."""
    memory = report.memory
    if memory is None:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("pool at the peak")
    for column in ("segments", "reserved", "free", "largest free block"):
        table.add_column(column, justify="right", no_wrap=True)
    for pool in memory.pools:
        table.add_row(
            pool.pool,
            str(pool.segments),
            *map(_both, (pool.reserved, pool.free, pool.largest_free_block)),
        )
    yield table
    parts = memory.fragmentation
    yield Text(
        f"held by no tensor: {_both(parts.in_split_segments)} in split segments, "
        f"{_both(parts.in_free_segments)} in free ones, {_both(parts.inside_blocks)} inside blocks"
    )
    yield Text()


def _findings(report: Report) -> Iterator[Text | Padding]:
    if not report.findings:
        return
    yield Text("what the passes found", style="bold")
    for found in report.findings:
        yield Text(f"  {found.found_by}")
        for line in found.lines:
            told = line.lstrip()
            yield Padding(Text(told), (0, 0, 0, 4 + len(line) - len(told)))
    yield Text()


def _footer(report: Report) -> Iterator[Text]:
    model = report.model
    yield Text(
        f"saved for backward {format_bytes(report.saved_for_backward)} "
        f"({format_exact(report.saved_for_backward)}), "
        f"{model.parameters:,} parameters, {report.operations:,} operations"
    )


def _assumptions(report: Report) -> Iterator[Text]:
    if report.assumptions:
        yield Text()
        yield Text("assumed or left out", style="bold")
    alike: dict[tuple[str | None, ...], list[AssumptionInfo]] = {}
    for each in report.assumptions:
        key = (each.value, each.why, each.source, each.called_from)
        alike.setdefault(key, []).append(each)
    yield from map(_assumption, alike.values())


def _assumption(alike: Sequence[AssumptionInfo]) -> Text:
    """One line for what a line of the program reads of many tensors, as in a loop over weights."""
    first = alike[0]
    more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
    count = sum(each.times for each in alike)
    times = f", {count} times" if count > 1 else ""
    caller = f", called from {first.called_from}" if first.called_from else ""
    where = f" ({first.source}{caller}{times})" if first.source else ""
    return Text(f"  {first.what}{more}: {first.value}; {first.why}{where}")
