"""Show tensors of the virtual GPU as those of a card are shown, with assumed values."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from graphmem.live.values import Values
from graphmem.virtual_gpu.patching import Replacement


def replacements(values: Values) -> list[Replacement]:
    """The attributes to replace."""

    def to_host(tensor: torch.Tensor) -> torch.Tensor:
        return values.on_host(tensor, tensor)

    def represent(tensor: FakeTensor, *, tensor_contents: Any = None) -> str:
        text = repr(to_host(tensor.detach()))
        device = f", device='{tensor.fake_device}'" if tensor.fake_device.type != "cpu" else ""
        return f"{text[:-1]}{device}{_origin(tensor)})"

    def to_list(tensor: FakeTensor) -> Any:
        return to_host(tensor).tolist()

    return [
        (FakeTensor, "__repr__", represent),
        (FakeTensor, "tolist", to_list),
    ]


def _origin(tensor: torch.Tensor) -> str:
    if tensor.grad_fn is not None:
        return f", grad_fn=<{type(tensor.grad_fn).__name__}>"
    return ", requires_grad=True" if tensor.requires_grad else ""
