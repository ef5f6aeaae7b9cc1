"""Real tensors in a trace of the CPU's memory, in which small tensors stay real (`dispatch`).

When a real tensor meets a fake one, PyTorch makes a fake tensor of it, which takes no additional
memory: it stands for the same storage.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from graphmem.trace.recorder import Recorder


def share_with_fakes(recorder: Recorder, fake_mode: FakeTensorMode) -> None:
    """Let a fake tensor made from a real one stand for the same storage."""
    converter: Any = fake_mode.fake_tensor_converter
    convert = converter.from_real_tensor

    def from_real_tensor(mode: FakeTensorMode, real: torch.Tensor, **options: Any) -> FakeTensor:
        fake: FakeTensor = convert(mode, real, **options)
        storage = recorder.storage_of(real)
        if storage is not None and recorder.storage_of(fake) is None:
            recorder.stand_for(fake.untyped_storage(), storage)
        return fake

    converter.from_real_tensor = from_real_tensor
