"""A program on the card that calls `make_fx`, or has a fake mode of its own.

`make_fx`'s mode notes operations before they run, a fake mode runs them on no card. Both are below
the modes of a program wherever they were entered, so the trace hands operations to them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map_only

from graphmem.trace.operands import tensors_of
from graphmem.virtual_device.fake_mode import VirtualFakeMode

_FAKE = torch._C._TorchDispatchModeKey.FAKE
_PROXY = torch._C._TorchDispatchModeKey.PROXY


class _Program:
    has_fakes = False
    """Whether it has been in a fake mode: from then on its fake tensors are looked for."""


def mode_in_charge(args: Any, kwargs: dict[str, Any]) -> Any:
    """`make_fx`'s mode, if it notes operations now, or the program's that runs this one."""
    notes: Any = torch._C._get_dispatch_mode(_PROXY)
    return _own_fake_mode(args, kwargs) if notes is None else notes


def run(
    mode: Any,
    trace: AbstractContextManager[Any],
    func: Any,
    types: Any,
    args: Any,
    kwargs: dict[str, Any],
) -> Any:
    """Let `make_fx` note an operation, and run it in the trace or the program's fake mode."""
    if isinstance(mode, FakeTensorMode):
        return _faked(mode, func, args, kwargs)
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    with disable_proxy_modes_tracing(), trace:
        return mode.__torch_dispatch__(func, types, args, kwargs)


def is_own_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a fake mode of the program's own: it is not on the card."""
    return isinstance(tensor, FakeTensor) and not isinstance(tensor.fake_mode, VirtualFakeMode)


def _own_fake_mode(args: Any, kwargs: dict[str, Any]) -> Any:
    """The program's fake mode that is on, or that of an argument."""
    mode: Any = torch._C._get_dispatch_mode(_FAKE)
    if mode is not None and not isinstance(mode, VirtualFakeMode):
        _Program.has_fakes = True
        return mode
    if not _Program.has_fakes:
        return None
    own: Any = next(filter(is_own_fake, tensors_of((args, *kwargs.values()))), None)
    return None if own is None else own.fake_mode


def _faked(mode: FakeTensorMode, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    def known(tensor: FakeTensor) -> FakeTensor:  # the card's are real ones to it
        is_on_card = not is_own_fake(tensor) and mode.allow_non_fake_inputs
        fake: FakeTensor = mode.from_tensor(tensor) if is_on_card else tensor
        return fake

    args, kwargs = tree_map_only(FakeTensor, known, (args, kwargs))
    with mode:
        return func(*args, **kwargs)
