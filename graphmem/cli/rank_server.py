"""`python -m graphmem.cli.rank_server PIPE`: the server that forks ranks (`live/rank_forks.py`)."""

from __future__ import annotations

import sys
from contextlib import suppress

# What every rank imports.
import graphmem.live.gpu
import graphmem.live.running
import graphmem.ranks.group
import graphmem.report.build  # noqa: F401
from graphmem.cli import main
from graphmem.cli.leaving import leave
from graphmem.errors import InputError
from graphmem.live.rank_forks import serve
from graphmem.pipeline import installed_passes


def _run(pipe: int) -> int:
    with suppress(InputError):  # each rank reports it
        installed_passes()
    arguments = serve(pipe)
    return 0 if arguments is None else main(arguments)


if __name__ == "__main__":
    leave(_run(int(sys.argv[1])))
