"""The inputs that `torch.utils.checkpoint` saves, to compute from them again.

From 2.12 on it makes saved tensors without a node (`_CheckpointFrame.save_inputs`); before, a
Python function's node saves them and never runs (`_NoopSaveInputs`, torch/utils/checkpoint.py).
"""

from __future__ import annotations

import threading
from typing import Any

from torch.utils import checkpoint

from graphmem.trace.python_functions import running_function
from graphmem.virtual_device.patching import Replacement

OWNER = "a checkpoint"
"""The name of the owner of what is saved so."""
_FUNCTION: Any = getattr(checkpoint, "_NoopSaveInputs", None)


class _OfThread(threading.local):
    is_saving = False


_OF_THREAD = _OfThread()


def saves_inputs() -> bool:
    """Whether this thread is saving a checkpoint's inputs."""
    return _OF_THREAD.is_saving or (_FUNCTION is not None and running_function() is _FUNCTION)


def replacements() -> list[Replacement]:
    """The attributes to replace so that `saves_inputs` knows."""
    frames: Any = checkpoint._CheckpointFrame
    save_inputs: Any = getattr(frames, "save_inputs", None)

    def save_and_note(frame: Any, *args: Any) -> None:
        _OF_THREAD.is_saving = True
        try:
            save_inputs(frame, *args)
        finally:
            _OF_THREAD.is_saving = False

    return [(frames, "save_inputs", save_and_note)] if save_inputs else []
