"""What compiling takes by itself: the floor of a compiled analysis in `compiling.py`.

Dynamo, AOTAutograd and Inductor compile the forward and the backward graph of a step on bare fake
tensors, without graphmem's card, dispatch mode or autograd walk, and build no kernel. The tensors
are on the CPU, because PyTorch's own autograd engine needs a driver for those on a card; Inductor
still writes Triton there (`cpu_backend`). The time ends where the compiled forward pass would run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from graphmem import TrainingStep
from graphmem.environment import environment
from graphmem.gpus import Gpu
from graphmem.trace.loop import TrainingLoop
from graphmem.virtual_device import fake_cpu
from graphmem.virtual_device.fake_mode import VirtualFakeMode
from graphmem.virtual_device.libraries.triton import VirtualDriver


class _CompiledError(Exception):
    """The compiled forward pass is called."""


def compile_barely(build: Callable[[], TrainingStep], gpu: Gpu) -> float:
    """The CPU seconds in which PyTorch compiles a step whose model is compiled.

    Args:
        build: makes the step.
        gpu: the card whose architecture Triton is told.
    """
    mode = VirtualFakeMode()
    with _without_kernels(gpu), fake_cpu(mode), mode:
        loop = TrainingLoop(build(), torch.device("cpu"))
        loop.prepare()
        start = time.process_time()
        try:
            loop.iterate()
        except _CompiledError:
            return time.process_time() - start
        raise AssertionError("nothing was compiled")


@contextmanager
def _without_kernels(gpu: Gpu) -> Iterator[None]:
    from torch._functorch import config as functorch
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.output_code import CompiledFxGraph
    from triton.runtime.driver import driver

    def end(graph: Any, inputs: Any) -> None:
        raise _CompiledError

    torch._dynamo.reset()
    with (
        tempfile.TemporaryDirectory(prefix="torchinductor_") as folder,
        environment({"TORCHINDUCTOR_CACHE_DIR": folder}),
        functorch.patch(force_non_lazy_backward_lowering=True),
        config.patch(cpu_backend="triton", compile_threads=1),
        patch.object(driver, "_active", VirtualDriver(gpu)),
        patch.object(AsyncCompile, "triton", lambda *args, **options: None),
        patch.object(CompiledFxGraph, "__call__", end),
    ):
        yield
    torch._dynamo.reset()
