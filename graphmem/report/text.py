"""The report as text: answer and holders first, then phases, categories and findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from graphmem.plain_text import plain_text
from graphmem.report import answer
from graphmem.report.answer import indented
from graphmem.report.categories import CATEGORY_COLOURS, CATEGORY_NAMES
from graphmem.report.holders import HolderGroup, groups_of
from graphmem.report.schema import AssumptionInfo, Report, StepInfo
from graphmem.units import counted, format_bytes, format_exact, format_shape

LARGEST = 5
MOST_STEPS = 8
FIRST_STEPS = 3
LAST_STEPS = 2
MOST_PHASES = 16
FIRST_PHASES = 4
LAST_PHASES = 4
MOST_PLACES = 3
_BLOCKS = " ▁▂▃▄▅▆▇█"
_EIGHTHS = ("", *"▏▎▍▌▋▊▉█")
_BAR_WIDTH = 16


def report_as_text(report: Report, *, verbose: bool = False) -> str:
    """The report as plain text in 100 columns."""
    return plain_text(partial(print_report, report, verbose=verbose))


def print_report(
    report: Report, console: Console, *, verbose: bool = False, more: str = ""
) -> None:
    """Print the report; trailing blanks of tables are only printed to terminals.

    Args:
        report: the report.
        console: the console to print to.
        verbose: include derivative formulas and PyTorch's full message.
        more: the command that measures what would help.
    """
    _print(_all(report, verbose=verbose, more=more), console)


def print_verdict(report: Report, console: Console, *, verbose: bool = False) -> None:
    """Print the beginning of `print_report` while the rest is still being computed."""
    _print(answer.verdict(report, verbose=verbose), console)


def print_rest(report: Report, console: Console, *, verbose: bool = False) -> None:
    """Print everything after the verdict."""
    _print(_rest(report, verbose=verbose), console)


def print_brief(report: Report, console: Console) -> None:
    """Print three lines, unwrapped."""
    for line in answer.brief(report):
        console.print(line, soft_wrap=True)


def _print(lines: Iterable[RenderableType], console: Console) -> None:
    if console.is_terminal:
        _print_each(lines, console)
        return
    with console.capture() as printed:
        _print_each(lines, console)
    console.file.write(re.sub(" +$", "", printed.get(), flags=re.MULTILINE))


def _print_each(lines: Iterable[RenderableType], console: Console) -> None:
    for line in lines:
        is_whole = isinstance(line, Text) and bool(line.no_wrap)
        console.print(line, soft_wrap=is_whole)


def _all(report: Report, *, verbose: bool, more: str) -> Iterator[RenderableType]:
    if not answer.was_used(report):
        yield from _unused(report)
        yield from _findings(report)
        yield from _assumptions(report)
        return
    yield from answer.verdict(report, verbose=verbose, more=more)
    yield from _rest(report, verbose=verbose)


def _rest(report: Report, *, verbose: bool) -> Iterator[RenderableType]:
    yield from answer.advice(report)
    yield from answer.peak(report)
    for part in (_timeline, partial(_largest, verbose=verbose), _steps, _categories, _allocator):
        yield from part(report)
    for part in (_findings, _footer, _assumptions):
        yield from part(report)


def _unused(report: Report) -> Iterator[RenderableType]:
    runtime = report.runtime
    yield Text.assemble(("peak 0 B allocated (0 bytes)", "bold"), ": nothing ran on the card")
    yield indented(
        Text(
            f"{runtime.title} ({format_bytes(runtime.memory)}), torch {runtime.torch}", style="dim"
        )
    )


def _timeline(report: Report) -> Iterator[RenderableType]:
    """Allocated bytes over the trace, as one line of blocks that start at 0."""
    if not report.timeline:
        return
    highest = max(1, *report.timeline)
    top = len(_BLOCKS) - 1
    blocks = "".join(_BLOCKS[-(-nbytes * top // highest)] for nbytes in report.timeline)
    if report.steps:
        count = len(report.steps)
        yield Text(f"allocated over {counted(count, 'step')}", style="bold")
    yield indented(Text(blocks, style="cyan", no_wrap=True, overflow="crop"))
    yield Text()


def _largest(report: Report, *, verbose: bool) -> Iterator[RenderableType]:
    groups = groups_of(report.at_peak.holders, verbose=verbose)[:LARGEST]
    if not groups:
        return
    yield Text("largest at the peak, and why each is alive", style="bold")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for group in groups:
        table.add_row(format_bytes(group.bytes), _describe(group))
    yield table
    yield Text()


def _describe(group: HolderGroup) -> Text:
    first, count = group.first, len(group.holders)
    shape = format_shape(first.shape)
    parts = (
        f"{group.modules}," if group.modules else "",
        f"{count} x {format_bytes(first.bytes)}," if count > 1 else "",
        f"{first.dtype} [{shape}]",
        f"({first.source})" if first.source else "",
    )
    return Text.assemble(" ".join(filter(None, parts)), "\n", (group.reason, "dim"))


def _steps(report: Report) -> Iterator[RenderableType]:
    if not report.steps:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("step")
    table.add_column("phase")
    for column in ("start", "peak", "end"):
        table.add_column(column, justify="right", no_wrap=True)
    shown = _shown_steps(report)
    for before, step in zip([None, *shown], shown, strict=False):
        if before is not None and step.step != before.step + 1:
            table.add_row("…")
        _add_phases(table, step)
    yield table
    yield Text()


def _add_phases(table: Table, step: StepInfo) -> None:
    shown = _shown_phases(step)
    for before, i in zip([-1, *shown], shown, strict=False):
        if i != before + 1:
            table.add_row("", "…")
        phase = step.phases[i]
        bytes_then = map(_both, (phase.start, phase.peak, phase.end))
        table.add_row(str(step.step) if not i else "", phase.name, *bytes_then)


def _shown_phases(step: StepInfo) -> list[int]:
    """All phases; of many, as accumulated gradients have, the first, the last and the highest."""
    every = range(len(step.phases))
    if len(every) <= MOST_PHASES:
        return [*every]
    highest = max(every, key=lambda i: step.phases[i].peak)
    return sorted({*every[:FIRST_PHASES], highest, *every[-LAST_PHASES:]})


def _shown_steps(report: Report) -> list[StepInfo]:
    """All steps; if there are many, only the first, the last and that of the peak."""
    if len(report.steps) <= MOST_STEPS:
        return report.steps
    shown = {*range(FIRST_STEPS), report.peak.step, *range(len(report.steps))[-LAST_STEPS:]}
    return [step for step in report.steps if step.step in shown]


def _both(nbytes: int) -> str:
    return f"{nbytes:,}"


def _categories(report: Report) -> Iterator[RenderableType]:
    total = report.peak.allocated
    if not total:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
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
    """A bar as long as the category's share, in eighths of a character."""
    eighths = round(8 * _BAR_WIDTH * report.at_peak.by_category[category] / report.peak.allocated)
    blocks = _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8]
    return Text(blocks, style=CATEGORY_COLOURS[category])


def _allocator(report: Report) -> Iterator[RenderableType]:
    """The pools at the peak, and how much of them holds no tensor."""
    memory = report.memory
    if memory is None:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("pool at the peak")
    for column in ("segments", "reserved", "free", "largest free"):
        table.add_column(column, justify="right", no_wrap=True)
    for pool in memory.pools:
        table.add_row(
            pool.pool,
            str(pool.segments),
            *map(_both, (pool.reserved, pool.free, pool.largest_free_block)),
        )
    yield table
    parts = memory.fragmentation
    yield indented(
        f"unused but reserved: {_both(parts.in_split_segments)} in split segments, "
        f"{_both(parts.in_free_segments)} in free ones, {_both(parts.inside_blocks)} inside blocks"
    )
    yield Text()


def _findings(report: Report) -> Iterator[RenderableType]:
    if not report.findings:
        return
    yield Text("findings", style="bold")
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


def _assumptions(report: Report) -> Iterator[RenderableType]:
    if report.assumptions:
        yield Text()
        yield Text("assumed or left out", style="bold")
    alike: dict[tuple[str | None, ...], list[AssumptionInfo]] = {}
    for each in report.assumptions:
        key = (each.value, each.why, each.source, each.called_from)
        alike.setdefault(key, []).append(each)
    told: dict[str, list[str]] = {}
    for several in alike.values():
        told.setdefault(_assumption(several), []).append(_place(several))
    for assumption, places in told.items():
        shown = [place for place in places if place]
        more = len(shown) - MOST_PLACES
        shown[MOST_PLACES:] = [f"{more} more line{'s' * (more > 1)}"] if more > 0 else []
        yield indented(f"{assumption} ({'; '.join(shown)})" if shown else assumption)


def _assumption(alike: Sequence[AssumptionInfo]) -> str:
    """One line for an assumption made for many tensors, such as in a loop over weights."""
    first = alike[0]
    more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
    return f"{first.what}{more}: {first.value}; {first.why}"


def _place(alike: Sequence[AssumptionInfo]) -> str:
    """The line of assumptions that are alike, and how often it made them."""
    first, count = alike[0], sum(each.times for each in alike)
    times = f", {count} times" if count > 1 else ""
    caller = f", called from {first.called_from}" if first.called_from else ""
    return f"{first.source}{caller}{times}" if first.source else ""
