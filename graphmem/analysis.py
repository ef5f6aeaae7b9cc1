"""From a target to a report: capture, passes, simulation.

A target is code to trace, or a step that was saved earlier (`graphmem/record/`). Every command
accepts both, through `traced_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from graphmem.annotations import KERNEL_MEMORY
from graphmem.changes import Changes
from graphmem.compiled_code import PADDING
from graphmem.errors import InputError
from graphmem.gpus import DEFAULT_GPU, AssumedCard, find_gpu
from graphmem.runtime import Runtime
from graphmem.training_step import TrainingStep

if TYPE_CHECKING:
    import torch

    from graphmem.graph import StepGraph
    from graphmem.online.following import Following
    from graphmem.pipeline import Annotations
    from graphmem.record import TracedStep
    from graphmem.report import Report
    from graphmem.simulate import Timeline

Progress = Callable[[str], None]


class SavedStepFixedError(InputError):
    """A saved step was captured under other conditions than are asked for."""

    def __init__(self, target: str, what: str) -> None:
        super().__init__(
            f"{target} is a saved step: {what} cannot change it any more",
            hint="name the code that it was saved from, or save it again as you want it",
        )


@dataclass(frozen=True)
class Request:
    """How to analyse a step; the fields are the options of `graphmem analyze`.

    Attributes:
        gpu: name of the card.
        torch: version whose CUDA rules apply; None for the installed one.
        env: environment variables of the predicted run.
        autocast: "fp16", "bf16" or "none"; overrides `build`.
        optimizer: such as "adamw-fused" or "none"; overrides `build`.
        grads: "keep" zeroes gradients in place, "none" drops them.
        steps: iterations to trace.
        inference: forward passes only.
        assume: values for the program's reads that only a real run knows, in the syntax of
            `--assume`.
        strict: raise an error instead of assuming anything.
        compile: True compiles the model; False makes `torch.compile` do nothing.
        bounds: also report the peak if tokens are routed in the worst way, or unaligned products
            padded, where the step depends on that.
        offload: keep what the forward pass saves for the backward pass on the host.
        settings: keyword arguments of `build`, as text.
        changes: changes to the step that `build` made.
    """

    gpu: str = AssumedCard(DEFAULT_GPU)
    torch: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    autocast: str | None = None
    optimizer: str | None = None
    grads: str = "none"
    steps: int = 3
    inference: bool = False
    assume: tuple[str, ...] = ()
    strict: bool = False
    compile: bool | None = None
    bounds: bool = False
    offload: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)

    def __post_init__(self) -> None:
        """Reject a number of iterations that is none.

        Raises:
            InputError: it is.
        """
        steps: Any = self.steps
        if not isinstance(steps, int) or steps < 1:
            from graphmem.targets.messages import WrongStepsError

            raise WrongStepsError(steps)


class Options(TypedDict, total=False):
    """The fields of `Request` as keyword arguments, without `gpu`."""

    torch: str | None
    env: Mapping[str, str]
    autocast: str | None
    optimizer: str | None
    grads: str
    steps: int
    inference: bool
    assume: tuple[str, ...]
    strict: bool
    compile: bool | None
    bounds: bool
    offload: bool
    settings: Mapping[str, str]
    changes: Changes


@dataclass(frozen=True)
class Analysis:
    """A report, and the data it was made from, which pictures need."""

    report: Report
    step: TracedStep
    annotations: Annotations
    timeline: Timeline

    @property
    def graph(self) -> StepGraph:
        """The step graph."""
        return self.step.graph


def _silent(message: str) -> None:
    """Report no progress."""


def analyze(
    target: str | Callable[[], Any] | torch.nn.Module | TrainingStep,
    inputs: Any = None,
    *,
    loss: Callable[..., Any] | None = None,
    gpu: str = DEFAULT_GPU,
    advice: bool = False,
    progress: Progress = _silent,
    **options: Unpack[Options],
) -> Report:
    """Predict a training step's GPU memory, without a GPU.

    Args:
        target: a model, together with `inputs`; a `TrainingStep`; `"model.py:build"`,
            `"package.module:build"`, `"model.pt2"`, a saved step `"step.graphmem"`, or a callable
            that returns what `build` may return. Models are restored afterwards.
        inputs: a model's inputs: a tensor, a tuple, or a dict of keyword arguments.
        loss: a model's loss: `loss(output) -> scalar`.
        gpu: the card.
        advice: also measure the largest batch that fits and the changes that save most.
        progress: called with a description of each stage.
        options: the other fields of `Request`.

    Raises:
        InputError: the target or an option cannot be used; the message says why.

    Example:
        >>> report = graphmem.analyze(model, (tokens, targets), gpu="t4", autocast="bf16")
        >>> report.peak.allocated
    """
    from graphmem.targets.objects import check_names, target_of

    check_names("analyze", dict(options), Request, "inputs", "loss", "advice", "progress")
    found = target_of(target, inputs, loss)
    request = replace(Request(gpu=gpu, bounds=True), **options)
    analysis = run_analysis(found, request, progress)
    if not advice:
        return analysis.report
    import msgspec

    from graphmem.advice.first_aid import first_aid

    helps = first_aid(found, request, analysis, progress, None)
    return msgspec.structs.replace(analysis.report, advice=helps)


def run_analysis(
    target: str | Callable[[], Any],
    request: Request,
    progress: Progress = lambda message: None,
) -> Analysis:
    """Run the analysis of `analyze`, and return everything found on the way."""
    from graphmem.record import is_record

    step = traced_step(target, request, progress)
    progress("simulating the allocator")
    analysis = analysis_of(step)
    if request.bounds and not is_record(target):
        report = _with_bounds(analysis.report, step.graph, target, request, progress)
        analysis = replace(analysis, report=report)
    return analysis


def analysis_of(step: TracedStep) -> Analysis:
    """Run the passes and the simulator on a captured step.

    A program captured by `graphmem run` already has a timeline, and report lines written while it
    ran.
    """
    from graphmem.pipeline import run_passes
    from graphmem.record.step import Section
    from graphmem.report.build import build_report
    from graphmem.report.collector import with_collector
    from graphmem.report.growth import with_growth
    from graphmem.report.memory import memory_info
    from graphmem.report.schema import GROWTH

    runtime, graph, observed = step.runtime, step.graph, step.observed
    annotations = run_passes(graph, runtime)
    timeline, memory = timeline_of(step, annotations), None
    if observed is not None and observed.tape is None and observed.memory is None:
        annotations |= {name: Section(lines) for name, lines in observed.sections.items()}
    else:
        tape = None if observed is None else observed.tape
        memory = None if observed is None else observed.memory
        memory = memory or memory_info(runtime, graph, annotations, timeline, tape)
        memory, growth = with_growth(memory, graph, timeline.block_bytes)
        annotations[GROWTH] = Section(growth)
        if observed is not None:
            step = replace(step, observed=replace(observed, memory=memory))
    report = build_report(step, annotations, timeline, memory)
    report = with_collector(report, graph, runtime, timeline)
    return Analysis(report, step, annotations, timeline)


def timeline_of(step: TracedStep, annotations: Annotations) -> Timeline:
    """A step's timeline: observed, or simulated on a card without limits.

    Args:
        step: the step.
        annotations: those of its graph, kernel memory among them.
    """
    from graphmem.simulate import simulate

    if step.observed is not None:
        return step.observed.timeline
    allocator = step.runtime.new_allocator(bounded=False)
    return simulate(step.graph, annotations.of(KERNEL_MEMORY).programs, allocator)


def _with_bounds(
    report: Report,
    graph: StepGraph,
    target: str | Callable[[], Any],
    request: Request,
    progress: Progress,
) -> Report:
    """Add to a report the peaks of what it assumes not to happen."""
    import msgspec

    from graphmem.values.choices import Choices

    def peak_if(assumption: str, stage: str) -> int:
        progress(stage)
        assume = (*request.assume, assumption)
        other = run_analysis(target, replace(request, assume=assume, bounds=False), progress)
        return other.report.peak.allocated

    found: dict[str, int] = {}
    if graph.is_routed:
        found["worst_routing_peak"] = peak_if("routing=1", "tracing the worst routing")
    is_chosen = "padding" in Choices.parse(request.assume).by_name
    if not is_chosen and (PADDING, "no") in {(it.what, it.value) for it in graph.assumptions}:
        found["padded_peak"] = peak_if("padding=true", "tracing padded products")
    return msgspec.structs.replace(report, **found) if found else report


def runtime_of(request: Request) -> Runtime:
    """The machine of a request."""
    gpu = find_gpu(request.gpu)
    version = request.torch
    if version is None:
        import torch

        version = torch.__version__.partition("+")[0]
    return Runtime(gpu, version, dict(request.env))


def traced_step(
    target: str | Callable[[], Any],
    request: Request,
    progress: Progress = lambda message: None,
    *,
    follows: bool = True,
) -> TracedStep:
    """The step of a target: traced now, or read from its file.

    Args:
        target: the target.
        request: the machine and the options.
        progress: called with a description of each stage.
        follows: whether memory is followed where the step uses streams or pools; False for readers
            of births and deaths alone, for whom CUDA graphs are left out.

    Raises:
        InputError: the target or an option cannot be used; a saved step cannot be changed.
    """
    from graphmem.advice.commands import options_of
    from graphmem.online.following import Following
    from graphmem.record import Observed, TracedStep, is_record, load

    if is_record(target):
        _refuse_changes(target, request)
        progress("reading the saved step")
        return load(Path(target))
    runtime = runtime_of(request)
    runtime.new_allocator(bounded=False)  # reports wrong settings before the trace
    following = Following(runtime) if follows else None
    name, graph, batch = _traced(target, request, runtime, progress, following)
    found = following.outcome() if following else None
    observed = None if found is None else Observed(found[0], tape=found[1])
    return TracedStep(name, runtime, graph, observed, batch, options_of(request))


_READ_OF_A_RECORD = frozenset({"steps", "bounds"})


def _refuse_changes(target: str, request: Request) -> None:
    """Raise an error for fields that would change the trace of a saved step."""
    untouched = Request()
    for each in fields(Request):
        if each.name in _READ_OF_A_RECORD:
            continue
        if getattr(request, each.name) != getattr(untouched, each.name):
            raise SavedStepFixedError(target, each.name)


def _traced(
    target: str | Callable[[], Any],
    request: Request,
    runtime: Runtime,
    progress: Progress,
    following: Following | None,
) -> tuple[str, StepGraph, int | None]:
    """The target's name, its step graph, and its batch."""
    from graphmem.caller import clean_turn
    from graphmem.changes.batch import batch_of
    from graphmem.overrides import overridden
    from graphmem.pipeline import installed_passes
    from graphmem.targets import blaming_the_user, load_target
    from graphmem.trace import TraceOptions, trace

    installed_passes()  # what is wrong with them is told before the program runs
    loaded = load_target(target, request.settings)
    options = TraceOptions(
        steps=request.steps,
        torch_release=runtime.release,
        keep_grads=request.grads == "keep",
        inference=request.inference,
        assume=request.assume,
        strict=request.strict,
        compile=request.compile is not False,
        offload=request.offload,
        within=loaded.within,
    )
    batches: list[int | None] = []

    def step() -> TrainingStep:
        made = overridden(build(), request)
        batches.append(batch_of(made))
        return made

    progress("importing the target")
    with clean_turn(), loaded.imported() as build, blaming_the_user("the step", loaded.within):
        graph = trace(
            step, gpu=runtime.gpu, options=options, progress=progress, following=following
        )
    return loaded.name, graph, next(iter(batches), None)


def target_defaults(target: str | Callable[..., Any], request: Request) -> dict[str, Any]:
    """The defaults of `build`, imported on the virtual GPU, as in a trace.

    Raises:
        InputError: the target cannot be imported.
    """
    from graphmem.caller import clean_turn, put_back
    from graphmem.targets import load_target
    from graphmem.virtual_device import virtual_cuda
    from graphmem.virtual_device.fake_mode import VirtualFakeMode

    runtime = runtime_of(request)
    loaded = load_target(target, request.settings)
    mode = VirtualFakeMode()
    with (
        clean_turn(),
        put_back(all_values=True) as before,
        loaded.imported(),
        mode,
        virtual_cuda(runtime.gpu, runtime.release, mode, before=before.tensors),
    ):
        return loaded.defaults()
