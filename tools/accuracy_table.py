"""Write docs/accuracy.md: every case of the suite beside the recording that judges it.

    python tools/accuracy_table.py [--recordings DIR] [-o FILE]

Nothing in the page is written by hand, so that it cannot differ from what the suite says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from graphmem.errors import GraphmemError
from graphmem.verify import SuiteRow, read_cases, run_suite
from graphmem.verify.cases import default_cases
from graphmem.verify.recording_files import COMPACT, default_folder
from graphmem.verify.text import SUITE_COLUMNS, suite_cells

PAGE = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"
PREFACE = """# Accuracy

Recorded CUDA runs of others are the judge: every allocation and every free of a run, in order.
A case file in `fixtures/cases/` says which target, card, version and environment reproduce a
recording, and from which moment on; `graphmem verify --suite` compares the two event by event
(allocations by requested bytes, frees by the allocation that they end) and then their figures.

*First mismatch* is the index of the first event that differs; *none* means that there is no event
more, less or other. Figures are bytes as `torch.cuda.memory_stats` counts them, `error` is
predicted less recorded, and "?" is what a recording does not tell. Most recordings do not name
their card: the case file says which one was taken, and by what.

This page is written by `python tools/accuracy_table.py`.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite and write the page; the exit code is that of graphmem's errors, or 0."""
    parser = argparse.ArgumentParser(description="Write the table of the suite's cases.")
    parser.add_argument("--recordings", type=Path, default=default_folder(), metavar="DIR")
    parser.add_argument("-o", "--output", type=Path, default=PAGE, metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        rows = run_suite(read_cases(default_cases()), options.recordings, progress)
    except GraphmemError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    text = "\n".join(page(rows, names_in(options.recordings)))
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(text + "\n")
    print(options.output)
    return 0


def progress(message: str) -> None:
    """Say on stderr which case is run."""
    print(message, file=sys.stderr)


def names_in(folder: Path) -> list[str]:
    """The recordings of a folder."""
    return sorted(path.name.removesuffix(COMPACT) for path in folder.glob(f"*{COMPACT}"))


def page(rows: Sequence[SuiteRow], recordings: Sequence[str]) -> Iterator[str]:
    """The lines of the page."""
    yield PREFACE
    yield from table(rows)
    equal = sum(row.comparison is not None and row.comparison.is_equal for row in rows)
    yield f"\n{equal} of {len(rows)} cases are equal to the last event and byte."
    gaps = [row for row in rows if row.case.gap]
    if gaps:
        yield "\n## Known gaps\n"
        yield from (f"- **{row.case.name}**: {row.case.gap}." for row in gaps)
    covered = {row.case.recording for row in rows}
    missing = [name for name in recordings if name not in covered]
    if missing:
        yield "\n## Recordings without a case\n"
        yield "The allocator's model alone replays their sizes and order (`verify --allocator`):"
        yield ", ".join(f"`{name}`" for name in missing) + "."


def table(rows: Sequence[SuiteRow]) -> Iterator[str]:
    """The cases as a table; figures stand on the right."""
    headings = ("case", *SUITE_COLUMNS)
    yield f"| {' | '.join(headings)} |"
    yield "|" + " --- |" * 3 + " ---: |" * (len(headings) - 3)
    for row in rows:
        yield f"| {' | '.join((row.case.name, *suite_cells(row)))} |"


if __name__ == "__main__":
    sys.exit(main())
