"""DTensor's shape propagation, which runs each operation under its own fake mode.

That is not work of the program and must not be counted, so it runs without graphmem's modes
(`ShardingPropagator._propagate_tensor_meta_non_cached` in
torch/distributed/tensor/_sharding_prop.py).
"""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import _disable_current_modes

from graphmem.virtual_device.patching import Replacement

_NAMES = ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta")  # the latter to torch 2.5
_NAME = next(name for name in _NAMES if hasattr(ShardingPropagator, name))


def replacements() -> list[Replacement]:
    """List the method to replace."""
    propagate = getattr(ShardingPropagator, _NAME)

    def propagate_unseen(propagator: Any, schema: Any) -> Any:
        with _disable_current_modes():
            return propagate(propagator, schema)

    return [(ShardingPropagator, _NAME, propagate_unseen)]
