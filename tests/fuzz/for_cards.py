"""`python -m tests.fuzz.for_cards FIRST_SEED PROGRAMS`: writes `fixtures/random_programs.json`.

Programs that real PyTorch runs on the CPU, for `fixtures/random_program.py` to run on a card.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from tests.fuzz.comparison import program_that_runs, refusal, training_step

FILE = Path(__file__).parents[2] / "fixtures" / "random_programs.json"


def main() -> None:
    first, count = map(int, sys.argv[1:])
    programs = map(program_that_runs, range(first, first + count))
    running = [lines for lines in programs if refusal(partial(training_step, lines)) is None]
    FILE.write_text(json.dumps(running, indent=1) + "\n")


if __name__ == "__main__":
    main()
