"""Compare a compiled program's real run on the CPU with its trace for a card.

Dynamo and AOTAutograd run in both, and the backend calls one operator of their graphs after the
other. So the CPU allocates what a card does, apart from what `ONLY_ON_ONE` lists.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import torch
from torch._dynamo import compiled_autograd

from fixtures.random_program import modules_of, step_of
from graphmem import TrainingStep
from graphmem.errors import InputError
from graphmem.gpus import find_gpu
from tests.fuzz.comparison import SIZE, Outcome
from tests.fuzz.wide import SCOPE, wide_modules_of
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
WIDE_ONLY_ON_ONE = ONLY_ON_ONE | {
    "lstm": "cuDNN's kernel, or a fused one",
    "rnn": "cuDNN's kernel",
    "grucell": "a fused kernel",
    "coder(": "its dropout is a fused kernel",
    "mha(": "another kernel of attention",
    "scaled_dot_product_attention": "another kernel",
    "grid": "a kernel's own memory",
    ".cpu()": "a copy to the host is a copy to the same device",
}
"""The same for wide programs."""


def compare(lines: list[str], backend: str, *, whole: bool = False, wide: bool = False) -> Outcome:
    """The outcome of comparing a program that is compiled by a backend.

    Args:
        lines: the program.
        backend: the backend's name.
        whole: whether each backward pass is compiled as a whole, by compiled autograd.
        wide: whether it is a wide program.
    """
    known = WIDE_ONLY_ON_ONE if wide else ONLY_ON_ONE
    left_out = [why for word, why in known.items() if any(word in line for line in lines)]
    if left_out:
        return Outcome("left out", left_out[0])
    make = partial(_step, lines, backend, whole=whole, wide=wide)
    try:
        real = _real_events(make)
    except Exception as error:  # noqa: BLE001 - whatever real PyTorch rejects is not a program
        return Outcome("invalid", f"{error}".partition("\n")[0])
    try:
        oracle.assert_equal(real, _traced_events(make))
    except InputError as error:
        return Outcome("refused", f"{error}")
    except RuntimeError as error:  # Dynamo's as well
        if "same device" in f"{error}":
            return Outcome("left out", "a wide statement makes a tensor on the CPU")
        return Outcome("differs", f"the trace fails: {error}")
    except AssertionError as error:
        return Outcome("differs", f"{error}")
    return Outcome("equal")


def _step(lines: list[str], backend: str, device: str, *, whole: bool, wide: bool) -> TrainingStep:
    modules = (wide_modules_of if wide else modules_of)(SIZE).to(device)
    step = step_of(lines, modules, SIZE, device, backend, names=SCOPE if wide else None)
    if not whole:
        return step
    compiler = partial(torch.compile, backend=backend)

    def under_compiled_autograd() -> None:
        with compiled_autograd._enable(compiler):
            step.step()

    return TrainingStep(model=step.model, step=under_compiled_autograd)


def _real_events(make: Callable[[str], TrainingStep]) -> list[Event]:
    torch._dynamo.reset()
    gc.collect()  # or the compiler collects an earlier program's tensors in the middle of this one
    return unobserved.profiled_events(partial(make, "cpu"), STEPS)


def _traced_events(make: Callable[[str], TrainingStep]) -> list[Event]:
    torch._dynamo.reset()
    gpu = find_gpu("h100-80gb")
    return unobserved.traced_events(partial(make, "cuda"), STEPS, gpu)
