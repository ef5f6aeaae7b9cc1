"""`graphmem closed-form`: the bytes of a model as a polynomial in its dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from graphmem.cli import options
from graphmem.cli.messages import NamedTwiceError, NotPositiveError
from graphmem.cli.output import progress, put
from graphmem.cli.request import takes_request

if TYPE_CHECKING:
    from graphmem.analysis import Request


Symbols = Annotated[
    str,
    typer.Option(
        "--symbols",
        metavar="KEY=LETTER,…",
        help="Arguments of build() that become symbols, such as batch=B,seq=T; without a letter "
        "the name itself is the symbol.",
        show_default=False,
    ),
]
Of = Annotated[
    Literal["peak", "saved", "steady", "parameters"],
    typer.Option(
        "--of",
        help="What is alive at the peak, what autograd holds after the forward pass, what is alive "
        "after the last iteration, or the parameters.",
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--sizes",
        metavar="KEY=N,N,…",
        help="Sizes to trace for one symbol, in place of the sizes next to its own; repeatable.",
    ),
]
Check = Annotated[
    str | None,
    typer.Option(
        "--check",
        metavar="KEY=N,…",
        help="The size at which the formula is checked against a trace.  [default: about half of "
        "every symbol]",
        show_default=False,
    ),
]
Names = Annotated[
    str | None,
    typer.Option(
        "--names", metavar="N=LETTER,…", help="Letters for constants, such as 768=d,12=h."
    ),
]


@takes_request("settings gpu torch env autocast optimizer grads steps inference freeze")
def closed_form(
    target: options.Code,
    symbols: Symbols,
    of: Of = "peak",
    sizes: Sizes = None,
    check: Check = None,
    names: Names = None,
    *,
    request: Request,
    output_format: Annotated[
        Literal["text", "json", "latex", "python"],
        typer.Option("--format", help="Output format."),
    ] = "text",
    output: options.Output = None,
) -> None:
    """Derive your model's memory as an exact polynomial in its dimensions.

    The step is traced at several sizes near its own, each storage is matched across them, and the
    result is checked at a size that was not used. It counts requested bytes; the report gives the
    difference to allocated bytes at the model's own size. Exit code 1: the check failed.

    Example: graphmem closed-form model.py:build --symbols batch=B,seq=T
    """
    from graphmem.symbolic import closed_form as find_closed_form
    from graphmem.symbolic.formats import FORMATS

    letters = {key: letter or key for key, letter in _items(symbols, "--symbols")}
    constants = {_whole(value, "--names"): name for value, name in _items(names, "--names")}
    with progress() as report_progress:
        form = find_closed_form(
            target,
            letters,
            of=of,
            sizes=_size_lists(sizes),
            check=_sizes(check) if check else None,
            names=constants,
            progress=report_progress,
            **vars(request),
        )
    text = FORMATS[output_format](form)
    put(text, output)
    if not form.is_checked:
        raise typer.Exit(1)


def _items(text: str | None, option: str) -> list[tuple[str, str]]:
    """`a=b,c=d` as pairs; the second is "" where there is no `=`."""
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    pairs = [part.partition("=") for part in parts]
    found = [(key.strip(), value.strip()) for key, _, value in pairs]
    if len({key for key, _ in found}) < len(found):
        raise NamedTwiceError(option, text)
    return found


def _size_lists(texts: Sequence[str] | None) -> dict[str, list[int]]:
    pairs = options.pairs(texts, "--sizes")
    return {
        key: [_whole(size.strip(), "--sizes") for size in value.split(",") if size.strip()]
        for key, value in pairs.items()
    }


def _sizes(text: str) -> dict[str, int]:
    return {key: _whole(size, "--check") for key, size in _items(text, "--check")}


def _whole(text: str, option: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise NotPositiveError(option, text)
    return int(text)
