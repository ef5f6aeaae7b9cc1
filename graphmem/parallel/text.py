"""The text of a plan and of a search."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from graphmem.parallel.schema import CandidateLayout, Plan, Search, StageInfo
from graphmem.report.categories import CATEGORY_NAMES, COMMUNICATION
from graphmem.units import format_bytes, format_exact

_COLUMNS = ("parameter", "gradient", "optimizer_state", "activation", COMMUNICATION)
_HEADS = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer_state": "optimizer",
    "activation": "activations",
    COMMUNICATION: "buffers",
}


def print_plan(plan: Plan, title: str, console: Console) -> None:
    """Print a plan."""
    for part in (
        _verdict(plan, title),
        _stages(plan),
        _peak(plan),
        _host(plan),
        _traffic(plan),
        _tensor(plan),
        _notes(plan.notes),
    ):
        for line in part:
            console.print(line)


def _verdict(plan: Plan, title: str) -> Iterator[Text | Padding]:
    fullest = max(plan.stages, key=lambda stage: stage.reserved)
    yield Text.assemble((title, "bold"), f" on {plan.gpus} x {plan.gpu}")
    fits = ("fits", "bold green") if plan.fits else ("does NOT fit", "bold red")
    where = f" on stage {fullest.stage}" if len(plan.stages) > 1 else ""
    nccl = " and NCCL" if plan.gpus > 1 else ""
    yield Text.assemble(
        fits,
        f": peak {format_bytes(fullest.peak)} allocated ({format_exact(fullest.peak)}){where},",
    )
    yield _indented(
        f"{format_bytes(fullest.reserved)} reserved, "
        f"{format_bytes(plan.context)} for the CUDA context{nccl}, of {format_bytes(plan.memory)}: "
        f"{format_bytes(abs(fullest.headroom))} "
        f"{'to spare' if fullest.headroom >= 0 else 'short'}"
    )
    yield Text()


def _stages(plan: Plan) -> Iterator[Text | Table]:
    yield Text("the most that one rank holds of each category, and its peak", style="bold")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    if len(plan.stages) > 1:
        table.add_column("stage")
        table.add_column("blocks", justify="right")
        table.add_column("in flight", justify="right")
    shown = [each for each in _COLUMNS if any(stage.most.get(each) for stage in plan.stages)]
    for column in (*(_HEADS[each] for each in shown), "peak"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("phase")
    for stage in plan.stages:
        which = (str(stage.stage), str(stage.blocks), str(stage.in_flight))
        figures = (format_bytes(stage.most.get(each, 0)) for each in shown)
        table.add_row(
            *(which if len(plan.stages) > 1 else ()),
            *figures,
            format_bytes(stage.peak),
            stage.phase,
        )
    yield table
    yield Text()


def _peak(plan: Plan) -> Iterator[Text | Table]:
    fullest = max(plan.stages, key=lambda stage: stage.reserved)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("at the peak" + (f" of stage {fullest.stage}" if len(plan.stages) > 1 else ""))
    for column in ("", "bytes", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    for category, nbytes in sorted(fullest.at_peak.items(), key=lambda item: -item[1]):
        if nbytes:
            share = f"{100 * nbytes / fullest.peak:.1f} %"
            table.add_row(
                CATEGORY_NAMES.get(category, category), format_bytes(nbytes), f"{nbytes:,}", share
            )
    yield table
    yield Text()


def _host(plan: Plan) -> Iterator[Text]:
    for stage in plan.stages:
        host = stage.host
        total = host.optimizer_state + host.parameters + host.gradients
        if total:
            yield Text(
                f"on the host, each rank{_of(stage, plan)}: {format_bytes(total)} "
                f"({format_exact(total)}), {format_bytes(host.pinned)} of it pinned"
            )
            yield Text()


def _of(stage: StageInfo, plan: Plan) -> str:
    return f" of stage {stage.stage}" if len(plan.stages) > 1 else ""


def _traffic(plan: Plan) -> Iterator[Text | Table]:
    busiest = max(plan.stages, key=lambda stage: sum(each.bytes for each in stage.traffic))
    if not busiest.traffic:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("sent by one rank in one step" + _of(busiest, plan))
    for column in ("collective", "ranks", "", "bytes"):
        table.add_column(column, justify="left" if column == "collective" else "right")
    for each in busiest.traffic:
        table.add_row(
            each.what, each.collective, str(each.ranks), format_bytes(each.bytes), f"{each.bytes:,}"
        )
    yield table
    yield Text()


def _tensor(plan: Plan) -> Iterator[Text | Padding]:
    if plan.divided:
        yield Text(
            "divided by tensor parallelism; everything else is whole on each rank", style="bold"
        )
        yield from map(_indented, plan.divided)
        yield Text()


def _notes(lines: list[str]) -> Iterator[Text | Padding]:
    yield Text("how exact this is", style="bold")
    yield from map(_indented, lines)


def _indented(line: str) -> Padding:
    """A line that keeps its indent when it wraps."""
    return Padding(Text(line), (0, 0, 0, 2))


def print_search(search: Search, console: Console) -> None:
    """Print what a search found."""
    found = len(search.fitting)
    console.print(
        Text.assemble(
            (f"{search.target} on {search.gpus} x {search.gpu}", "bold"),
            f": {found} layouts shown of those that fit; {search.tried} tried in "
            f"{search.seconds:.1f} s, {search.impossible} more are impossible",
        )
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("layout", overflow="fold")
    for column in ("peak", "left", "sent a step"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in search.fitting:
        table.add_row(*_row(each))
    console.print(table)
    console.print(Text())
    for line in _notes(search.notes):
        console.print(line)


def _row(each: CandidateLayout) -> Iterator[str]:
    yield each.title
    for nbytes in (each.peak, each.headroom, each.traffic):
        yield format_bytes(nbytes)
