"""Compare recorded workspaces of convolutions with predicted ones.

    graphmem run --gpu h100-80gb tools/record_convolutions.py -o predicted.txt --part 0/8
    python tools/verify_convolutions.py recorded.txt predicted.txt [--differences 20]

Both files are those of `tools/record_convolutions.py`; on a virtual card it writes what graphmem
predicts. For each dtype and layout, and for the result, the gradient of the input and that of the
weight, it prints how many workspaces are equal, and all deviations together relative to the
recorded bytes. Rows without figures are left out and counted.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PRODUCTS = ("result", "gradient of the input", "gradient of the weight")


def main() -> int:
    """Print the table, and then the largest differences."""
    parser = argparse.ArgumentParser(description="Compare workspaces of convolutions.")
    parser.add_argument("recorded", type=Path)
    parser.add_argument("predicted", type=Path)
    parser.add_argument("--differences", type=int, default=0, help="how many to print (default: 0)")
    options = parser.parse_args()
    recorded, predicted = figures(options.recorded), figures(options.predicted)
    common = recorded.keys() & predicted.keys()
    pairs: dict[tuple[str, int], list[tuple[int, int, str]]] = defaultdict(list)
    for call in sorted(common):
        mode = " ".join(call.split()[:2])
        for product, both in enumerate(zip(recorded[call], predicted[call], strict=True)):
            if None not in both:
                pairs[mode, product].append((int(both[0] or 0), int(both[1] or 0), call))
    print(f"{len(common)} of {len(recorded)} recorded convolutions are predicted")
    for row in table(pairs):
        print(row)
    found = [(p - r, r, p, i, call) for (_, i), each in pairs.items() for r, p, call in each]
    for _, r, p, i, call in sorted(found, key=lambda row: -abs(row[0]))[: options.differences]:
        print(f"{call}, {PRODUCTS[i]}: recorded {r:,}, predicted {p:,}")
    return 0


def figures(path: Path) -> dict[str, list[int | None]]:
    """The three workspaces of each call; None without a figure."""
    rows = (line.split(": ") for line in path.read_text().splitlines()[1:])
    return {call: [number(text) for text in texts.split()] for call, texts in rows}


def number(text: str) -> int | None:
    """`123` or, of an unusual number of allocations, `123*4`."""
    text = text.partition("*")[0]
    return int(text) if text.isdigit() else None


def table(pairs: dict[tuple[str, int], list[tuple[int, int, str]]]) -> Iterator[str]:
    """A row for each dtype and layout, as docs/kernel_memory.md has it."""
    yield "| | " + " | ".join(PRODUCTS) + " |"
    yield "| --- " * 4 + "|"
    for mode in sorted({mode for mode, _ in pairs}):
        cells = []
        for product in range(len(PRODUCTS)):
            both = pairs[mode, product]
            equal = sum(r == p for r, p, _ in both)
            share = sum(abs(r - p) for r, p, _ in both) / max(1, sum(r for r, _, _ in both))
            cells.append(f"{equal} of {len(both)} ({share:.0%})")
        yield f"| {mode} | {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
