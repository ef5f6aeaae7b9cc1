"""Cold commands: their CPU seconds, paired with those of `import torch`.

Each run is a separate process, and the processes that it starts count.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tools.benchmark.part import ROOT, Part, Row, ratios_of, spread

GPT2 = "fixtures/gpt2.py:build"
NANOGPT = "NANOGPT"
"""The variable that names a clone of karpathy/nanoGPT; without it the row is left out."""
BENCH = ("--max-steps", "4", "bench.py", "--real_data=False", "--compile=False")
TARGETS = 100
MOST_RUNS = 2  # of a command that takes a minute
_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h
_MODEL = """\
import torch
from torch import nn


def build(width=64):
    model = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 8))
    return model, torch.randn(8, width)
"""


@dataclass(frozen=True)
class Command:
    """A command line, run in a folder.

    Attributes:
        arguments: graphmem's.
        folder: the working directory.
        takes_long: whether it is run at most `MOST_RUNS` times.
        exit_code: 1 for a plan that does not fit.
    """

    arguments: Sequence[str]
    folder: Path = ROOT
    takes_long: bool = False
    exit_code: int = 0


LLAMA_405B = (  # docs/parallel.md
    "--set vocab=128256 --set batch=16 --set seq=131072 --set width=16384 --set layers=126 "
    "--set heads=128 --set kv_heads=8 --set ffn=53248 --steps 2 --gpu h100 --gpus 16384 --dp 8 "
    "--tp 8 --pp 16 --cp 16 --zero 2 --precision bf16-master --micro-batches 16"
)
COMMANDS = {
    "`analyze`, GPT-2 small": Command(("analyze", GPT2)),
    "`explain`, GPT-2 small": Command(("explain", GPT2)),
    "`fit`, GPT-2 small": Command(("fit", GPT2, "--gpu", "a100-80gb")),
    "`check`, the 15 targets of this repository": Command(("check", "--no-cache"), takes_long=True),
    "`check`, the same again, nothing changed": Command(("check",)),
    "`verify --suite`, 34 recordings and 274 figures": Command(
        ("verify", "--suite"), takes_long=True
    ),
    "`plan`, Llama 3 405B in 16 stages": Command(
        ("plan", "fixtures/llama.py:build", *LLAMA_405B.split()), takes_long=True, exit_code=1
    ),
}


def rows(repeat: int) -> Iterator[Row]:
    """Each command in turn."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # so that forks of forks count
    for name, command in COMMANDS.items():
        yield measure(name, command, repeat)
    if NANOGPT in os.environ:
        command = Command(("run", *BENCH), Path(os.environ[NANOGPT]))
        yield measure("`run`, four iterations of nanoGPT's bench.py", command, repeat)
    with tempfile.TemporaryDirectory() as folder:
        command = Command(("check", "--no-cache"), _many_targets(Path(folder)), takes_long=True)
        yield measure(f"`check`, {TARGETS} small targets", command, repeat)


def measure(name: str, command: Command, repeat: int) -> Row:
    """Time one command."""
    line = (sys.executable, "-m", "graphmem", *command.arguments)
    torch, taken, elapsed = [], [], []
    for _ in range(min(repeat, MOST_RUNS) if command.takes_long else repeat):
        torch.append(cpu_seconds((sys.executable, "-c", "import torch"), command.folder))
        start = time.monotonic()
        taken.append(cpu_seconds(line, command.folder, command.exit_code))
        elapsed.append(time.monotonic() - start)
    ratios = ratios_of(taken, torch)
    cells = (name, f"{median(taken):.1f} s", f"{min(elapsed):.1f} s", *spread(ratios))
    figures = {"command": name, "seconds": taken, "torch_seconds": torch, "elapsed": elapsed}
    return Row(cells, figures | {"ratios": ratios})


def cpu_seconds(command: Sequence[str], folder: Path, exit_code: int = 0) -> float:
    """CPU seconds of a command and all processes it starts."""
    before = os.times()
    ended = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    if ended.returncode != exit_code:
        raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stderr}")
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def _many_targets(folder: Path) -> Path:
    (folder / "model.py").write_text(_MODEL)
    targets = (
        f'[targets.width_{width}]\ntarget = "model.py:build"\nset = {{ width = {width} }}\n'
        for width in range(1, TARGETS + 1)
    )
    (folder / "graphmem.toml").write_text("\n".join(('[defaults]\ngpu = "a100-80gb"\n', *targets)))
    return folder


COLD_COMMANDS = Part(
    ("command", "CPU time", "elapsed", "in units of `import torch`: least", "median", "most"), rows
)
