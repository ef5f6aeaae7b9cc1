"""graphmem's speed, beside what PyTorch alone takes and what other predictors take.

    python -m tools.benchmark [PART...] [--repeat N] [--json FILE]
    python -m tools.benchmark --page FILE

A part is a table; without any, all are measured, which takes half an hour. Figures are CPU seconds,
so that the machine's other work is not counted, on one thread; each is the minimum of N, and ratios
are of runs that took turns. `--page` writes the tables of such a file into docs/speed.md.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from tools.benchmark.commands import COLD_COMMANDS
from tools.benchmark.compiling import COMPILING
from tools.benchmark.part import ROOT, Part, machine
from tools.benchmark.peers import PEERS
from tools.benchmark.recording import RECORDING
from tools.benchmark.scale import SCALE
from tools.benchmark.warm import WARM

PAGE = ROOT / "docs" / "speed.md"
PARTS = {
    "commands": COLD_COMMANDS,
    "recording": RECORDING,
    "warm": WARM,
    "scale": SCALE,
    "compiling": COMPILING,
    "peers": PEERS,
}
_TABLE = re.compile(r"(<!-- (?!end)(\w+) -->\n).*?(?=\n<!-- end -->)", re.DOTALL)


def main() -> None:
    """Measure and print, or write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--repeat", type=int, default=5, help="runs of each kind (default: 5)")
    parser.add_argument(
        "--json", type=Path, help="also write the figures to this file, where other parts stay"
    )
    parser.add_argument("--page", type=Path, help="write the tables of this file to docs/speed.md")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if arguments.page:
        write_page(json.loads(arguments.page.read_text()))
        return
    torch.set_num_threads(1)  # values are computed on the CPU, where waiting threads take time
    found = _earlier(arguments.json) | {"machine": machine()}
    print(found["machine"])
    for name in arguments.parts or PARTS:
        found["parts"][name] = measured(name, PARTS[name], arguments.repeat)
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def _earlier(path: Path | None) -> dict[str, Any]:
    found: dict[str, Any] = {"parts": {}}
    if path and path.exists():
        found |= json.loads(path.read_text())
    return found


def measured(name: str, part: Part, repeat: int) -> list[dict[str, Any]]:
    """Print a part's rows as they are measured, and return them."""
    print(f"\n{name}\n", *lines(part, [part.columns]), sep="\n", flush=True)
    rows = []
    for row in part.rows(repeat):
        print(f"| {' | '.join(row.cells)} |", flush=True)
        rows.append({"cells": row.cells, "figures": row.figures})
    return rows


def lines(part: Part, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table in Markdown; the first of `rows` is the heading."""
    numbers = len(part.columns) - part.texts
    yield f"| {' | '.join(rows[0])} |"
    yield f"|{' --- |' * part.texts}{' ---: |' * numbers}"
    yield from (f"| {' | '.join(row)} |" for row in rows[1:])


def write_page(found: dict[str, Any]) -> None:
    """Replace the tables of docs/speed.md that were measured."""

    def table(old: re.Match[str]) -> str:
        marker, name = old.groups()
        if name == "machine":
            return f"{marker}\n{found['machine']}\n"
        if name not in found["parts"]:
            return old[0]
        part = PARTS[name]
        rows = [part.columns, *(row["cells"] for row in found["parts"][name])]
        return "\n".join((marker, *lines(part, rows), ""))

    PAGE.write_text(_TABLE.sub(table, PAGE.read_text()))


if __name__ == "__main__":
    main()
