"""Compare predictions of single operators with recordings of `tools/record_operators.py`.

    python -m tools.verify_operators fixtures/cuda/operators.jsonl.gz [--only TEXT] [--part 0/2]
    python -m tools.verify_operators rules.jsonl.gz --fixture recorded_rules

Prints a line for each call that differs, with its first different event; then how many are equal.
The installed release should be that of the recording, torch 2.11.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from graphmem.analysis import Request
from graphmem.errors import InputError, InternalError
from graphmem.verify.changes import Change, follow_order
from graphmem.verify.prediction import predict
from graphmem.verify.window import parse_start

FIXTURES = Path(__file__).parent.parent / "fixtures"
FIXTURE = "recorded_operators"
GPU = "h100-80gb"
TORCH = "2.11"


@dataclass(frozen=True)
class Recorded:
    """A call recorded on a card: its allocations and frees in two steps."""

    name: str
    dtype: str
    sample: int
    changes: tuple[Change, ...]

    @property
    def label(self) -> str:
        """`sum_rows float32`."""
        return f"{self.name} {self.dtype}" + (f" #{self.sample}" if self.sample else "")


def read(path: Path) -> Iterator[Recorded]:
    """The recorded calls that succeeded."""
    with gzip.open(path, "rt") as file:
        for line in file:
            row = json.loads(line)
            if "error" not in row:
                changes = tuple(changes_of(row["events"]))
                yield Recorded(row["call"], row["dtype"], row["sample"], changes)


def changes_of(events: list[list[Any]]) -> Iterator[Change]:
    """Rows of a recording, with allocations numbered because addresses are reused."""
    numbers: dict[int, int] = {}
    count = 0
    for action, nbytes, address, *site in events:
        if action == "a":
            numbers[address] = count
            count += 1
            yield Change(True, nbytes, numbers[address], site[0])
        else:
            yield Change(False, nbytes, numbers.pop(address, None), "")


def predicted(call: Recorded, assume: Sequence[str] = (), fixture: str = FIXTURE) -> list[Change]:
    """The events of both steps; `assume` supplies data-dependent values."""
    settings = {"call": call.name, "dtype": call.dtype, "sample": str(call.sample)}
    request = Request(gpu=GPU, torch=TORCH, steps=2, settings=settings, assume=tuple(assume))
    changes = predict(f"{FIXTURES / fixture}.py:build", request).changes(parse_start("step 0"))
    return follow_order(changes, call.changes)


def difference(call: Recorded, changes: list[Change]) -> str | None:
    """A description of the first event that differs; None if all are equal."""
    for index, (one, other) in enumerate(zip_longest(call.changes, changes)):
        if one is None or other is None or not one.is_like(other):
            return f"event {index}: recorded {one}; predicted {other}"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare every call; the exit code is 1 if one differs."""
    parser = argparse.ArgumentParser(description="Verify single operators.")
    parser.add_argument("recording", type=Path)
    parser.add_argument("--fixture", default=FIXTURE, help="the file of fixtures/ with the calls")
    parser.add_argument("--only", default="", help="calls whose name contains this text")
    parser.add_argument("--part", default="0/1", help="a part, such as 0/2 (the first of two)")
    parser.add_argument("--whole", action="store_true", help="print both sides in full")
    options = parser.parse_args(arguments)
    number, parts = map(int, options.part.split("/"))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")
    equal = different = refused = 0
    calls = [each for each in read(options.recording) if options.only in each.name]
    for call in calls[number::parts]:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                changes = predicted(call, fixture=options.fixture)
        except (InputError, InternalError) as error:
            refused += 1
            print(f"{call.label}: refused: {str(error)[:300]}", flush=True)
            continue
        found = difference(call, changes)
        equal += found is None
        different += found is not None
        if found is not None:
            print(f"{call.label}: {found}", flush=True)
        if options.whole:
            print("recorded", *call.changes, sep="\n  ")
            print("predicted", *changes, sep="\n  ")
    print(f"{equal} equal, {different} different, {refused} refused")
    return 1 if different or refused else 0


if __name__ == "__main__":
    sys.exit(main())
