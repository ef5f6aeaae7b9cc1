"""graphmem: how many bytes a PyTorch training step takes on a GPU, told without one."""

from __future__ import annotations

from graphmem.errors import GraphmemError, InputError
from graphmem.training_step import TrainingStep

__version__ = "0.1.0"
__all__ = ["GraphmemError", "InputError", "TrainingStep", "__version__"]
