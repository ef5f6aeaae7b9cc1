"""graphmem: predict the GPU memory of a PyTorch training step, byte for byte, without a GPU.

`import graphmem` does not import torch; `graphmem.analyze` does when it is called, and
`graphmem.virtual_gpu` when it is first accessed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from graphmem.analysis import analyze
from graphmem.changes import Changes
from graphmem.errors import GraphmemError, InputError
from graphmem.fitting import fit
from graphmem.report import Report
from graphmem.training_step import TrainingStep
from graphmem.version import __version__

if TYPE_CHECKING:
    from graphmem.live.gpu import VirtualGpu as virtual_gpu  # noqa: N813 - called like `open`

__all__ = [
    "Changes",
    "GraphmemError",
    "InputError",
    "Report",
    "TrainingStep",
    "__version__",
    "analyze",
    "fit",
    "virtual_gpu",
]


def __getattr__(name: str) -> Any:
    """Import `graphmem.virtual_gpu`, whose module imports torch, on first access."""
    if name == "virtual_gpu":
        return import_module("graphmem.live.gpu").VirtualGpu
    if name == "load_ipython_extension":
        return import_module("graphmem.notebook").load_ipython_extension
    message = f"module 'graphmem' has no attribute {name!r}"
    raise AttributeError(message, name=name, obj=sys.modules[__name__])
