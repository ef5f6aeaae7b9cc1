"""An `nvidia-smi` for scripts that query the card, on machines without a driver.

This file is also the program; it imports nothing but the standard library.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

NAME = "nvidia-smi"
_UNKNOWN = "[N/A]"  # nvidia-smi's answer for a figure that a card does not report
_QUERY = "--query-gpu="
_FORMAT = "--format="
_WRONG = 2


@contextmanager
def on_path(card: str, total_bytes: int) -> Iterator[None]:
    """Put an `nvidia-smi` on the PATH if the machine has none.

    Args:
        card: the driver's name of the card.
        total_bytes: its memory.
    """
    if shutil.which(NAME) is not None or os.name != "posix":
        yield
        return
    from graphmem.environment import environment

    with tempfile.TemporaryDirectory(prefix="graphmem-") as folder:
        given = [sys.executable, "-I", __file__, card, str(total_bytes >> 20)]
        program = Path(folder, NAME)
        program.write_text(f'#!/bin/sh\nexec {shlex.join(given)} "$@"\n', encoding="utf-8")
        program.chmod(0o700)
        path = os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])
        with environment({"PATH": path}):
            yield


def main(card: str, total_mib: int, arguments: Sequence[str]) -> int:
    """Answer as `nvidia-smi` does; `[N/A]` where only a real card could."""
    query = next((each[len(_QUERY) :] for each in arguments if each.startswith(_QUERY)), None)
    if query is not None:
        return _answer(query.split(","), card, total_mib, _format_of(arguments))
    if arguments in (["-L"], ["--list-gpus"]):
        return _print(f"GPU 0: {card} (graphmem's virtual card)")
    if arguments:
        _print(f"graphmem's {NAME} knows {_QUERY}… and -L, not {shlex.join(arguments)}")
        return _WRONG
    _print("NVIDIA-SMI of graphmem's virtual card")
    return _print(f"|   0  {card}   {_UNKNOWN} / {total_mib}MiB |")


def _format_of(arguments: Sequence[str]) -> list[str]:
    given = next((each[len(_FORMAT) :] for each in arguments if each.startswith(_FORMAT)), "csv")
    return given.split(",")


def _answer(fields: list[str], card: str, total_mib: int, form: list[str]) -> int:
    unit = "" if "nounits" in form else " MiB"
    known = {
        "name": card,
        "gpu_name": card,
        "index": "0",
        "count": "1",
        "memory.total": f"{total_mib}{unit}",
    }
    if "noheader" not in form:
        _print(", ".join(fields))
    return _print(", ".join(known.get(field.strip(), _UNKNOWN) for field in fields))


def _print(line: str) -> int:
    sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
