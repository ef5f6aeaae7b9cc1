"""`one_hot` as it runs on tensors with data.

For compilers' sake PyTorch compares fake indices with an `arange`
(`aten/src/ATen/native/Onehot.cpp`): three results, one of them a boolean per element. For tensors
with data it scatters ones into zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import ONE_HOT_LOOKS_ONCE


@contextmanager
def scattered_one_hot() -> Iterator[None]:
    """Run `one_hot` by scattering while the context is open."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for key in ("AutogradCPU", "CPU", "AutogradCUDA", "CUDA"):
            library.impl("one_hot", _one_hot, key)
        yield
    finally:
        library._destroy()


def _one_hot(indices: torch.Tensor, num_classes: int = -1) -> Any:
    if indices.dtype is not torch.int64:  # which PyTorch checks only where there are data
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if type(indices) not in (torch.Tensor, FakeTensor) or not indices.numel():
        return _as_pytorch_does(indices, num_classes)
    classes = _checked_on_cpu(indices, num_classes) if indices.is_cpu else num_classes
    if classes == -1:
        classes = int(indices.max().item()) + 1
    if classes < 1:
        raise RuntimeError("num_classes should be positive")
    result = torch.zeros((*indices.shape, classes), dtype=torch.int64, device=indices.device)
    return result.scatter_(-1, indices.unsqueeze(-1), 1)


def _checked_on_cpu(indices: torch.Tensor, num_classes: int) -> int:
    """Read both ends as PyTorch does on the CPU; what fake indices read as is meaningless."""
    if ONE_HOT_LOOKS_ONCE.holds_in(installed_release()):
        least, greatest = (int(end.item()) for end in torch.aminmax(indices))
    else:
        least, greatest = int(indices.min().item()), int(indices.max().item())
    if isinstance(indices, FakeTensor):
        return num_classes
    if least < 0:
        raise RuntimeError("Class values must be non-negative.")
    if -1 < num_classes <= greatest:
        raise RuntimeError("Class values must be smaller than num_classes.")
    return greatest + 1 if num_classes == -1 else num_classes


def _as_pytorch_does(indices: torch.Tensor, num_classes: int) -> Any:
    return torch.ops.aten.one_hot.default.decompose(indices, num_classes)
