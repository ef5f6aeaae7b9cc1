"""The plan of a distributed checkpoint, where not every rank runs.

Ranks that do not run are assumed to save what this one does, so their plans are copies of its own.

1. One rank gathers what each saves, and checks that the pieces of a tensor make up the whole of it
   (`_validate_global_plan` in torch/distributed/checkpoint/default_planner.py). Copies are not
   checked.
2. What several ranks would save, one of them saves, by default the one with the least to write
   (`dedup_save_plans`). A copy's share would be in no file: the lowest rank saves all, as under the
   planner's own `dedup_save_to_lowest_rank`, and a rank alone finds again what it saved.
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
    planner: Any = default_planner
    share_out: Callable[..., Any] = planner.dedup_save_plans

    def are_copies() -> bool:
        return torch.distributed.is_initialized() and not mail.are_beside(
            distributed_c10d._get_default_group()
        )

    def validate_if_all_run(plans: Any, metadata: Any) -> Any:
        if are_copies():
            return validate([], Metadata({}))  # releases differ in what they return
        return validate(plans, metadata)

    def share_out_among_all(plans: Any, save_to_lowest_rank: bool = False) -> Any:
        return share_out(plans, save_to_lowest_rank or are_copies())

    return [
        (planner, "_validate_global_plan", validate_if_all_run),
        (planner, "dedup_save_plans", share_out_among_all),
    ]
