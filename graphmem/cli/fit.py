"""`graphmem fit`: the largest batch that fits on a card."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from graphmem.cli import options
from graphmem.cli.output import progress, put_result
from graphmem.cli.request import takes_request
from graphmem.fitting import BATCH, DEFAULT_LARGEST, Range, find_fit

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from graphmem.analysis import Request
    from graphmem.fitting import CardFit, Fit, Probe


@takes_request(
    "settings torch env assume autocast optimizer grads steps inference freeze checkpoint "
    "quantise lora offload"
)
def fit(
    target: options.Code,
    gpus: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            metavar="NAME",
            help="The card; repeatable. `graphmem gpus` lists them.  "
            f"[default: that of graphmem.toml, else {options.DEFAULT_GPU_NAME}]",
            show_default=False,
            autocompletion=options.card_names,
        ),
    ] = None,
    vary: Annotated[
        str | None,
        typer.Option(
            "--vary",
            metavar="KEY",
            help=f"The argument of build() to vary, a whole number.  [default: the batch, {BATCH}]",
            show_default=False,
        ),
    ] = None,
    smallest: Annotated[
        int, typer.Option("--min", metavar="N", help="The first value to try.")
    ] = 1,
    largest: Annotated[
        int, typer.Option("--max", metavar="N", help="The largest value to try.")
    ] = DEFAULT_LARGEST,
    multiple_of: Annotated[
        int, typer.Option("--multiple-of", metavar="N", help="Try multiples of N only.")
    ] = 1,
    *,
    request: Request,
    output_format: options.Format = "text",
    output: options.Output = None,
) -> None:
    """Find the largest batch, or value of any argument of build(), that fits on a card.

    A few sizes predict the border, and both sides of it are proven: each probe is traced and
    replayed on the card, so its verdict is exact except for the size of the CUDA context. The exit
    code is 1 if not even the smallest value fits on some card.

    Example: graphmem fit model.py:build --gpu t4 --gpu l4 --vary batch
    """
    cards = gpus or [options.card_of_the_project() or options.DEFAULT_GPU_NAME]
    over = Range(vary, smallest, largest, multiple_of)
    with progress() as report_progress:
        found = find_fit(target, request, cards, over, report_progress)
    put_result(output_format, output, found.to_json, partial(_print, found))
    if any(card.largest is None for card in found.cards):
        raise typer.Exit(1)


def _print(found: Fit, to: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from graphmem.units import format_bytes

    name = "batch" if found.vary == BATCH else found.vary
    for card in found.cards:
        to.print(
            Text.assemble(
                (f"{found.target} on {card.title}", "bold"),
                f" ({format_bytes(card.memory)}), torch {found.torch}; {name} is "
                + (BATCH if found.vary == BATCH else "an argument of build()"),
            )
        )
        to.print(_table(card, name))
        style = "bold green" if card.largest is not None else "bold red"
        to.print(Text(_answer(card, name), style=style))
        if card.refused is not None:
            to.print(Text(_where(card, name)))
            to.print(Padding(Text(card.refused.message, style="red"), (0, 0, 0, 5)))
        for line in _footnotes(card, name):
            to.print(Text(line, style="dim"))
        to.print()


def _table(card: CardFit, name: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for heading in (name, "peak allocated", "peak reserved"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for probe in card.probes:
        table.add_row(
            f"{probe.value:,}", f"{probe.allocated:,}", f"{probe.reserved:,}", _verdict(probe)
        )
    return table


def _verdict(probe: Probe) -> str:
    words = ["fits" if probe.fits else "out of memory"]
    if probe.fits and probe.cache_emptied:
        words.append("with an emptied cache")
    if probe.within_estimate:
        words.append("but within the uncertainty")
    return ", ".join(words)


def _answer(card: CardFit, name: str) -> str:
    if card.largest is None:
        return f"not even {name}={card.probes[0].value:,} fits on {card.title}"
    if not card.is_bounded:
        return f"every {_value_of(name)} that was tried fits, up to {card.largest:,} (--max)"
    return f"the largest {_value_of(name)} that fits on {card.title}: {card.largest:,}"


def _value_of(name: str) -> str:
    return name if name.startswith("batch") else f"value of {name}"


def _where(card: CardFit, name: str) -> str:
    refused = card.refused
    assert refused is not None
    parts = (
        f"{name}={refused.value:,} is out of memory in the {refused.phase} phase",
        f"of step {refused.step}" if refused.step >= 0 else "",
        f"at {refused.op.removesuffix('.default')}" if refused.op else "",
        f"in {refused.module}" if refused.module else "",
        f"({refused.source})" if refused.source else "",
        f"asking for {refused.requested:,} bytes",
    )
    return " ".join(part for part in parts if part)


def _footnotes(card: CardFit, name: str) -> Iterator[str]:
    from graphmem.report.answer import context_in_words
    from graphmem.units import format_bytes

    yield from (f"not as expected: {each}" for each in card.surprises)
    if not card.surprises and card.largest is not None:
        yield f"assumes that memory grows with the {_value_of(name)}"
    context = context_in_words(card.context, card.context_spread, card.context_uncertainty)
    yield f"PyTorch can use {card.capacity:,} bytes, after {context}"
    for nbytes, does in ((card.memory_spread, "take"), (card.memory_surplus, "free")):
        if nbytes:
            yield f"some drivers {does} another {format_bytes(nbytes)}"
