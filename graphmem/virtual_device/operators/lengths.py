"""Sequence lengths that an operator copies to the host.

Lengths on the host are known. For lengths on the device the mode that runs the program is asked; if
it does not know them either, each is assumed to be at its bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def lengths_on_host(
    lengths: torch.Tensor | Sequence[int], bound: int, what: str, mode: Any = None
) -> list[int]:
    """The lengths as numbers.

    Args:
        lengths: numbers, or a tensor.
        bound: an upper bound on each.
        what: names them in an assumption.
        mode: the mode that runs the operation, if it is the caller: torch hides it from itself.
    """
    if not isinstance(lengths, torch.Tensor):
        return list(lengths)
    if not isinstance(lengths, FakeTensor):
        return [int(each) for each in lengths.reshape(-1)]
    for each in [mode] if mode is not None else _modes():
        known = each.lengths_of(lengths, bound, what)
        if known is not None:
            return [int(length) for length in known]
    return [bound] * lengths.numel()


def _modes() -> list[Any]:
    return [mode for mode in _get_current_dispatch_mode_stack() if hasattr(mode, "lengths_of")]
