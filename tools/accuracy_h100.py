"""Write docs/accuracy_h100.md: the project's own H100 recordings with their predictions.

    python -m tools.accuracy_h100 [--part 0/2 -o ROWS | --rows ROWS ROWS]

Run it with the release of the recordings, torch 2.11, and transformers 5.17; another release may
trace something else. `--part` writes the rows of that part only, for `--rows` to join.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from graphmem.errors import InputError, InternalError
from graphmem.verify import run_suite
from graphmem.verify.own_cases import ENDING, known_gaps, own_case
from graphmem.verify.text import SUITE_COLUMNS, suite_cells
from tools.accuracy_table import table

ROOT = Path(__file__).resolve().parent.parent
STEPS = ROOT / "fixtures" / "cuda" / "steps"
PAGE = ROOT / "docs" / "accuracy_h100.md"
MACHINE = 2  # the leading text columns
PREFACE = """# Accuracy on an H100

This page is written by `python -m tools.accuracy_h100`.

Every fixture of the repository, and 25 model types of transformers 5.17, ran three steps on one
NVIDIA H100 80GB HBM3 (torch 2.11.0+cu130, cuDNN 9.19, driver 580.159.04) under
`tools/record_cuda.py`; `tools/recordings.txt` has the settings. `graphmem verify
fixtures/cuda/steps/NAME.events.json.gz` reproduces a line.

*First mismatch* is the index of the first allocation or free that differs; *none* means that all
are equal, in order. Errors are predicted minus recorded, in bytes; the peaks are those counted by
PyTorch's allocator.
"""
Row = list[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or the rows of a part; the exit code is 0."""
    parser = argparse.ArgumentParser(description="Write the page of the project's own recordings.")
    parser.add_argument("--part", default="0/1", help="a part, such as 0/2 (the first of two)")
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="parts written earlier")
    parser.add_argument("-o", "--output", type=Path, help=f"default: {PAGE.name}, of all parts")
    options = parser.parse_args(arguments)
    if options.rows:
        rows = [row for file in options.rows for row in json.loads(file.read_text())]
    else:
        number, parts = map(int, options.part.split("/"))
        rows = [row_of(path) for path in sorted(STEPS.glob(f"*{ENDING}"))[number::parts]]
        if parts > 1:
            options.output.write_text(json.dumps(rows))
            return 0
    path: Path = options.output or PAGE
    path.write_text("\n".join(page(sorted(rows))) + "\n")
    print(path)
    return 0


def page(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of the page."""
    yield PREFACE
    yield from table(SUITE_COLUMNS[MACHINE:], 1, rows)
    events = sum(row[2] == "none" for row in rows)
    exact = sum(row[5] == "0" for row in rows)
    whole = sum(row[2] == "none" and row[5] == row[8] == "0" for row in rows)
    yield (
        f"\nOf {len(rows)} steps {events} are equal event by event, {exact} in the peak of "
        f"allocated bytes, {whole} in everything."
    )
    yield "\n## Where they differ, and why\n"
    by_cause: dict[str, list[str]] = {}
    for name, cause in known_gaps(STEPS).items():
        by_cause.setdefault(cause, []).append(name)
    yield from (f"- **{', '.join(names)}**: {cause}." for cause, names in by_cause.items())


def row_of(path: Path) -> Row:
    """One line of the table; a rejected step says why in place of figures."""
    name = path.name.removesuffix(ENDING)
    print(name, file=sys.stderr)
    try:
        row = run_suite([own_case(path)], path.parent).recorded[0]
    except (InputError, InternalError) as error:
        refused = f"refused: {str(error).splitlines()[0][:100]}"
        return [name, "", refused, *[""] * (len(SUITE_COLUMNS) - MACHINE - 2)]
    return [name, *suite_cells(row)[MACHINE:]]


if __name__ == "__main__":
    sys.exit(main())
