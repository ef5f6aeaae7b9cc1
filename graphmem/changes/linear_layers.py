"""Which modules are linear layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def is_linear(module: torch.nn.Module) -> bool:
    """Whether a module is an `nn.Linear`, quantised ones included, or transformers' `Conv1D`."""
    import torch  # options are parsed, and rejected, without it

    return isinstance(module, torch.nn.Linear) or is_conv1d(module)


def is_conv1d(module: torch.nn.Module) -> bool:
    """Whether a module is transformers' `Conv1D`, a linear layer whose weight is transposed."""
    kind = type(module)
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")
