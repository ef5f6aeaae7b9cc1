"""What `torch.utils.checkpoint` saves: inputs, to compute from them again, and chosen results.

A selective checkpoint keeps the results that its policy chooses in a dictionary, of which autograd
does not know (`_CachingTorchDispatchMode`).

Of inputs, it makes saved tensors without a node from 2.12 on (`_CheckpointFrame.save_inputs`);
before, a Python function's node saves them and never runs (`_NoopSaveInputs`,
torch/utils/checkpoint.py).
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.utils import checkpoint

from graphmem.trace.naming import name_saved
from graphmem.trace.python_functions import running_function
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import Replacement

OWNER = "a checkpoint"
"""The name of the owner of the inputs."""
_SELECTIVE = "a selective checkpoint"
_FUNCTION: Any = getattr(checkpoint, "_NoopSaveInputs", None)


class _OfThread(threading.local):
    is_saving = False


_OF_THREAD = _OfThread()


def saves_inputs() -> bool:
    """Whether this thread is saving a checkpoint's inputs."""
    return _OF_THREAD.is_saving or (_FUNCTION is not None and running_function() is _FUNCTION)


def replacements(recorder: Recorder) -> list[Replacement]:
    """The attributes to replace so that `saves_inputs` knows, and that name the results."""
    frames: Any = checkpoint._CheckpointFrame
    save_inputs: Any = getattr(frames, "save_inputs", None)
    kept: Any = checkpoint._VersionWrapper
    keep = kept.__init__

    def save_and_note(frame: Any, *args: Any) -> None:
        _OF_THREAD.is_saving = True
        try:
            save_inputs(frame, *args)
        finally:
            _OF_THREAD.is_saving = False

    def keep_and_name(wrapper: Any, value: Any, *args: Any, **options: Any) -> None:
        keep(wrapper, value, *args, **options)
        if isinstance(value, torch.Tensor):
            name_saved(value, _SELECTIVE, recorder)

    found: list[Replacement] = [(kept, "__init__", keep_and_name)]
    return [*found, (frames, "save_inputs", save_and_note)] if save_inputs else found
