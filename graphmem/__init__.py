"""graphmem: how many bytes a PyTorch training step takes on a GPU, told without one.

`import graphmem` does not import torch; `graphmem.analyze` does when it is called.
"""

from __future__ import annotations

from graphmem.analysis import analyze
from graphmem.errors import GraphmemError, InputError
from graphmem.fitting import fit
from graphmem.report import Report
from graphmem.training_step import TrainingStep

__version__ = "0.1.0"
__all__ = ["GraphmemError", "InputError", "Report", "TrainingStep", "__version__", "analyze", "fit"]
