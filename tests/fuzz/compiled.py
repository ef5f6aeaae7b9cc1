"""Compare a compiled program's real run on the CPU with its trace for a card.

Dynamo and AOTAutograd run in both, and the backend calls one operator of their graphs after the
other. So the CPU allocates what a card does, apart from what `ONLY_ON_ONE` lists.
"""

from __future__ import annotations

import gc
from functools import partial

import torch
from torch._dynamo import compiled_autograd

from fixtures.random_program import modules_of, step_of
from graphmem import TrainingStep
from graphmem.errors import InputError
from graphmem.gpus import find_gpu
from tests.fuzz.comparison import SIZE, Outcome
from tests.support import oracle, unobserved
from tests.support.oracle import Event

STEPS = 3
BACKENDS = ("aot_eager", "aot_eager_decomp_partition")
ONLY_ON_ONE = {
    "gru(": "cuDNN's kernel",
    "dropout": "a fused kernel",
    "rms_norm": "a fused kernel",
    "(parameters)": "an optimizer whose default is foreach on a card",
    "save_on_cpu": "a copy to the host is a copy to the same device",
    "autocast": "its casts are freed in the order of their addresses",
}
"""What differs between the CPU and a card in the programs, and why."""


def compare(lines: list[str], backend: str, *, whole: bool = False) -> Outcome:
    """The outcome of comparing a program that is compiled by a backend.

    Args:
        lines: the program.
        backend: the backend's name.
        whole: whether each backward pass is compiled as a whole, by compiled autograd.
    """
    left_out = [why for word, why in ONLY_ON_ONE.items() if any(word in line for line in lines)]
    if left_out:
        return Outcome("left out", left_out[0])
    try:
        real = _real_events(lines, backend, whole)
    except Exception as error:  # noqa: BLE001 - whatever real PyTorch rejects is not a program
        return Outcome("invalid", f"{error}".partition("\n")[0])
    try:
        oracle.assert_equal(real, _traced_events(lines, backend, whole))
    except InputError as error:
        return Outcome("refused", f"{error}")
    except AssertionError as error:
        return Outcome("differs", f"{error}")
    return Outcome("equal")


def _step(lines: list[str], backend: str, device: str, whole: bool) -> TrainingStep:
    step = step_of(lines, modules_of(SIZE).to(device), SIZE, device, backend)
    if not whole:
        return step
    compiler = partial(torch.compile, backend=backend)

    def under_compiled_autograd() -> None:
        with compiled_autograd._enable(compiler):
            step.step()

    return TrainingStep(model=step.model, step=under_compiled_autograd)


def _real_events(lines: list[str], backend: str, whole: bool) -> list[Event]:
    torch._dynamo.reset()
    gc.collect()  # or the compiler collects an earlier program's tensors in the middle of this one
    return unobserved.profiled_events(lambda: _step(lines, backend, "cpu", whole), STEPS)


def _traced_events(lines: list[str], backend: str, whole: bool) -> list[Event]:
    torch._dynamo.reset()
    gpu = find_gpu("h100-80gb")
    return unobserved.traced_events(lambda: _step(lines, backend, "cuda", whole), STEPS, gpu)
