"""Write docs/accuracy_h100.md: the project's own recordings of an H100 beside their predictions.

    python tools/accuracy_h100.py [--part 0/2] [-o FILE]

Run it with the release of the recordings, torch 2.11, and transformers 5.17; what another one
traces may differ. With `--part` the rows alone are printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from graphmem.errors import InputError, InternalError
from graphmem.verify import SuiteRow, run_suite
from graphmem.verify.own_cases import ENDING, own_case

ROOT = Path(__file__).resolve().parent.parent
STEPS = ROOT / "fixtures" / "cuda" / "steps"
PAGE = ROOT / "docs" / "accuracy_h100.md"
PREFACE = """# Accuracy on an H100

This page is written by `python tools/accuracy_h100.py`.

Every fixture of the repository, and 24 model types of transformers 5.17, ran three steps on one
NVIDIA H100 80GB HBM3 (torch 2.11.0+cu130, cuDNN 9.19, driver 580.159.04) under
`tools/record_cuda.py`; `tools/recordings.txt` says with which settings. `graphmem verify
fixtures/cuda/steps/NAME.events.json.gz` repeats a line.

*First mismatch* is the index of the first allocation or free that differs; *none* means that all
are equal, in order. Errors are predicted less recorded, in bytes: the peaks are those that
PyTorch's own allocator counted.

| step | events | first mismatch | peak allocated, recorded | error | peak reserved | error |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; the exit code is 0."""
    parser = argparse.ArgumentParser(description="Write the page of our own recordings.")
    parser.add_argument("--part", default="", help="which of how many parts, such as 0/2")
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="rows printed before")
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    paths = sorted(STEPS.glob(f"*{ENDING}"))
    if options.part:
        number, parts = map(int, options.part.split("/"))
        for path in paths[number::parts]:
            print(row_of(path), flush=True)
        return 0
    rows = [line for file in options.rows for line in file.read_text().splitlines()]
    options.output.write_text(page(rows or map(row_of, paths)))
    print(options.output)
    return 0


def page(rows: Iterable[str]) -> str:
    """The whole page."""
    lines = sorted(rows)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    events = sum(row[2] == "none" for row in cells)
    exact = sum(row[4] == "0" for row in cells)
    whole = sum(row[2] == "none" and row[4] == row[6] == "0" for row in cells)
    score = (
        f"\nOf {len(lines)} steps {events} are equal event by event, {exact} in the peak of "
        f"allocated bytes, {whole} in everything.\n"
    )
    names = {row[0] for row in cells}
    every = sorted(path.name.removesuffix(ENDING) for path in STEPS.glob(f"*{ENDING}"))
    missing = [name for name in every if name not in names]
    rest = f"\nNot held against this commit yet: {', '.join(missing)}.\n" if missing else ""
    return PREFACE + "\n".join(lines) + "\n" + score + rest


def row_of(path: Path) -> str:
    """One line of the table."""
    name = path.name.removesuffix(ENDING)
    print(name, file=sys.stderr)
    try:
        row = run_suite([own_case(path)], path.parent).recorded[0]
    except (InputError, InternalError) as error:
        return f"| {name} | | refused: {str(error).splitlines()[0][:100]} | | | | |"
    return f"| {name} | {' | '.join(cells_of(row))} |"


def cells_of(row: SuiteRow) -> list[str]:
    """Events, the first mismatch, and the peaks with their errors."""
    comparison = row.comparison
    assert comparison is not None
    assert comparison.recorded_figures is not None
    index = comparison.first_difference
    cells = [f"{len(comparison.recorded):,}", "none" if index is None else f"{index:,}"]
    for field in ("peak_allocated", "peak_reserved"):
        truth = getattr(comparison.recorded_figures, field)
        cells += [f"{truth:,}", f"{getattr(comparison.predicted_figures, field) - truth:,}"]
    return cells


if __name__ == "__main__":
    sys.exit(main())
