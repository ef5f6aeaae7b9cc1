"""`graphmem explain`: why bytes are there, and what would lower the peak."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from graphmem.advice.commands import command_of
from graphmem.cli import options
from graphmem.cli.output import console, progress
from graphmem.cli.request import takes_request
from graphmem.units import counted, format_both, format_bytes, format_exact, format_shape

if TYPE_CHECKING:
    from graphmem.advice.candidates import Advice, Candidate
    from graphmem.advice.subjects import Explained
    from graphmem.analysis import Request
    from graphmem.graph import Op

SHOWN = 20


@takes_request("settings gpu torch env assume autocast optimizer grads steps freeze", steps=2)
def explain(
    target: options.Target,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="A storage (s12), a module (h.0.mlp), a parameter (h.0.mlp.weight), a line "
            "(model.py:41) or an operator (gelu).",
            show_default=False,
        ),
    ] = None,
    *,
    request: Request,
) -> None:
    """Explain why a module, line or tensor is in memory, and what would free it.

    Without a name: the ten changes that would lower the peak most. Each is measured by tracing the
    changed step, which takes as long as `graphmem analyze`. A saved step cannot be traced again;
    its changes are estimated by the passes.

    Example: graphmem explain model.py:build h.0.mlp
    """
    from graphmem.advice.candidates import advise, candidates
    from graphmem.advice.subjects import explain_subject
    from graphmem.analysis import run_analysis
    from graphmem.record import is_record

    with progress() as report_progress:
        analysis = run_analysis(target, request, report_progress)
        peak = analysis.report.peak.allocated
        if name is None and is_record(target):
            lines = _candidate_lines(target, peak, candidates(request, analysis))
        elif name is None:
            lines = _advice_lines(target, peak, advise(target, request, analysis, report_progress))
        else:
            lines = _subject_lines(name, explain_subject(analysis, name))
    for line in lines:
        console().print(line, markup=False, soft_wrap=True)


def _advice_lines(target: str, peak: int, found: list[Advice]) -> Iterator[str]:
    yield f"peak {format_bytes(peak)} allocated ({format_exact(peak)})"
    yield "what would lower it most, each measured by tracing the changed step:"
    for number, advice in enumerate(found, 1):
        candidate = advice.candidate
        share = 100 * advice.saves_bytes / peak
        saved = format_bytes(advice.saves_bytes)
        saves = f"saves {saved} ({advice.saves_bytes:,} bytes, {share:.1f} %)"
        yield from _lines_of(number, candidate, saves)
        yield f"    try:   {command_of('analyze', target, candidate.request)}"
    if not found:
        yield "nothing that graphmem knows to try"


def _candidate_lines(target: str, peak: int, found: Iterable[Candidate]) -> Iterator[str]:
    yield f"peak {format_bytes(peak)} allocated ({format_exact(peak)})"
    yield f"what may lower it, as far as {target} tells; `graphmem whatif` on the code measures it:"
    for number, each in enumerate(sorted(found, key=lambda each: -(each.frees_bytes or 0)), 1):
        saves = "not known before it is traced"
        if each.frees_bytes is not None:
            freed = format_both(each.frees_bytes)
            saves = f"frees {freed} of saved tensors at the end of the forward pass"
        yield from _lines_of(number, each, saves)


def _lines_of(number: int, candidate: Candidate, saves: str) -> Iterator[str]:
    yield ""
    yield f"{number:2}. {candidate.what}: {saves}"
    yield f"    cost: {candidate.price}"
    yield f"    where: {candidate.line}"


def _origin(op: Op) -> str:
    place = op.source or op.module
    name = op.target.removesuffix(".default")
    return f"{name} ({place})" if place else name


def _subject_lines(name: str, found: list[Explained]) -> Iterator[str]:
    total = sum(each.storage.nbytes for each in found)
    at_peak = sum(each.storage.nbytes for each in found if each.at_peak)
    yield (
        f"{name}: {counted(len(found), 'storage')}, {format_both(total)}, "
        f"{format_bytes(at_peak)} of them alive at the peak"
    )
    for each in found[:SHOWN]:
        storage = each.storage
        shape = format_shape(storage.shape)
        made_by = f" by {_origin(each.op)}" if each.op else ""
        yield ""
        yield (
            f"s{storage.id} {storage.dtype} [{shape}] {format_bytes(storage.nbytes)}{made_by}"
            f"{', at the peak' if each.at_peak else ''}"
        )
        for holding in each.holdings:
            first = "the start" if holding.first_op is None else f"operation {holding.first_op}"
            last = "the end" if holding.last_op is None else f"operation {holding.last_op}"
            yield f"    from {first} to {last}: {holding.rule}"
            yield f"        until {holding.lets_go}"
    if len(found) > SHOWN:
        yield f"\nand {len(found) - SHOWN:,} more"
