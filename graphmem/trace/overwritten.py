"""Errors for outputs of compiled code's CUDA graphs whose memory other runs have taken over.

torch/_inductor/cudagraph_trees.py gives each such tensor a message when it frees its block. On a
card the message is raised where an operation asks for the tensor's data
(c10/core/StorageImpl.cpp, `throw_data_ptr_access_error`), which a view does not.

Not modelled: the error of a view of the output itself, of `data_ptr()`, and of a kernel in Triton;
an operation on what they return, or write, raises it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from graphmem.trace.recorder import Recorder


def check(recorder: Recorder, func: Any, tensors: Iterable[torch.Tensor]) -> None:
    """Check that an operation reads nothing overwritten.

    Raises:
        RuntimeError: it does, with PyTorch's message.
    """
    if func.is_view or func.namespace == "prim":  # `prim.device` asks for no data
        return
    for tensor in tensors:
        storage = recorder.storage_of(tensor)
        if storage is not None and storage.id in recorder.overwritten:
            raise RuntimeError(recorder.overwritten[storage.id])
