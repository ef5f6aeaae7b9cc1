"""The cost of a cold command: its CPU seconds paired with those of `import torch`.

    python -m tools.command_times [--repeat N] [--json FILE] [NAME…]

Each run is a separate process, and its child processes count. The ratio is comparable between
machines; the minimum, median and maximum of N pairs are printed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
GPT2 = "fixtures/gpt2.py:build"
COMMANDS: dict[str, tuple[str, ...]] = {
    "analyze": ("analyze", GPT2),
    "graph": ("graph", GPT2),
    "fit": ("fit", GPT2, "--gpu", "a100-80gb"),
    "explain": ("explain", GPT2),
    "check": ("check", "--no-cache"),
}
_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h


@dataclass(frozen=True)
class Times:
    """CPU seconds of a command, and of `import torch` just before, pair by pair."""

    name: str
    seconds: list[float]
    torch_seconds: list[float]

    @property
    def ratios(self) -> list[float]:
        """The command's time as multiples of `import torch`, sorted."""
        pairs = zip(self.seconds, self.torch_seconds, strict=True)
        return sorted(command / torch for command, torch in pairs)


def cpu_seconds(command: Sequence[str]) -> float:
    """CPU seconds of a command and all processes it starts."""
    before = os.times()
    with Path(os.devnull).open("wb") as nowhere:
        subprocess.run(command, check=False, cwd=ROOT, stdout=nowhere, stderr=nowhere)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def measure(name: str, repeat: int) -> Times:
    """Time a command, by its name in `COMMANDS`."""
    found = Times(name, [], [])
    for _ in range(repeat):
        found.torch_seconds.append(cpu_seconds((sys.executable, "-c", "import torch")))
        found.seconds.append(cpu_seconds((sys.executable, "-m", "graphmem", *COMMANDS[name])))
    return found


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(COMMANDS), metavar="NAME")
    parser.add_argument("--repeat", type=int, default=5, help="number of pairs")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # so that forks of forks count
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"{machine}; CPU seconds, and multiples of `import torch`: minimum, median, maximum")
    found = []
    for name in arguments.names:
        times = measure(name, arguments.repeat)
        found.append(times)
        ratios = (times.ratios[0], statistics.median(times.ratios), times.ratios[-1])
        row = "".join(f"{each:8.2f}" for each in ratios)
        print(f"{name:<10}{statistics.median(times.seconds):8.1f} s{row}", flush=True)
    if arguments.json:
        figures = [asdict(each) | {"ratios": each.ratios, "machine": machine} for each in found]
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
