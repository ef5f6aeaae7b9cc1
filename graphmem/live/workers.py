"""Stand-ins for packages in processes that `multiprocessing` starts anew, as for loading data.

Such a process, or the server that forks it, imports the program's script first, and with it what
the script imports. It has no virtual card. A process that is forked from the program has the
stand-ins already.

Not covered: processes that other libraries start, such as joblib's.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from multiprocessing import util
from typing import Any

from graphmem.gpus import Gpu
from graphmem.virtual_device.patching import replaced
from graphmem.virtual_device.stand_ins import StandIn, find, standing_in

_STARTS = (
    "from multiprocessing.spawn import",  # `get_command_line` (multiprocessing/spawn.py)
    "from multiprocessing.forkserver import",  # `ensure_running` (multiprocessing/forkserver.py)
)
_open: list[AbstractContextManager[None]] = []
"""The stand-ins of this process, if it is such a process, to its end."""


def with_stand_ins(stand_ins: Sequence[StandIn], gpu: Gpu) -> AbstractContextManager[Any]:
    """Give processes that start while the context is open these stand-ins."""
    if not stand_ins:
        return nullcontext()
    names = [each.distribution for each in stand_ins]
    return replaced([(util, "spawnv_passfds", _giving(util.spawnv_passfds, names, gpu))])


def _giving(
    start: Callable[..., int], names: Sequence[str], gpu: Gpu
) -> Callable[[Any, Sequence[Any], Any], int]:
    card = base64.b64encode(pickle.dumps(gpu)).decode()
    first = f"from graphmem.live.workers import stand_in; stand_in({names!r}, {card!r}); "

    @wraps(start)
    def give_and_start(path: Any, args: Sequence[Any], passfds: Any) -> int:
        changed = [f"{first}{each}" if str(each).startswith(_STARTS) else each for each in args]
        return start(path, changed, passfds)

    return give_and_start


def stand_in(names: Sequence[str], card: str) -> None:
    """Make the modules of stand-ins importable in this process, to its end.

    Args:
        names: those of the packages.
        card: the program's, pickled and written in base 64.
    """
    context = standing_in(find(names), pickle.loads(base64.b64decode(card)))
    context.__enter__()
    _open.append(context)
