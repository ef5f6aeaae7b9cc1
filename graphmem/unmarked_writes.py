"""The arguments that operators write into, also where their schemas do not say so.

Batch normalisation updates running statistics that have no `(a!)` in
aten/src/ATen/native/native_functions.yaml (`native_batch_norm`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch

aten = torch.ops.aten

RUNNING_STATISTICS: Mapping[Any, tuple[int, int]] = {
    aten.native_batch_norm.default: (3, 4),
    aten.batch_norm_gather_stats_with_counts.default: (3, 4),
    aten.cudnn_batch_norm.default: (3, 4),
    aten.miopen_batch_norm.default: (3, 4),
}
"""By operator, the positions of the mean and variance that it updates."""


def tensors_written(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[torch.Tensor]:
    """The tensors among an operation's arguments that it writes into, those in lists included."""
    for position, name in written_by(operation):
        value = args[position] if position < len(args) else kwargs.get(name)
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(each, torch.Tensor):
                yield each


@cache
def written_by(operation: Any) -> tuple[tuple[int, str], ...]:
    """The position and the name of each argument that an operator writes into."""
    unmarked = RUNNING_STATISTICS.get(operation, ())
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(operation._schema.arguments)
        if position in unmarked
        or (argument.alias_info is not None and argument.alias_info.is_write)
    )
