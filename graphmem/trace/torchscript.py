"""TorchScript on the virtual GPU: PyTorch's own executor runs it, one operation at a time.

It differentiates a scripted program and frees each value after its last use, as on a card. On a
card it also fuses elementwise operations into kernels whose intermediate results take no memory
(`canFuseOnDevice`, torch/csrc/jit/passes/tensorexpr_fuser.cpp): fusion is left out, and the report
says so. The incoming gradient of a differentiated part is held until the part has run, not until
its last use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphmem.virtual_device.patching import Replacement, replaced

_KINDS = (torch._C.ScriptFunction, torch._C.ScriptMethod)


def replacements(scripted: Callable[[], None]) -> list[Replacement]:
    """The attributes to replace.

    Args:
        scripted: called when the program calls a scripted or traced function.
    """

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        def note_and_call(function: Any, *args: Any, **kwargs: Any) -> Any:
            scripted()
            return call(function, *args, **kwargs)

        return note_and_call

    return [(kind, "__call__", noting(kind.__call__)) for kind in _KINDS]


@contextmanager
def unfused() -> Iterator[None]:
    """Keep the executor from compiling kernels, as a CUDA build of torch would.

    Programs ask for it themselves, as Score-Entropy-Discrete-Diffusion does
    (model/fused_add_dropout_scale.py); they read what they have set.
    """
    override = torch._C._jit_override_can_fuse_on_gpu
    before = torch._C._jit_can_fuse_on_gpu()
    asked = [before]
    override(False)
    settings: list[Replacement] = [
        (torch._C, "_jit_override_can_fuse_on_gpu", asked.append),
        (torch._C, "_jit_can_fuse_on_gpu", lambda: asked[-1]),
    ]
    try:
        with replaced(settings):
            yield
    finally:
        override(before)
