"""Arguments that operators write into although their schemas do not say so.

Batch normalisation updates running statistics that have no `(a!)` in
aten/src/ATen/native/native_functions.yaml (`native_batch_norm`).
"""

from __future__ import annotations

from collections.abc import Mapping
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
