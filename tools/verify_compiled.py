"""Compare compiled steps and scripts with recordings: `python -m tools.verify_compiled NAME…`.

It runs what `tools/recordings.txt` and `tools/recordings_scripts.txt` recorded on an H100, under
`graphmem run` and in the same recorder, on the installed torch: that should be the recordings'
release, 2.11, with its Triton. Prints rows of the table in docs/accuracy_compiled.md.

In the first step a card repeats the calls of a benchmark as often as its clock allows, and creates
constants of Inductor's patterns that a prediction omits. So a prediction counts as equal if its
peak is the recording's and its events occur in the recording in order.
"""

from __future__ import annotations

import gzip
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_PLANS = ("tools/recordings.txt", "tools/recordings_scripts.txt")
_FOLDERS = ("fixtures/cuda/compiled", "fixtures/cuda/scripts")
Event = tuple[str, int]


def main(names: Sequence[str]) -> int:
    """Print one row for each name; the exit code is 1 if one is not equal."""
    rows = [row(name) for name in names]
    return int(not all(rows))


def row(name: str) -> bool:
    """Run the recorded program, print its row, and return whether it is equal."""
    recorded = _events(_recording(name))
    predicted = _events(_predicted(name))
    peak, expected = _peak(predicted), _peak(recorded)
    found = _in_order(predicted, recorded)
    is_equal = peak == expected and found == len(predicted)
    verdict = "equal" if is_equal else f"{found:,} of {len(predicted):,} in order"
    difference = peak - expected
    print(
        f"| {name} | {len(predicted):,} | {verdict} | {expected:,} | {difference:+,} |", flush=True
    )
    return is_equal


def _recording(name: str) -> dict[str, Any]:
    paths = (_ROOT / folder / f"{name}.events.json.gz" for folder in _FOLDERS)
    content: dict[str, Any] = json.loads(
        gzip.decompress(next(filter(Path.is_file, paths)).read_bytes())
    )
    return content


def _predicted(name: str) -> dict[str, Any]:
    lines = [line for plan in _PLANS for line in (_ROOT / plan).read_text().splitlines()]
    arguments = next(shlex.split(line)[1:] for line in lines if line.split()[:1] == [name])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / name
        run = [sys.executable, "-m", "graphmem", "run", "--gpu", "h100-80gb", "--torch", "2.11"]
        recorder = ["tools/record_cuda.py", "-o", str(out), *arguments]
        subprocess.run([*run, *recorder], cwd=_ROOT, check=True, capture_output=True)
        content: dict[str, Any] = json.loads(out.with_name(f"{name}.events.json").read_text())
    return content


def _events(content: dict[str, Any]) -> list[Event]:
    """Allocations and frees up to the last mark; later ones belong to the exit of the process."""
    events = [(each[0], each[1]) for each in content["events"] if each[0] in "af"]
    marks = content.get("marks") or []
    return events[: marks[-1]["allocations"] + marks[-1]["frees"]] if marks else events


def _peak(events: Iterable[Event]) -> int:
    live = peak = 0
    for action, nbytes in events:
        live += nbytes if action == "a" else -nbytes
        peak = max(peak, live)
    return peak


def _in_order(predicted: Sequence[Event], recorded: Iterable[Event]) -> int:
    """How many of the first predicted events occur in the recording in order."""
    found = 0
    for event in recorded:
        if found < len(predicted) and event == predicted[found]:
            found += 1
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
