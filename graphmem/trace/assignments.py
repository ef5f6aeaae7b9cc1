"""The assumption about linear assignments that are solved on the card.

torch-hungarian solves a batch of them with a Triton kernel (`torch_linear_assignment/_triton.py` of
0.1.0rc0), as RF-DETR matches its queries with targets. Nothing is computed here, but each worker
has a task of its own, or none where there are more workers than tasks: worker 0 task 0, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType

import torch

from graphmem import constructors
from graphmem.trace.reads import Reads
from graphmem.values.rules import Rule
from graphmem.virtual_device.libraries.imports import prepared
from graphmem.virtual_device.patching import replaced

_MODULE = "torch_linear_assignment.assignment"
_ON_CARD = "batch_linear_assignment_cuda"
_NONE = -1

_Solves = Callable[[torch.Tensor], torch.Tensor]


def known(reads: Reads) -> AbstractContextManager[None]:
    """Assume which task each worker gets, as soon as the program has loaded the library."""

    def prepare(module: ModuleType) -> AbstractContextManager[None]:
        return replaced([(module, _ON_CARD, _solving(getattr(module, _ON_CARD), reads))])

    return prepared(_MODULE, prepare)


def _solving(solve: _Solves, reads: Reads) -> _Solves:
    def solved(cost: torch.Tensor) -> torch.Tensor:
        tasks = cost.shape[2]
        assigned = solve(cost)
        with torch._C._DisableTorchDispatch():  # these are not the program's operations
            workers = constructors.arange(cost.shape[1], device="cpu")
            chosen = torch.where(workers < tasks, workers, _NONE).expand(assigned.shape)
        rule = Rule(f"which of {tasks:,} tasks a worker gets", "its own", "costs depend on data")
        reads.known.assume(assigned, chosen, rule)
        return assigned

    return solved
