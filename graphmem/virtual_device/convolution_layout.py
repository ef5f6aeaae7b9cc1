"""The memory format in which a card computes convolutions.

FakeTensor asks the build, and one without cuDNN answers that bfloat16 is never channels-last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import CONVOLUTIONS_ASK_NO_DRIVER
from graphmem.virtual_device.patching import Replacement

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def convolution_layout(of_build: Callable[..., torch.memory_format]) -> Callable[..., Any]:
    """Make `_determine_backend_memory_format` answer as with cuDNN.

    cuDNN takes channels-last if input or weight is channels-last (aten/src/ATen/native/ConvUtils.h,
    `cudnn_conv_suggest_memory_format`).
    """

    def layout(source: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
        last = _LAST.get(source.dim())
        found = of_build(source, weight, backend)
        if last is None or source.dtype not in _DTYPES:
            return found
        return last if _is_only(source, last) or _is_only(weight, last) else found

    return layout


def convolution_backend() -> list[Replacement]:
    """Say cuDNN where the build would ask the driver about the card, which fails without one.

    Fake tensors only ask for the backend in order to ask for its layout.
    """
    if CONVOLUTIONS_ASK_NO_DRIVER.holds_in(installed_release()):
        return []
    cudnn = vars(torch._C)["_ConvBackend"].Cudnn
    return [(torch._C, "_select_conv_backend", lambda *_, **__: cudnn)]


def _is_only(tensor: torch.Tensor, last: torch.memory_format) -> bool:
    """Whether a tensor is channels-last and not contiguous as well."""
    return tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous()
