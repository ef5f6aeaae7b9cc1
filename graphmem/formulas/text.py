"""The sheet as text: terms, one line per formula, then each formula part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from graphmem.formulas.comparison import FormulaComparison
from graphmem.formulas.sheet import Sheet, SheetSection
from graphmem.formulas.tabled import Table as Figures
from graphmem.formulas.tabled import format_in
from graphmem.formulas.terms import LETTERS, MEANINGS
from graphmem.units import format_bytes, format_exact

FILE_WIDTH = 120


def print_sheet(sheet: Sheet, console: Console) -> None:
    """Print the sheet; the output of a source's own program is printed unchanged."""
    for part in (_terms(sheet), _overview(sheet), _verdicts(sheet)):
        for line in part:
            console.print(line)
    for section in sheet.sections:
        if section.missing:
            continue
        for block in _section(section):
            if isinstance(block, str):
                console.file.write(f"{block}\n")
            else:
                console.print(block)
    for line in _lacking(sheet):
        console.print(line)


def _lacking(sheet: Sheet) -> Iterator[RenderableType]:
    """The sections without figures, grouped by what they lack."""
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for section in sheet.sections:
        if section.missing:
            alike.setdefault(tuple(section.missing.items()), []).append(section.name)
    for missing, names in alike.items():
        yield Text.assemble((", ".join(names), "bold"))
        by_reason: dict[str, list[str]] = {}
        for name, reason in missing:
            by_reason.setdefault(reason, []).append(f"{LETTERS[name]} ({name})")
        for reason, lacking in by_reason.items():
            yield Text(f"  lack {', '.join(lacking)}: {reason}")
        yield Text(f"  give them as `--term {LETTERS[missing[0][0]]}=…`", style="dim")


def _terms(sheet: Sheet) -> Iterator[RenderableType]:
    table = _new_table("term", "", "value", "from", right=("value",))
    for term in sheet.terms.values():
        table.add_row(term.letter, MEANINGS[term.name], f"{term.value:,}", term.source)
    yield table
    yield Text()


def _overview(sheet: Sheet) -> Iterator[RenderableType]:
    found = [each.comparison for each in sheet.sections if each.comparison is not None]
    if not found:
        return
    columns = ("exact", "exact - formula") if sheet.target else ()
    table = _new_table("formula", "says", *columns, "of", right=("says", *columns))
    for comparison in found:
        figures = [format_bytes(comparison.estimate)]
        if comparison.exact is not None and comparison.difference is not None:
            figures += [format_bytes(comparison.exact), _signed(comparison.difference)]
        table.add_row(comparison.formula.name, *figures, comparison.of)
    yield table
    yield Text()


def _verdicts(sheet: Sheet) -> Iterator[RenderableType]:
    """Whether each formula's estimate fits on the card, and the step itself."""
    found = [each.comparison for each in sheet.sections if each.comparison is not None]
    card = sheet.terms.get("memory")
    if not found or card is None:
        return
    table = _new_table("formula", "says", f"on {format_bytes(card.value)}", right=("says",))
    for comparison in found:
        left = sheet.left_beside(comparison.estimate) or 0
        table.add_row(
            comparison.formula.name,
            format_bytes(comparison.estimate),
            _verdict(left >= 0, format_bytes(abs(left))),
        )
    if sheet.on_card is not None:
        own = sheet.on_card
        table.add_row(
            "the traced step, reserved",
            format_bytes(own.capacity - own.margin),
            _verdict(own.fits, format_bytes(abs(own.margin))),
        )
    yield table
    yield Text()


def _verdict(fits: bool, difference: str) -> str:
    return f"fits, {difference} left" if fits else f"does not fit, {difference} over"


def _section(section: SheetSection) -> Iterator[RenderableType]:
    yield Text.assemble((section.name, "bold"), f"  {section.title}")
    yield Text(f"  {section.source}", style="dim")
    if section.comparison is not None:
        yield from _comparison(section.comparison)
    if section.printed is not None:
        yield Text()
        yield section.printed.text
        yield from _on_card(section.printed.left, _in_gigabytes, None)
    if section.table is not None:
        yield from _tabled(section)
    yield Text()


def _on_card(
    left: Mapping[str, Fraction], format_left: Callable[[Fraction], str], table: Figures | None
) -> Iterator[RenderableType]:
    """Whether each row fits on the card."""
    if not left:
        return
    verdicts = _new_table("", "on the card")
    for name, nbytes in left.items():
        verdict = _verdict(nbytes >= 0, format_left(abs(nbytes)))
        if nbytes < 0 and table is not None and name in table.least:
            least = table.least[name]
            verdict += f"; fits if MB >= {least}" if least else "; no MB is enough"
        verdicts.add_row(name, verdict)
    yield Text()
    yield Padding(verdicts, (0, 0, 0, 2))


def _in_gigabytes(nbytes: Fraction) -> str:
    return f"{format_in('GB', nbytes)} GB (10^9 bytes)"


def _comparison(comparison: FormulaComparison) -> Iterator[RenderableType]:
    yield Text(f"  {comparison.formula.expression} = {format_exact(comparison.estimate)}")
    yield Text()
    if comparison.rows:
        yield Padding(_beside_exact(comparison), (0, 0, 0, 2))
        return
    table = _new_table("part", "", "bytes", "", right=("bytes",))
    for part in comparison.parts:
        table.add_row(part.name, part.expression, f"{part.bytes:,}", format_bytes(part.bytes))
    table.add_row("sum", "", f"{comparison.estimate:,}", format_bytes(comparison.estimate))
    yield Padding(table, (0, 0, 0, 2))


def _beside_exact(comparison: FormulaComparison) -> Table:
    figures = ("formula", "exact", "exact - formula")
    table = _new_table("part", "", *figures, right=figures)
    announced = False
    for row in comparison.rows:
        if row.expression is None and not announced:
            announced = True
            table.add_row(Text("left out of the formula", style="bold"))
        table.add_row(
            row.name,
            row.expression or "",
            f"{row.estimate:,}",
            f"{row.exact:,}",
            f"{row.difference:+,}" if row.difference else "0",
        )
    table.add_row(
        Text("sum", style="bold"),
        "",
        f"{comparison.estimate:,}",
        f"{comparison.exact or 0:,}",
        f"{comparison.difference or 0:+,}",
    )
    return table


def _tabled(section: SheetSection) -> Iterator[RenderableType]:
    if section.table is None:
        return
    for note in section.table.notes:
        yield Text(f"  {note}")
    yield Text()
    found = section.table
    table = _new_table(found.head, *found.columns, right=found.columns)
    for name, row in found.rows.items():
        table.add_row(name, *map(found.format, found.columns, row))
    yield Padding(table, (0, 0, 0, 2))
    yield from _on_card(
        found.left, lambda left: f"{format_in(found.unit, left)} {found.unit}", found
    )


def _new_table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        figures = column in right
        table.add_column(
            column, justify="right" if figures else "left", no_wrap=figures, overflow="fold"
        )
    return table


def _signed(nbytes: int) -> str:
    return f"{'-' if nbytes < 0 else '+'}{format_bytes(abs(nbytes))}"
