"""`%load_ext graphmem`, then `%%graphmem --gpu t4` at the top of a cell.

The cell runs on a virtual GPU, in a copy of the notebook's variables: its tensors on the card have
no data, so its variables are discarded. Models that it moves there are restored afterwards.
"""

from __future__ import annotations

import linecache
import shlex
from typing import Any

from graphmem.errors import InputError
from graphmem.gpus import DEFAULT_GPU
from graphmem.report import Report

CELL = "cell of the notebook"


class MagicOptionsError(InputError):
    """`%%graphmem` with options that it does not have."""

    def __init__(self, line: str) -> None:
        super().__init__(f"%%graphmem {line}: unknown options", hint="%%graphmem --gpu NAME")


def load_ipython_extension(shell: Any) -> None:
    """Register the magic; IPython calls this."""

    def graphmem(line: str, cell: str) -> Report:
        return run_cell(line, cell, shell)

    shell.register_magic_function(graphmem, "cell", "graphmem")


def run_cell(line: str, cell: str, shell: Any) -> Report:
    """Run a cell on the card named in the line, and return the report."""
    from graphmem.live.gpu import VirtualGpu

    text = shell.transform_cell(cell)
    linecache.cache[CELL] = len(text), None, text.splitlines(keepends=True), CELL
    code = compile(text, CELL, "exec")
    gpu = VirtualGpu(_card(line), name=CELL)
    try:
        with gpu:
            exec(code, dict(shell.user_ns))
    except MemoryError:
        raise
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
    return gpu.report()


def _card(line: str) -> str:
    match shlex.split(line):
        case []:
            return DEFAULT_GPU
        case ["--gpu", name]:
            return name
        case [option] if option.startswith("--gpu="):
            return option.removeprefix("--gpu=")
        case _:
            raise MagicOptionsError(line)
