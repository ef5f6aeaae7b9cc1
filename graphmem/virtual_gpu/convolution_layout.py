"""In which layout convolutions compute on a card.

FakeTensor asks the build, which has no cuDNN, and is told that bfloat16 is never channels-last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def convolution_layout(of_build: Callable[..., torch.memory_format]) -> Callable[..., Any]:
    """`_determine_backend_memory_format` as it answers where cuDNN computes.

    cuDNN has channels last where input or weight lies so (aten/src/ATen/native/ConvUtils.h,
    `cudnn_conv_suggest_memory_format`).
    """

    def layout(source: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
        last = _LAST.get(source.dim())
        found = of_build(source, weight, backend)
        if last is None or source.dtype not in _DTYPES:
            return found
        lies_so = [_lies(tensor, last) for tensor in (source, weight)]
        return last if any(lies_so) else found

    return layout


def _lies(tensor: torch.Tensor, last: torch.memory_format) -> bool:
    return tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous()
