"""`torch.nn.DataParallel` on the process's only device, to which its inputs are copied.

`Scatter` copies CPU inputs on a background stream, so that their memory comes from segments of that
stream, and records the current stream as a user (torch/nn/parallel/_functions.py; `scatter` in
torch/csrc/cuda/comm.cpp). A CPU build lacks the C++ function, and the Python around it makes a
device from a number, which asks C++ for an accelerator. `Gather` copies the gradient of inputs that
require one to where they are (`gather` in comm.cpp), though there is nothing to gather.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.parallel import _functions

from graphmem.virtual_device.devices import Devices
from graphmem.virtual_device.patching import Replacement


def data_parallel_replacements(devices: Devices) -> list[Replacement]:
    """List the methods to replace."""
    device = torch.device("cuda", devices.own)
    return [
        (_functions.Scatter, "forward", staticmethod(partial(_scatter, device))),
        (_functions, "_streams", None),
        (torch._C, "_gather", partial(_gather, device)),
    ]


def _scatter(
    device: torch.device,
    ctx: Any,
    target_gpus: Any,
    chunk_sizes: Any,
    dim: int,
    tensor: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    ctx.dim = dim
    ctx.input_device = device.index if tensor.device.type == "cuda" else -1
    if ctx.input_device == device.index:
        return (tensor.view_as(tensor),)
    background = _functions._get_stream(device)
    with torch.cuda.stream(background):
        output = tensor.to(device, non_blocking=True)
    current = torch.cuda.current_stream()
    current.wait_stream(background)
    output.record_stream(current)
    return (output,)


def _gather(
    device: torch.device, tensors: list[torch.Tensor], dim: int, destination: int | None = None
) -> torch.Tensor:
    (tensor,) = tensors
    output = torch.empty_like(tensor, device="cpu" if destination == -1 else device)
    return output.copy_(tensor, non_blocking=output.is_cuda)
