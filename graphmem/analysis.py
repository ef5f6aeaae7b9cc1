"""From a target to a report: trace, passes, simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graphmem.gpus import DEFAULT_GPU, find_gpu
from graphmem.runtime import Runtime
from graphmem.training_step import TrainingStep

if TYPE_CHECKING:
    from graphmem.graph import StepGraph
    from graphmem.report import Report

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to analyse and how; the fields are the options of `graphmem analyze`.

    Attributes:
        gpu: name of the card.
        torch: version whose CUDA rules apply; None: the one that is installed.
        env: environment variables of the run that is predicted.
        autocast: "fp16" or "bf16", in place of what `build` says.
        optimizer: such as "adamw-fused" or "none", in place of what `build` says.
        grads: "keep" zeroes gradients in place, "none" drops them.
        steps: iterations to trace.
        inference: forward passes only.
        settings: keyword arguments of `build`, as text.
    """

    gpu: str = DEFAULT_GPU
    torch: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    autocast: str | None = None
    optimizer: str | None = None
    grads: str = "none"
    steps: int = 3
    inference: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)


def analyze(
    target: str | Callable[[], Any],
    *,
    progress: Progress = lambda message: None,
    **options: Any,
) -> Report:
    """Say how many bytes a training step takes, without a GPU.

    Args:
        target: `"model.py:build"`, `"package.module:build"`, `"model.pt2"`, or a callable that
            returns what `build` may return.
        progress: told what is being done.
        options: the fields of `Request`.

    Raises:
        InputError: the target or an option cannot be used; the message says why.

    Example:
        >>> report = graphmem.analyze("model.py:build", gpu="h100", autocast="bf16")
        >>> report.peak.allocated
    """
    from graphmem.pipeline import run_passes
    from graphmem.report.build import build_report
    from graphmem.simulate import simulate

    request = Request(**options)
    runtime = runtime_of(request)
    name, graph = trace_target(target, request, runtime, progress)
    progress("simulating the allocator")
    annotations = run_passes(graph, runtime)
    workspaces = annotations["workspaces"]
    timeline = simulate(graph, workspaces)
    return build_report(name, runtime, graph, workspaces, timeline)


def runtime_of(request: Request) -> Runtime:
    """The machine that a request is for."""
    gpu = find_gpu(request.gpu)
    version = request.torch
    if version is None:
        import torch

        version = torch.__version__.partition("+")[0]
    return Runtime(gpu, version, dict(request.env))


def trace_target(
    target: str | Callable[[], Any],
    request: Request,
    runtime: Runtime,
    progress: Progress = lambda message: None,
) -> tuple[str, StepGraph]:
    """The target's name and its step graph."""
    from graphmem.target import load_target
    from graphmem.trace import Options, trace

    progress("importing the target")
    loaded = load_target(target, request.settings)
    options = Options(
        steps=request.steps,
        keep_grads=request.grads == "keep",
        inference=request.inference,
    )
    graph = trace(
        lambda: overridden(loaded.build(), request),
        gpu=runtime.gpu,
        options=options,
        progress=progress,
    )
    return loaded.name, graph


def overridden(step: TrainingStep, request: Request) -> TrainingStep:
    """A training step with what the request says in place of what `build` said."""
    from graphmem.trace.loop import optimizer_named

    if request.autocast is not None:
        step = replace(step, autocast=request.autocast)
    if request.optimizer is not None:
        step = replace(step, optimizer=optimizer_named(request.optimizer))
    return step
