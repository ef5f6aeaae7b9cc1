"""Processes that outlive the one that they depend on.

A rank of `--rank all`, or a helper that runs a rank for another process, would run its whole
program on after its starter was killed: it has nobody to end it, so it looks for its parent every
second. A process that was killed itself cannot tell, so others look for it (proc(5); not seen on
systems without `/proc`).
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

STARTER = "GRAPHMEM_RANK_STARTER"
"""The variable with the number of the process that a rank must not outlive."""
_PAUSE = 1.0
_PROCESSES = Path("/proc")


def variables(starter: int | None = None) -> dict[str, str]:
    """Environment variables for a process that is to end with its parent, by default this one."""
    return {STARTER: str(os.getpid() if starter is None else starter)}


def end_with_starter() -> None:
    """End this process when the one that started it has ended, if that is graphmem."""
    starter = os.environ.pop(STARTER, None)  # what the program starts is no helper
    if starter is not None:
        threading.Thread(target=_watch, args=(int(starter),), daemon=True).start()


def _watch(starter: int) -> None:
    while os.getppid() == starter:
        time.sleep(_PAUSE)
    os._exit(1)


def is_gone(process: str | None) -> bool:
    """Whether a process has ended, even if its parent has not asked for its exit code yet."""
    if process is None or not process.isdigit() or not (_PROCESSES / "self").exists():
        return False
    try:
        state = (_PROCESSES / process / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"
