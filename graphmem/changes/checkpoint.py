"""Wrap modules in `torch.utils.checkpoint`, non-reentrant, as its documentation recommends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from graphmem.layer_ranges import no_module, outermost


def checkpoint_modules(model: torch.nn.Module, pattern: str) -> None:
    """Checkpoint every module that the pattern matches; of nested ones, the outermost.

    For a list of modules, which is never called itself, the modules in it are checkpointed.

    Raises:
        InputError: there is none.
    """
    lists = (torch.nn.ModuleList, torch.nn.ModuleDict)
    modules = {name: each for name, each in model.named_modules() if not isinstance(each, lists)}
    found = outermost(modules, pattern)
    for name in found:
        modules[name].forward = partial(_checkpointed, modules[name].forward)
    if not found:
        raise no_module(pattern, (name for name, _ in model.named_children()))


def _checkpointed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
