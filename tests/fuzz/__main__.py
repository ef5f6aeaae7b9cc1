"""`python -m tests.fuzz [--programs N] [--seed FIRST] [--reduce] [--wide | --compile …]`.

Many random programs.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from functools import partial

from graphmem.caller import belongings
from tests.fuzz import compiled
from tests.fuzz.comparison import compare, program_that_runs, reduced


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="that of the first program")
    parser.add_argument("--reduce", action="store_true", help="drop lines that a fault needs not")
    parser.add_argument("--wide", action="store_true", help="from more kinds of statements")
    parser.add_argument(
        "--compile", metavar="BACKEND", choices=compiled.BACKENDS, help="one of %(choices)s"
    )
    parser.add_argument("--whole", action="store_true", help="compile each backward pass as one")
    asked = parser.parse_args()
    in_parts = partial(compiled.compare, backend=asked.compile, whole=asked.whole, wide=asked.wide)
    judge = in_parts if asked.compile else partial(compare, wide=asked.wide)
    counts: Counter[str] = Counter()
    # Programs share nothing with this process, and scanning for it would take half the time.
    belongings._what_there_is = lambda: ([], [])
    for seed in range(asked.seed, asked.seed + asked.programs):
        lines = program_that_runs(seed, wide=asked.wide)
        outcome = judge(lines)
        counts[outcome.verdict] += 1
        if outcome.is_fault:
            shown = reduced(lines, judge) if asked.reduce else lines
            print(f"---- seed {seed}: {outcome.verdict}", *shown, outcome.details, sep="\n")
        if not (seed + 1) % 50:
            print(seed + 1, dict(counts), file=sys.stderr)
        sys.stdout.flush()
    print(dict(counts))
    return int(any(counts[verdict] for verdict in ("differs", "refused")))


if __name__ == "__main__":
    sys.exit(main())
