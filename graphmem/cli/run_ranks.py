"""`graphmem run --rank all`: the memory of several ranks of a job."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from graphmem.cli.messages import OneRankOnlyError
from graphmem.cli.output import write_text
from graphmem.cores import usable_cores
from graphmem.plain_text import PLAIN_WIDTH, Console, plain_text, width_for

if TYPE_CHECKING:
    from rich.table import Table

    from graphmem.live.several_ranks import RankInfo, RanksReport
    from graphmem.ranks.journal import Collectives
    from graphmem.ranks.mismatches import Mismatch
    from graphmem.ranks.world import World


_SIGNALLED = 128
"""A shell's exit code after a signal is this and the signal's number."""
_OUT_OF_MEMORY = (
    "graphmem: hint: Linux kills a process with SIGKILL when this machine's memory runs out; "
    "--rank 0 runs one rank alone"
)


def run_ranks(
    worlds: Sequence[World],
    arguments: Sequence[str],
    output_format: str,
    output: Path | None,
    kept: Sequence[Path | None],
) -> NoReturn:
    """Run ranks, each in a process, and report them; exit like the first that failed.

    Args:
        worlds: the ranks that run, each with its world.
        arguments: those of `graphmem run`, without the rank and the output.
        output_format: "text" or "json".
        output: a file for the report, or None for stderr.
        kept: further outputs, which only a single rank can have.

    Raises:
        InputError: another output was requested, or the collectives of ranks do not match.
    """
    from graphmem.live.several_ranks import MEETING, RanksReport, outcomes

    if any(kept):
        raise OneRankOnlyError()

    def command(rank: int, report: Path) -> list[str]:
        start = ["run", "--rank", str(rank)]
        return [*start, "--format", "json", "--output", str(report), *arguments]

    told: set[str] = set()
    found: list[RankInfo] = []
    made: dict[int, Collectives] = {}
    ranks = [world.rank for world in worlds]
    begun, at_once = time.monotonic(), usable_cores()
    for outcome in outcomes(ranks, command, at_once):
        if not found and len(ranks) > MEETING:
            typer.echo(_how_long(len(ranks), at_once, time.monotonic() - begun), err=True)
        sys.stdout.write(outcome.stdout)
        for line in outcome.stderr.splitlines():
            if line not in told:  # ranks print many of the same lines
                typer.echo(line, err=True)
        told.update(outcome.stderr.splitlines())
        found.append(outcome.info)
        if outcome.collectives is not None:
            made[outcome.info.rank] = outcome.collectives
    _show(RanksReport.of(worlds[0].size, found), output_format, output)
    _tell_mismatch(made)
    if any(each.exit_code == -signal.SIGKILL for each in found):
        typer.echo(_OUT_OF_MEMORY, err=True)
    exit_code = next((each.exit_code for each in found if each.exit_code), 0)
    raise typer.Exit(exit_code if exit_code >= 0 else _SIGNALLED - exit_code)


def _tell_mismatch(made: Mapping[int, Collectives]) -> None:
    """Tell in what ranks differ first; an error, unless it is in doubt.

    Raises:
        InputError: the collectives or messages of ranks do not match.
    """
    from graphmem.ranks.crossings import first_crossing
    from graphmem.ranks.error_messages import MismatchedCollectivesError, MismatchedMessagesError
    from graphmem.ranks.mismatches import first_mismatch

    mismatch = first_mismatch(made)
    if mismatch is not None and mismatch.doubt is None:
        differ = MismatchedMessagesError if mismatch.are_messages else MismatchedCollectivesError
        raise differ(mismatch.ranks, mismatch)
    if mismatch is not None:
        typer.echo(_in_doubt(mismatch), err=True)
        return
    crossing = first_crossing(made)
    if crossing is not None and crossing.is_certain:
        raise MismatchedMessagesError(crossing.mismatch.ranks, crossing.mismatch)
    if crossing is not None:
        typer.echo(_both_send(crossing.mismatch), err=True)


def _both_send(found: Mismatch) -> str:
    one, other = found.ranks
    return (
        f"graphmem: ranks {one} and {other} both send to each other before either receives, so "
        "real ones hang unless NCCL can buffer what they send; those of batch_isend_irecv do "
        f"not{found}"
    )


def _how_long(ranks: int, at_once: int, seconds: float) -> str:
    """How long many ranks take, by the first."""
    minutes = math.ceil(seconds * math.ceil(ranks / at_once) / 60)
    return (
        f"graphmem: {ranks} ranks run {at_once} at once, and the first took {seconds:.0f} s: about "
        f"{minutes} min for all; --rank 0,{ranks - 1} runs two of them"
    )


def _in_doubt(mismatch: Mismatch) -> str:
    differ = (
        "exchange different messages" if mismatch.are_messages else "make different collectives"
    )
    return (
        f"graphmem: ranks {mismatch.ranks[0]} and {mismatch.ranks[1]} {differ}, "
        f"perhaps only because each was given its own values instead of the other's at "
        f"{mismatch.doubt} (docs/ranks.md){mismatch}"
    )


def variables(options: Sequence[str], program: Sequence[str]) -> dict[str, str]:
    """Environment variables by which a rank can run another one beside it.

    Args:
        options: the options of `graphmem run`, as in `run_ranks`.
        program: the program and its arguments.
    """
    from graphmem.ranks.messages import COMMAND

    begun = [sys.executable, "-P", "-m", "graphmem", "run", "--rank", "RANK"]
    return {COMMAND: json.dumps([*begun, *options, *program])}


def _show(report: RanksReport, output_format: str, output: Path | None) -> None:
    if output_format == "json":
        text = report.to_json()
    else:
        width = PLAIN_WIDTH if output is not None else width_for(sys.stderr) or PLAIN_WIDTH
        text = plain_text(partial(_print, report), width)
    if output is not None:
        write_text(output, text)
    else:
        typer.echo(text, nl=False, err=True)


def _print(report: RanksReport, console: Console) -> None:
    from graphmem.report.text import print_report
    from graphmem.units import format_exact

    console.print(_table(report))
    by_rank = {each.rank: each.report for each in report.ranks if each.report is not None}
    if report.fullest is None or report.emptiest is None:
        return
    fullest, emptiest = by_rank[report.fullest], by_rank[report.emptiest]
    for name, rank, found in (
        ("fullest", report.fullest, fullest),
        ("emptiest", report.emptiest, emptiest),
    ):
        console.print(f"{name}: rank {rank}, peak {format_exact(found.peak.allocated)}")
    console.print()
    console.print(f"rank {report.fullest}", style="bold")
    print_report(fullest, console)


def _table(report: RanksReport) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column(f"ranks of {report.world_size}")
    for heading in ("peak allocated", "peak reserved"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    alike: dict[tuple[str, ...], list[int]] = {}
    for each in report.ranks:
        alike.setdefault(_row(each), []).append(each.rank)
    for row, ranks in alike.items():
        table.add_row(in_words(ranks), *row)
    return table


def _row(info: RankInfo) -> tuple[str, ...]:
    from graphmem.report.answer import where

    ended = _ended(info.exit_code)
    if info.report is None:
        return "", "", ended or "ended without a report"
    peak = info.report.peak
    place = where(peak) if peak.allocated else "nothing ran on the card"
    return f"{peak.allocated:,}", f"{peak.reserved:,}", ", ".join(filter(None, (place, ended)))


def _ended(exit_code: int) -> str:
    """How a rank ended, in words; "" if it ended well."""
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}" if exit_code else ""


def in_words(ranks: Sequence[int]) -> str:
    """Ranks in words, such as "0-3, 7"."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
