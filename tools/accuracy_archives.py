"""Write docs/accuracy_models.md: many small programs on an H100, with their predictions.

    python -m tools.accuracy_archives [--jobs 2] [--again] [ARCHIVE …]

The archives are those of fixtures/cuda: model types of transformers, eager and compiled, and random
programs. Run it with the release of the recordings, torch 2.11, and transformers 5.17. Each program
is predicted in a separate process, forked from one that has imported the libraries.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphmem.errors import InputError, InternalError
from graphmem.verify import run_suite
from graphmem.verify.comparison import Comparison
from graphmem.verify.own_cases import own_case
from tools.accuracy_table import table
from tools.model_zoo.transformers_models import preload

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "fixtures" / "cuda"
PAGE = ROOT / "docs" / "accuracy_models.md"
ARCHIVES = {
    "zoo": "model types of transformers 5.17, small ones, three steps",
    "zoo_compiled": "some of them, compiled",
    "random": "random programs of `tests/fuzz`, two steps",
}
COLUMNS = ("name", "events", "first mismatch", "there the card has", "graphmem has", "peak error")
PREFACE = """# Many small programs on an H100

This page is written by `python -m tools.accuracy_archives`.

Programs that were not hand-picked, recorded on one NVIDIA H100 80GB HBM3 (torch 2.11.0+cu130,
transformers 5.17, Python 3.12) by `tools/record_cuda.py`, and predicted without a card on the same
releases, eager model types with PYTHONHASHSEED=0. Errors are predicted minus recorded, in bytes.

What differs, differs for one of these causes:

- *Convolutions*: which kernel cuDNN chooses, and so what its workspace takes ([kernel
  memory](kernel_memory.md)).
- *Order of a set*: Gemma 3 and 4, ModernBERT, OLMo 3 and MiMo loop over
  `set(config.layer_types)`, whose order depends on `PYTHONHASHSEED`, which is random by default;
  with 0 it happens to be the recorded one, and they are equal.
- *Routing*: Aria and JetMoE run an expert on the tokens that its weights choose; predictions
  route evenly. I-BERT branches on a value of its weights, and is refused.
- *Python 3.11* runs a comprehension as a function of its own (PEP 709 ended that): there ProphetNet
  frees one tensor earlier.
- *Padding*, in compiled code: a benchmark on the card decides ([compile](compile.md)).
- *cuDNN's recurrent layers and 1-d convolutions*, in random programs ([exactness](exactness.md)).
- *A gradient that nobody keeps*, in `random_171`: the program's thread and the card's let go of it
  at the same time (`GraphTask::future_result_`, torch/csrc/autograd/graph_task.h). In the first of
  two iterations the card freed it before the program's variables, as predicted; in the second,
  after.

`random_108` and `random_125` have been mended since this page was made: on torch 2.13 all their
events are equal.
"""
_WIDTH = 80
_CASE = re.compile(r"^\| (\w\S*) \|", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """One program: `cells` are those of `COLUMNS`."""

    cells: tuple[str, ...]
    has_events: bool
    has_peak: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the sections of the archives that are named; the exit code is 0."""
    parser = argparse.ArgumentParser(description="Write the page of the archives.")
    parser.add_argument("archives", nargs="*", default=list(ARCHIVES), metavar="ARCHIVE")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--again", action="store_true", help="only what differs on the page; the rest stays equal"
    )
    options = parser.parse_args(arguments)
    sections = {text.split(":")[0]: text for text in PAGE.read_text().split("\n## ")[1:]}
    for name in options.archives:
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
                archive.extractall(folder, filter="data")
            listed = set(_CASE.findall(sections[name])) if options.again else None
            rows = rows_of(sorted(Path(folder).iterdir()), options.jobs, listed)
        sections[name] = "\n".join(section(name, rows))
    whole = [f"## {sections[name].rstrip()}\n" for name in ARCHIVES if name in sections]
    PAGE.write_text("\n".join([PREFACE, *whole]))
    return 0


def section(name: str, rows: Sequence[Row]) -> Iterator[str]:
    """How many are equal, and a table of the others."""
    events = sum(row.has_events for row in rows)
    peaks = sum(row.has_peak for row in rows)
    yield f"{name}: {ARCHIVES[name]}\n"
    yield f"Of {len(rows)}, {events} are equal event by event, and {peaks} in the peak.\n"
    different = [list(row.cells) for row in rows if not (row.has_events and row.has_peak)]
    if different:
        yield from table(COLUMNS, 1, different)
        yield ""


def rows_of(paths: Sequence[Path], jobs: int, listed: set[str] | None) -> list[Row]:
    """Predict each in a separate process, or only those in `listed`; the others are equal."""
    preload()
    chosen = [path for path in paths if listed is None or _name(path) in listed]
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        rows = pool.map(row_of, chosen, chunksize=1)
    equal = [Row((), has_events=True, has_peak=True)] * (len(paths) - len(chosen))
    return [*rows, *equal]


def _name(path: Path) -> str:
    return path.name.removesuffix(".events.json")


def row_of(path: Path) -> Row:
    """One line of the table; a rejected program says why."""
    name = _name(path)
    print(name, file=sys.stderr)
    try:
        compared = run_suite([own_case(path)], path.parent).recorded[0].comparison
    except (InputError, InternalError) as error:
        return _unpredicted(name, f"refused: {str(error).splitlines()[0]}")
    except Exception as error:  # noqa: BLE001 - one that breaks graphmem must not cost the others
        return _unpredicted(name, f"graphmem failed: {type(error).__name__}: {error}")
    assert compared is not None
    recorded = compared.recorded_figures
    assert recorded is not None
    peak = compared.predicted_figures.peak_allocated - recorded.peak_allocated
    first = compared.first_difference
    at = "none" if first is None else f"{first:,}"
    events = f"{len(compared.recorded):,}"
    cells = (name, events, at, *sides(compared), f"{peak:,}")
    return Row(cells, has_events=first is None, has_peak=peak == 0)


def _unpredicted(name: str, why: str) -> Row:
    return Row((name, "", why, "", "", ""), has_events=False, has_peak=False)


def sides(compared: Comparison) -> tuple[str, str]:
    """The first events that differ."""
    first = compared.first_difference
    if first is None:
        return "", ""
    both = (compared.recorded, compared.predicted)
    shown = [str(side[first])[:_WIDTH] if first < len(side) else "the end" for side in both]
    return f"`{' '.join(shown[0].split())}`", f"`{' '.join(shown[1].split())}`"


if __name__ == "__main__":
    sys.exit(main())
