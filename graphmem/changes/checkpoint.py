"""Wrap modules in `torch.utils.checkpoint`, non-reentrant, as its documentation recommends."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from graphmem.layer_ranges import no_module


def checkpoint_modules(model: torch.nn.Module, pattern: str) -> None:
    """Checkpoint every module that the pattern matches; of nested ones, the outermost.

    For a list of modules, which is never called itself, the modules in it are checkpointed.

    Raises:
        InputError: there is none.
    """
    found: list[str] = []
    for name, module in model.named_modules():
        is_inside = any(name.startswith(f"{outer}.") for outer in found)
        if name and not is_inside and fnmatchcase(name, pattern):
            if isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)):
                continue
            found.append(name)
            module.forward = partial(_checkpointed, module.forward)
    if not found:
        raise no_module(pattern, (name for name, _ in model.named_children()))


def _checkpointed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
