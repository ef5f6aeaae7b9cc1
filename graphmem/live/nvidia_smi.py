"""An `nvidia-smi` for scripts that query the card, on machines without a driver.

This file is also the program; it imports nothing but the standard library.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphmem.gpus import Gpu
    from graphmem.live.started_processes import StartedCommand

NAME = "nvidia-smi"
_UNKNOWN = "[N/A]"  # nvidia-smi's answer for a figure that a card does not report
_QUERY = "--query-gpu="
_FORMAT = "--format="
_WRONG = 2


@contextmanager
def on_path(gpu: Gpu, count: int, bytes_in_use: Callable[[], int]) -> Iterator[None]:
    """Put an `nvidia-smi` on the PATH if the machine has none.

    Args:
        gpu: the card.
        count: how many of them the program sees.
        bytes_in_use: reads how many bytes of one are in use; the others are taken to be as full.
    """
    if shutil.which(NAME) is not None or os.name != "posix":
        yield
        return
    from graphmem.environment import environment
    from graphmem.live.started_processes import before_commands

    with tempfile.TemporaryDirectory(prefix="graphmem-") as folder:
        used = Path(folder, "used")

        def write_used(command: StartedCommand) -> None:
            if any(NAME in part for part in command.words):
                used.write_text(str(-(-bytes_in_use() >> 20)), encoding="utf-8")
            else:  # it may start an nvidia-smi later, which cannot know
                used.unlink(missing_ok=True)

        card = [gpu.title, str(count), str(gpu.memory_bytes >> 20), str(used)]
        program = Path(folder, NAME)
        line = shlex.join([sys.executable, "-I", __file__, *card])
        program.write_text(f'#!/bin/sh\nexec {line} "$@"\n', encoding="utf-8")
        program.chmod(0o700)
        path = os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])
        with environment({"PATH": path}), before_commands(write_used):
            yield


class _Cards:
    """What the program knows of the cards, each figure in MiB."""

    def __init__(self, name: str, count: str, total: str, used_file: str) -> None:
        self.name = name
        self.count = int(count)
        self.total = int(total)
        try:
            self.used: int | None = int(Path(used_file).read_text(encoding="utf-8"))
        except OSError:
            self.used = None

    def fields(self, index: int, unit: str) -> dict[str, str]:
        """What is known of a card, by nvidia-smi's names of fields."""
        free = None if self.used is None else self.total - self.used
        memory = {"total": self.total, "used": self.used, "free": free}
        return {
            "name": self.name,
            "gpu_name": self.name,
            "index": str(index),
            "count": str(self.count),
            **{f"memory.{key}": f"{mib}{unit}" for key, mib in memory.items() if mib is not None},
        }


def main(cards: _Cards, arguments: Sequence[str]) -> int:
    """Answer as `nvidia-smi` does; `[N/A]` where only a real card could."""
    query = next((each[len(_QUERY) :] for each in arguments if each.startswith(_QUERY)), None)
    if query is not None:
        asked = re.search(r"(?:-i |--id=)(\d+)", " ".join(arguments))
        indices = [int(asked[1])] if asked else range(cards.count)
        return _answer(query.split(","), cards, indices, _format_of(arguments))
    if arguments in (["-L"], ["--list-gpus"]):
        for index in range(cards.count):
            _print(f"GPU {index}: {cards.name} (graphmem's virtual card)")
        return 0
    if arguments:
        _print(f"graphmem's {NAME} knows {_QUERY}… and -L, not {shlex.join(arguments)}")
        return _WRONG
    _print("NVIDIA-SMI of graphmem's virtual card")
    for index in range(cards.count):
        used = cards.fields(index, "MiB").get("memory.used", _UNKNOWN)
        _print(f"|   {index}  {cards.name}   {used} / {cards.total}MiB |")
    return 0


def _format_of(arguments: Sequence[str]) -> list[str]:
    given = next((each[len(_FORMAT) :] for each in arguments if each.startswith(_FORMAT)), "csv")
    return given.split(",")


def _answer(fields: list[str], cards: _Cards, indices: Sequence[int], form: list[str]) -> int:
    if "noheader" not in form:
        _print(", ".join(fields))
    for index in indices:
        known = cards.fields(index, "" if "nounits" in form else " MiB")
        _print(", ".join(known.get(field.strip(), _UNKNOWN) for field in fields))
    return 0


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main(_Cards(*sys.argv[1:5]), sys.argv[5:]))
