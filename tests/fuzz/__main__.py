"""`python -m tests.fuzz [--programs N] [--seed FIRST] [--reduce]`: many random programs."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.fuzz.comparison import compare, reduced
from tests.fuzz.generator import program_of
from tests.fuzz.known import cause_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="that of the first program")
    parser.add_argument("--reduce", action="store_true", help="drop lines that a fault needs not")
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    for seed in range(asked.seed, asked.seed + asked.programs):
        lines = program_of(seed)
        outcome = compare(lines)
        cause = cause_of(lines) if outcome.is_fault else None
        counts[outcome.verdict if cause is None else f"named: {cause}"] += 1
        if outcome.is_fault and cause is None:
            shown = reduced(lines) if asked.reduce else lines
            print(f"---- seed {seed}: {outcome.verdict}", *shown, outcome.details, sep="\n")
        if not (seed + 1) % 50:
            print(seed + 1, dict(counts), file=sys.stderr)
        sys.stdout.flush()
    print(dict(counts))
    return int(any(counts[verdict] for verdict in ("differs", "refused")))


if __name__ == "__main__":
    sys.exit(main())
