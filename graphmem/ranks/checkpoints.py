"""The plan of a distributed checkpoint, where not every rank runs.

One rank gathers what each saves, and checks that the pieces of a tensor make up the whole of it
(`_validate_global_plan` in torch/distributed/checkpoint/default_planner.py). Ranks that do not run
are assumed to save what this one does, so the pieces are copies of its own: nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint import default_planner
from torch.distributed.checkpoint.metadata import Metadata

from graphmem.ranks.mail import Mail
from graphmem.virtual_device.patching import Replacement


def replacements(mail: Mail) -> list[Replacement]:
    """List the functions to replace."""
    validate: Callable[..., Any] = default_planner._validate_global_plan

    def validate_if_all_run(plans: Any, metadata: Any) -> Any:
        if torch.distributed.is_initialized():
            group = distributed_c10d._get_default_group()
            if not mail.are_beside(group):
                return validate([], Metadata({}))  # releases differ in what they return
        return validate(plans, metadata)

    return [(default_planner, "_validate_global_plan", validate_if_all_run)]
