"""Write docs/accuracy.md: every case of the suite beside the run it is compared with.

    python tools/accuracy_table.py [--recordings DIR] [-o FILE]

Nothing in the page is written by hand, so it cannot contradict the suite.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from graphmem.errors import GraphmemError, InputError
from graphmem.verify import PrintedRow, Suite, read_cases, run_suite
from graphmem.verify.cases import default_cases
from graphmem.verify.recording_files import COMPACT, default_folder
from graphmem.verify.text import PRINTED_COLUMNS, SUITE_COLUMNS, printed_cells, suite_cells

PAGE = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"
PREFACE = """# Accuracy

This page is written by `python tools/accuracy_table.py`.

## Recorded runs

Predictions are compared with CUDA runs that others recorded: every allocation and free, in order.
A case file in `fixtures/cases/` names the target, card, version and environment that reproduce a
recording, and where it starts; `graphmem verify --suite` compares the two event by event
(allocations by requested bytes, frees by the allocation they end) and then their figures.

*First mismatch* is the index of the first event that differs; *none* means that no event is
missing, extra or different. Figures are bytes as counted by `torch.cuda.memory_stats`, `error` is
predicted minus recorded, and "?" marks what a recording does not contain. Most recordings do not
name their card: the case file says which one was assumed, and why.
"""
PRINTED_PREFACE = """
## Printed figures

Some runs printed figures but recorded no events. A case file says what was measured when, and the
result. A prediction is equal if it would have been printed the same: to as many digits, or as the
same float32 if the numbers went through one. `error` is predicted minus printed, in bytes; the
suite fails if it differs from the error stated in the case file, whether larger or smaller.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite and write the page; return the exit code of a graphmem error, or 0."""
    parser = argparse.ArgumentParser(description="Write the table of the suite's cases.")
    parser.add_argument("--recordings", type=Path, default=default_folder(), metavar="DIR")
    parser.add_argument("-o", "--output", type=Path, default=PAGE, metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        recordings = names_in(options.recordings)
        suite = run_suite(read_cases(default_cases()), options.recordings, progress)
    except GraphmemError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    text = "\n".join(page(suite, recordings))
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(text + "\n")
    print(options.output)
    return 0


def progress(message: str) -> None:
    """Print the running case to stderr."""
    print(message, file=sys.stderr)


def names_in(folder: Path) -> list[str]:
    """The recordings of a folder.

    Raises:
        InputError: it has none.
    """
    names = sorted(path.name.removesuffix(COMPACT) for path in folder.glob(f"*{COMPACT}"))
    if not names:
        raise InputError(f"none of the cases' recordings is in {folder}")
    return names


def page(suite: Suite, recordings: Sequence[str]) -> Iterator[str]:
    """The lines of the page."""
    rows = suite.recorded
    yield PREFACE
    yield from table(SUITE_COLUMNS, 3, ((row.case.name, *suite_cells(row)) for row in rows))
    equal = sum(row.comparison is not None and row.comparison.is_equal for row in rows)
    yield f"\n{equal} of {len(rows)} cases are equal to the last event and byte."
    gaps = [row for row in rows if row.case.gap]
    if gaps:
        yield "\n### Known gaps\n"
        yield from (f"- **{row.case.name}**: {row.case.gap}." for row in gaps)
    covered = {row.case.recording for row in rows}
    missing = [name for name in recordings if name not in covered]
    if missing:
        yield "\n### Recordings without a case\n"
        yield "The allocator's model alone replays their sizes and order (`verify --allocator`):"
        yield ", ".join(f"`{name}`" for name in missing) + "."
    if suite.printed:
        yield from printed_section(suite.printed)


def printed_section(rows: Sequence[PrintedRow]) -> Iterator[str]:
    """The printed figures, the differences, and where the figures were published."""
    yield PRINTED_PREFACE
    yield from table(PRINTED_COLUMNS, 4, ((row.case.name, *printed_cells(row)) for row in rows))
    yield f"\n{sum(not row.error for row in rows)} of {len(rows)} figures are equal."
    causes: dict[tuple[str, str], None] = {}
    for row in rows:
        if row.figure.gap:
            causes[row.case.name, row.figure.gap] = None
    if causes:
        yield "\n### Figures that differ, and why\n"
        yield from (f"- **{name}**: {gap}." for name, gap in causes)
    yield "\n### Where they were published\n"
    sources = {row.case.name: row.case.source for row in rows}
    yield from (f"- **{name}**: {source}." for name, source in sources.items())


def table(columns: Sequence[str], texts: int, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Rows as a table whose first `texts` columns are left-aligned."""
    headings = ("case", *columns)
    yield f"| {' | '.join(headings)} |"
    yield "|" + " --- |" * texts + " ---: |" * (len(headings) - texts)
    yield from (f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
