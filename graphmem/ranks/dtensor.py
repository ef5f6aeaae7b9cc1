"""DTensor asks of each operation what shapes it gives, under a fake mode of its own.

That is no work of the program, and not to be counted: it runs without the modes that watch
(`ShardingPropagator._propagate_tensor_meta_non_cached` in torch/distributed/tensor/
_sharding_prop.py).
"""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import _disable_current_modes

from graphmem.virtual_gpu.patching import Replacement

_NAME = "_propagate_tensor_meta_non_cached"


def replacements() -> list[Replacement]:
    """The method to replace."""
    propagate = getattr(ShardingPropagator, _NAME)

    def propagate_unseen(propagator: Any, schema: Any) -> Any:
        with _disable_current_modes():
            return propagate(propagator, schema)

    return [(ShardingPropagator, _NAME, propagate_unseen)]
