"""graphmem beside other predictors of a step's memory, on the same steps.

    python -m tools.benchmark.peers TOOL STEP

is one tool's answer, twice in a process of its own: `cold` is the first, `warm` the second; CPU
seconds, without those of `import torch`. The tools take turns, and the minimum is printed. All are
given AdamW's foreach path, CUDA's default, and 32 bits. torch-preflight counts if it is installed
(`pip install --no-deps torch-preflight==0.5.0 libcst`).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from graphmem import TrainingStep
from tools.benchmark.part import GPU, ROOT, Part, Row, seconds_of
from tools.benchmark.steps import Build, decoder, gpt2_in_32_bits

ITERATIONS = 2  # the optimizer's state is made in the first
STEPS: dict[str, Build] = {
    "GPT-2 small": gpt2_in_32_bits,
    "decoder, 12 layers": partial(decoder, 12, dtype="fp32"),
}


def rows(repeat: int) -> Iterator[Row]:
    """Each step with each tool that is installed."""
    tools = [tool for tool in TOOLS if tool != PREFLIGHT or _has_preflight()]
    for step in STEPS:
        found = [[ask(tool, step) for tool in tools] for _ in range(repeat)]
        for answers in zip(*found, strict=True):
            tool, peak = answers[0]["tool"], answers[0]["peak"]
            cold, warm = (min(each[key] for each in answers) for key in ("cold", "warm"))
            peak_bytes = "" if peak is None else f"{peak:,}"
            cells = (step, tool, LEFT_OUT[tool], f"{cold:.2f} s", f"{warm:.2f} s", peak_bytes)
            yield Row(cells, answers[0] | {"cold": cold, "warm": warm})


def ask(tool: str, step: str) -> dict[str, Any]:
    """`answer`, in a process of its own."""
    command = (sys.executable, "-m", "tools.benchmark.peers", tool, step)
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def answer(tool: str, step: str) -> dict[str, Any]:
    """The CPU seconds of the first answer in this process and of the second, and the answer."""
    (cold, _), (warm, peak) = (seconds_of(partial(TOOLS[tool], STEPS[step])) for _ in range(2))
    return {"tool": tool, "step": step, "cold": cold, "warm": warm, "peak": peak}


def with_graphmem(build: Build) -> int:
    """What `graphmem analyze` does, the passes, the allocator and the report included."""
    from graphmem.analysis import Request, run_analysis

    report = run_analysis(build, Request(gpu=GPU, steps=ITERATIONS)).report
    return report.peak.allocated


def with_nothing(build: Build) -> None:
    """The iterations on PyTorch's fake tensors, recording nothing: the floor."""
    with _fake():
        _iterate(build())


def with_mem_tracker(build: Build) -> int:
    """PyTorch's dispatch tracker, `torch.distributed._tools.mem_tracker`."""
    from torch.distributed._tools.mem_tracker import MemTracker

    with _fake():
        step = build()
        tracker = MemTracker()
        assert step.model is not None
        tracker.track_external(step.model, *step.inputs)
        with tracker:
            _iterate(step, tracker.reset_mod_stats)
    snapshot = tracker.get_tracker_snapshot("peak")
    return int(sum(kinds["Total"] for kinds in snapshot.values()))


def with_inductor(build: Build) -> int:
    """Inductor's estimator of the two graphs that AOTAutograd makes: no optimizer.

    It skips storages on the CPU, where these are, because autograd needs a driver for others.
    """
    from functorch.compile import aot_function, make_boxed_func  # type: ignore[import-untyped]
    from torch._inductor.fx_passes import memory_estimator

    peaks: list[int] = []

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
        profile = memory_estimator.build_memory_profile(module.graph, _is_releasable)
        peaks.append(max(profile))
        return make_boxed_func(module.forward)

    with (
        _fake(),
        patch.object(memory_estimator, "device_filter", lambda device: True),
    ):
        step = build()
        loss = partial(torch.func.functional_call, _Loss(step))
        compiled = aot_function(loss, fw_compiler=compiler, bw_compiler=compiler)
        state = dict(loss.args[0].named_parameters()) | dict(loss.args[0].named_buffers())
        compiled(state, step.inputs).backward()
        return max(peaks)


def _is_releasable(node: torch.fx.Node) -> bool:
    return node.op != "placeholder"  # as `get_peak_memory` has it, which fails in torch 2.13


def with_preflight(build: Build) -> int:
    """torch-preflight: one forward pass on meta tensors, and coefficients from readings."""
    from torch_preflight import VRAMGuard  # type: ignore[import-not-found]

    with torch.device("meta"):
        step = build()
    batch, length = step.inputs[0].shape
    guard = VRAMGuard(
        _Loss(step, one_input=True),
        batch_size=batch,
        seq_len=length,
        optimizer=_optimizer(step),
        max_vram="80GB",
    )
    with guard:
        return int(guard.report.total)


PREFLIGHT = "torch-preflight"
TOOLS: dict[str, Callable[[Build], int | None]] = {
    "fake tensors": with_nothing,
    "graphmem": with_graphmem,
    "MemTracker": with_mem_tracker,
    "Inductor": with_inductor,
    PREFLIGHT: with_preflight,
}
LEFT_OUT = {
    "fake tensors": "everything: nothing is recorded",
    "graphmem": "",
    "MemTracker": "the allocator, scratch memory of kernels, names of storages",
    "Inductor": "the optimizer, the allocator, scratch memory of kernels, names of storages",
    PREFLIGHT: "the backward pass and the optimizer, which coefficients stand for; the order",
}


@contextmanager
def _fake() -> Iterator[None]:
    """Fake tensors, on which PyTorch's `Module.to` fails; these steps are in 32 bits anyway."""
    with (
        torch._subclasses.FakeTensorMode(),
        patch.object(nn.Module, "to", lambda module, *_: module),
    ):
        yield


class _Loss(nn.Module):
    """A step's model and loss in one."""

    def __init__(self, step: TrainingStep, *, one_input: bool = False) -> None:
        super().__init__()
        self.step = step
        self.model = step.model
        self.times = len(step.inputs) if one_input else 1  # tokens and targets are alike

    def forward(self, *inputs: Any) -> torch.Tensor:
        inputs *= self.times
        loss: torch.Tensor = self.step.loss(self.model(*inputs))  # type: ignore[misc]
        return loss


def _iterate(step: TrainingStep, between: Callable[[], object] = lambda: None) -> None:
    loss = _Loss(step)
    optimizer = _optimizer(step)
    for _ in range(ITERATIONS):
        loss(*step.inputs).backward()
        optimizer.step()
        optimizer.zero_grad()
        between()


def _optimizer(step: TrainingStep) -> torch.optim.Optimizer:
    return step.optimizer(step.model.parameters())  # type: ignore[union-attr,operator,misc]


def _has_preflight() -> bool:
    return importlib.util.find_spec("torch_preflight") is not None


PEERS = Part(("step", "tool", "what it leaves out", "cold", "warm", "peak, bytes"), rows, 3)

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(answer(*sys.argv[1:])))
