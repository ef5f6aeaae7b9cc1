"""Stages of a pipeline release what they have sent, as they do of real tensors.

Since torch 2.15 a stage lets go of an output once its send is done, but only of one whose type is
`torch.Tensor` (`_PipelineStageBase._output_slot_is_releasable`,
torch/distributed/pipelining/stage.py). Fake tensors are of another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem import constructors
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import STAGES_RELEASE_WHAT_THEY_SENT
from graphmem.virtual_device.patching import Replacement


def replacements() -> list[Replacement]:
    """List the functions to replace."""
    if not STAGES_RELEASE_WHAT_THEY_SENT.holds_in(installed_release()):
        return []
    from torch.distributed.pipelining.stage import _PipelineStageBase as Stage

    is_releasable: Callable[[Any, Any], tuple[bool, str]] = vars(Stage)[
        "_output_slot_is_releasable"
    ]
    with torch._C._DisableTorchDispatch():
        plain = constructors.empty(0)

    def releasable(stage: Any, output: Any) -> tuple[bool, str]:
        return is_releasable(stage, plain if type(output) is FakeTensor else output)

    return [(Stage, "_output_slot_is_releasable", releasable)]
