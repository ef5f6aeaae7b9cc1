"""Output of commands: the terminal with colour and progress, or a file, written atomically."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.status import Status

from graphmem.files import write_bytes, write_text
from graphmem.plain_text import PLAIN_WIDTH, Console, plain_text, visible, width_for

if TYPE_CHECKING:
    from graphmem.analysis import Analysis

__all__ = [
    "console",
    "hint_at_cards",
    "keep",
    "progress",
    "put",
    "put_result",
    "write_bytes",
    "write_text",
]


def console() -> Console:
    """The console for results: as wide as the terminal, or 100 columns without one."""
    return Console(highlight=False, soft_wrap=False, width=width_for(sys.stdout))


def put(text: str, file: Path | None) -> None:
    """Write a document to a file, or to the terminal as it is."""
    if file:
        write_text(file, visible(text))
    else:
        typer.echo(visible(text), nl=False)


def put_result(
    output_format: str,
    file: Path | None,
    to_json: Callable[[], str],
    show: Callable[[Console], None],
    width: int = PLAIN_WIDTH,
) -> None:
    """Write a result as JSON or as `show` prints it, to a file of `width` columns or here."""
    if output_format == "json":
        put(to_json(), file)
    elif file:
        write_text(file, plain_text(show, width))
    else:
        show(console())


def keep(
    analysis: Analysis,
    html: Path | None,
    record: Path | None,
    tell: Callable[[str], None],
    *,
    with_source: bool,
    more: str = "",
) -> None:
    """Write the page and the saved step of an analysis, if requested."""
    if html is not None:
        from graphmem.render.page import page

        tell(f"drawing {html}")
        write_text(html, page(analysis, with_source=with_source, more=more))
    if record is not None:
        from graphmem.record import save

        tell(f"saving the step to {record}")
        save(analysis.step, record)


def hint_at_cards(title: str) -> None:
    """Say on stderr that the card is the default."""
    if sys.stderr.isatty():
        hint = (
            f"hint: no card was named, so this is for {title}; name yours with --gpu, or in "
            "graphmem.toml, which `graphmem init` writes"
        )
        Console(stderr=True, highlight=False).print(hint, style="dim", markup=False)


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A progress line on stderr; silent unless that is a terminal."""
    stderr = Console(stderr=True)
    if not stderr.is_terminal:
        yield lambda message: None
        return
    with Status("starting", console=stderr) as status:
        yield status.update
