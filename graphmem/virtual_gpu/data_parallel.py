"""`torch.nn.DataParallel` with the one device that there is: its inputs are copied there.

`Scatter` copies what lies on the CPU in a background stream of its own, whose memory comes from
segments of that stream, and records the current stream as a user (torch/nn/parallel/_functions.py;
`scatter` in torch/csrc/cuda/comm.cpp). The C++ function is not in a CPU build, and the Python
around it makes a device of a number, which asks C++ for an accelerator.

Not covered: gathering gradients of inputs on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import _functions

from graphmem.virtual_gpu.patching import Replacement


def data_parallel_replacements() -> list[Replacement]:
    """The methods to replace."""
    return [
        (_functions.Scatter, "forward", staticmethod(_scatter)),
        (_functions, "_streams", None),
    ]


def _scatter(
    ctx: Any, target_gpus: Any, chunk_sizes: Any, dim: int, tensor: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    device = torch.device("cuda", 0)
    ctx.dim = dim
    ctx.input_device = 0 if tensor.device.type == "cuda" else -1
    if ctx.input_device == 0:
        return (tensor.view_as(tensor),)
    background = _functions._get_stream(device)
    with torch.cuda.stream(background):
        output = tensor.to(device, non_blocking=True)
    current = torch.cuda.current_stream()
    current.wait_stream(background)
    output.record_stream(current)
    return (output,)
