"""Text format for terminals and logs: a table, then the problems."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from graphmem.gate.check import Check, Result
from graphmem.gate.formats import messages
from graphmem.plain_text import plain_text
from graphmem.units import format_bytes

_WIDTH = 200
_STYLES = {"failed": "bold red", "error": "bold red", "smaller": "green", "larger": "yellow"}


def as_text(check: Check) -> str:
    """The outcome as plain text."""
    text = plain_text(partial(print_check, check), _WIDTH)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def print_check(check: Check, console: Console) -> None:
    """Print the outcome."""
    console.print(_table(check))
    for result in check.results:
        for line in _details(result, is_update=check.is_update):
            _print(line, console)
    console.print()
    console.print(messages.summary(check))
    advice = messages.advice(check)
    if advice:
        console.print(Text.assemble(("hint: ", "bold"), advice), soft_wrap=True)


def _print(line: Text, console: Console) -> None:
    """Print a line; a terminal wraps it with a hanging indent, a log keeps it whole."""
    if not console.is_terminal:
        console.print(line, soft_wrap=True)
        return
    indent = len(line.plain) - len(line.plain.lstrip())
    for number, part in enumerate(line.wrap(console, console.width - 4)):
        console.print(Padding(part, (0, 0, 0, indent + 2 if number else 0)))


def _table(check: Check) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("target")
    for column in ("baseline", "now", "change"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for result in check.results:
        style = _STYLES.get(result.status, "")
        table.add_row(result.name, *_sizes(result), Text(result.status, style))
    return table


def _sizes(result: Result) -> tuple[str, str, str]:
    verdict = result.verdict
    if verdict is None:
        return "-", "-", "-"
    before = "-" if verdict.before is None else format_bytes(verdict.before.allocated)
    after = format_bytes(verdict.after.allocated)
    return before, after, messages.change(verdict.before, verdict.after)


def _details(result: Result, *, is_update: bool) -> Iterator[Text]:
    if result.failure is not None:
        yield Text()
        yield Text.assemble(("error: ", "bold red"), messages.failure(result))
        if result.failure.user_traceback:
            yield Text(result.failure.user_traceback.rstrip())
    card_note = messages.card_note(result)
    if card_note:
        yield Text(f"note: {card_note}")
    if result.verdict is None or not (result.verdict.findings or messages.causes(result)):
        return
    yield Text()
    for finding in result.verdict.findings:
        yield Text.assemble(("failed: ", "bold red"), messages.finding(result, finding))
    if not result.verdict.findings:
        yield Text(messages.headline(result, is_update=is_update))
    note = messages.baseline_note(result)
    if note:
        yield Text(f"  note: {note}")
    for line in messages.causes(result):
        yield Text(f"  {line}")
