"""From a target to a report: trace, passes, simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graphmem.changes import Changes, changed
from graphmem.errors import InputError
from graphmem.gpus import DEFAULT_GPU, find_gpu
from graphmem.runtime import Runtime
from graphmem.training_step import TrainingStep

if TYPE_CHECKING:
    from graphmem.graph import StepGraph
    from graphmem.pipeline import Annotations
    from graphmem.report import Report
    from graphmem.simulate import Timeline

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to analyse and how; the fields are the options of `graphmem analyze`.

    Attributes:
        gpu: name of the card.
        torch: version whose CUDA rules apply; None: the one that is installed.
        env: environment variables of the run that is predicted.
        autocast: "fp16", "bf16" or "none", in place of what `build` says.
        optimizer: such as "adamw-fused" or "none", in place of what `build` says.
        grads: "keep" zeroes gradients in place, "none" drops them.
        steps: iterations to trace.
        inference: forward passes only.
        assume: what the program reads and only a real run knows, as `--assume` says it.
        strict: whatever would be assumed is an error.
        worst_routing: where sizes hang on routing, say the peak under the worst as well.
        settings: keyword arguments of `build`, as text.
        changes: what to change in the step that `build` made.
    """

    gpu: str = DEFAULT_GPU
    torch: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    autocast: str | None = None
    optimizer: str | None = None
    grads: str = "none"
    steps: int = 3
    inference: bool = False
    assume: tuple[str, ...] = ()
    strict: bool = False
    worst_routing: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)


@dataclass(frozen=True)
class Analysis:
    """A report, and what it was made of: pictures need more than the figures."""

    report: Report
    graph: StepGraph
    annotations: Annotations
    timeline: Timeline


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
    return run_analysis(target, Request(**{"worst_routing": True, **options}), progress).report


def run_analysis(
    target: str | Callable[[], Any],
    request: Request,
    progress: Progress = lambda message: None,
) -> Analysis:
    """What `analyze` does, with all that it found on the way."""
    from graphmem.pipeline import run_passes
    from graphmem.report.build import build_report
    from graphmem.report.memory import memory_info
    from graphmem.simulate import simulate

    runtime = runtime_of(request)
    allocator = runtime.new_allocator(bounded=False)
    name, graph = trace_target(target, request, runtime, progress)
    progress("simulating the allocator")
    annotations = run_passes(graph, runtime)
    timeline = simulate(graph, annotations["kernel_memory"].programs, allocator)
    memory = memory_info(runtime, graph, annotations, timeline)
    report = build_report(name, runtime, graph, annotations, timeline, memory)
    if request.worst_routing and graph.is_routed:
        report = _with_worst_routing(report, target, request, progress)
    return Analysis(report, graph, annotations, timeline)


def _with_worst_routing(
    report: Report,
    target: str | Callable[[], Any],
    request: Request,
    progress: Progress,
) -> Report:
    """The report, with the peak where all tokens go to the same experts beside its own."""
    import msgspec

    progress("tracing the worst routing")
    assume = (*request.assume, "routing=1")
    worst = run_analysis(target, replace(request, assume=assume, worst_routing=False), progress)
    return msgspec.structs.replace(report, worst_routing_peak=worst.report.peak.allocated)


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
    from graphmem.caller import turn
    from graphmem.target import blaming_the_user, load_target
    from graphmem.trace import Options, trace

    loaded = load_target(target, request.settings)
    within = f"in the model that {loaded.name} made"
    options = Options(
        steps=request.steps,
        torch_release=runtime.release,
        keep_grads=request.grads == "keep",
        inference=request.inference,
        assume=request.assume,
        strict=request.strict,
        within=within,
    )
    progress("importing the target")
    with turn("an analysis"), loaded.imported() as build, blaming_the_user("the step", within):
        graph = trace(
            lambda: overridden(build(), request),
            gpu=runtime.gpu,
            options=options,
            progress=progress,
        )
    return loaded.name, graph


def target_defaults(target: str | Callable[..., Any], request: Request) -> dict[str, Any]:
    """The defaults of `build`, read where a trace would import it: on the virtual GPU.

    Raises:
        InputError: the target cannot be imported.
    """
    from graphmem.caller import put_back, turn
    from graphmem.target import load_target
    from graphmem.virtual_gpu import virtual_cuda
    from graphmem.virtual_gpu.fake_mode import VirtualFakeMode

    runtime = runtime_of(request)
    loaded = load_target(target, request.settings)
    mode = VirtualFakeMode()
    with (
        turn("an analysis"),
        put_back(all_values=True) as before,
        loaded.imported(),
        mode,
        virtual_cuda(runtime.gpu, runtime.release, mode, before=before.tensors),
    ):
        return loaded.defaults()


def overridden(step: TrainingStep, request: Request) -> TrainingStep:
    """A training step with what the request says in place of what `build` said.

    Raises:
        InputError: a step that runs itself has its own autocast and optimizer.
    """
    from graphmem.trace.loop import optimizer_named

    for option, wanted in (("--autocast", request.autocast), ("--optimizer", request.optimizer)):
        if wanted is not None and step.step is not None:
            raise InputError(
                f"{option} cannot reach into a step that runs itself",
                hint="make it an argument of build() and use --set, or return "
                "TrainingStep(model=…, inputs=…)",
            )
    if request.autocast is not None:
        step = replace(step, autocast=None if request.autocast == "none" else request.autocast)
    if request.optimizer is not None:
        step = replace(step, optimizer=optimizer_named(request.optimizer))
    return changed(step, request.changes)
