"""Trace the iterations of a training step, from `build()` to the step graph."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.optim.optimizer as optim_hooks

from graphmem.errors import InputError
from graphmem.gpus import Gpu
from graphmem.graph import OwnerKind, StepGraph
from graphmem.trace.autocast import AutocastRegions
from graphmem.trace.autograd_nodes import AutogradNodes
from graphmem.trace.backward import Backward
from graphmem.trace.dispatch import TraceMode
from graphmem.trace.gradients import GradientRules
from graphmem.trace.in_place_forms import InPlaceForms
from graphmem.trace.location import Location
from graphmem.trace.loop import TrainingLoop
from graphmem.trace.naming import (
    describe_model,
    name_model,
    name_optimizer,
    name_variables,
)
from graphmem.trace.node_hooks import NodeHooks
from graphmem.trace.recorder import Recorder
from graphmem.trace.replayed_views import ReplayedViews
from graphmem.trace.saved_tensors import SavedTensors
from graphmem.training_step import TrainingStep
from graphmem.virtual_gpu import fake_cpu, virtual_cuda
from graphmem.virtual_gpu.fake_mode import VirtualFakeMode


@dataclass(frozen=True)
class Options:
    """How to run the step, where the command line or the caller overrides `build()`.

    Attributes:
        steps: iterations to trace.
        torch_release: the version whose choice of CUDA kernels applies.
        keep_grads: zero gradients in place instead of dropping them.
        inference: forward passes only, under `torch.inference_mode`.
        subclass_like: see `GradientRules`; True only to compare with an observed CPU run.
    """

    steps: int = 3
    torch_release: tuple[int, int] = (2, 13)
    keep_grads: bool = False
    inference: bool = False
    subclass_like: bool = False


def trace(
    build: Callable[[], TrainingStep],
    *,
    gpu: Gpu | None,
    options: Options,
    progress: Callable[[str], None] = lambda message: None,
) -> StepGraph:
    """Call `build` and trace the step that it returns.

    Args:
        build: makes the training step; it runs on the virtual GPU as well.
        gpu: the GPU to stand in for; None traces on fake CPU tensors.
        options: how to run.
        progress: told what is being done.

    Raises:
        InputError: the step cannot be traced; the message says why and where.
    """
    return _Tracer(gpu, options, progress).run(build)


class _Tracer:
    """Everything that watches one trace. Also the walk's observer: it tells phases apart."""

    def __init__(self, gpu: Gpu | None, options: Options, progress: Callable[[str], None]) -> None:
        self._gpu = gpu
        self._options = options
        self._progress = progress
        self._device = torch.device("cpu" if gpu is None else "cuda:0")
        self._fake_mode = VirtualFakeMode()
        self._recorder = Recorder(self._device)
        self._location = Location()
        self._autocast = AutocastRegions(self._recorder)
        self._hooks = NodeHooks()
        self._views = ReplayedViews()
        self._saved = SavedTensors(self._recorder, self._fake_mode)
        self._nodes = AutogradNodes(self._recorder, self._saved)
        self._depth = 0
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._mode: TraceMode | None = None

    def run(self, build: Callable[[], TrainingStep]) -> StepGraph:
        with ExitStack() as stack:
            stack.enter_context(_without_collector())
            stack.enter_context(_without_logged_errors())
            stack.enter_context(self._device_context())
            stack.enter_context(self._hooks.collecting())
            stack.enter_context(self._location.following(sys._getframe()))
            stack.enter_context(self._saved.hooks())
            stack.enter_context(self._walk().installed())
            stack.enter_context(self._watching_optimizers())
            stack.enter_context(self._autocast.following())
            self._mode = TraceMode(
                self._recorder,
                self._fake_mode,
                self._location,
                self._autocast,
                self._views,
                InPlaceForms(observed=self._options.subclass_like),
            )
            with self._mode:
                step = build()
                self._mode.assume(step.assume)
                iterate = self._prepare(step)
                for number in range(self._options.steps):
                    self._progress(f"tracing step {number + 1} of {self._options.steps}")
                    self._iterate(number, iterate)
                return self._recorder.finish()

    def _device_context(self) -> Any:
        if self._gpu is None:
            return fake_cpu(self._fake_mode)
        return virtual_cuda(self._gpu, self._options.torch_release, self._fake_mode)

    def _walk(self) -> Backward:
        rules = GradientRules(self._recorder, subclass_like=self._options.subclass_like)
        return Backward(rules, self._saved, self._hooks, self._views, self)

    def _prepare(self, step: TrainingStep) -> Callable[[], Any]:
        if step.model is not None:
            self._location.know(step.model)
        if step.step is not None:
            if self._options.inference:
                raise InputError(
                    "inference cannot be asked of a step that graphmem does not run by its parts",
                    hint="return (model, inputs) from build(), or leave out --inference",
                )
            return step.step
        loop = TrainingLoop(
            step,
            self._device,
            self._recorder.mark,
            self._identify_input,
            keep_grads=self._options.keep_grads,
            inference=self._options.inference,
        )
        loop.prepare()
        return loop.iterate

    def _identify_input(self, tensor: torch.Tensor) -> None:
        self._recorder.identify(tensor, OwnerKind.INPUT, "a moved input")

    def _iterate(self, number: int, iterate: Callable[[], Any]) -> None:
        for model in self._location.roots:
            name_model(self._recorder, model)
        self._recorder.begin_iteration(number)
        iterate()
        for model in self._location.roots:
            name_model(self._recorder, model)
            describe_model(self._recorder, model)
        for optimizer in self._optimizers.values():
            name_optimizer(self._recorder, optimizer)

    # What the walk tells ------------------------------------------------------------------------

    def begin_backward(self) -> None:
        """The outermost call of `backward` or `grad` begins a phase."""
        if not self._depth:
            name_variables(self._recorder, self._location)
            self._recorder.enter_backward()

    def enter_backward(self) -> None:
        """Backward passes can be nested."""
        self._depth += 1

    def leave_backward(self) -> None:
        """What follows the outermost is the optimizer's, or else the next forward pass."""
        self._depth -= 1
        if not self._depth:
            self._recorder.leave_backward()

    def run_node(self, node: Any) -> None:
        """Operations that follow belong to this autograd node."""
        assert self._mode is not None
        self._mode.node = node
        if node is not None:
            self._nodes.note(node, self._mode.forward_of(node))

    @contextmanager
    def _watching_optimizers(self) -> Iterator[None]:
        """Know every optimizer that steps, and where in the iteration it does."""

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            self._optimizers[id(optimizer)] = optimizer
            name_optimizer(self._recorder, optimizer)

        def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            name_optimizer(self._recorder, optimizer)
            self._recorder.optimizer_stepped()

        handles = [
            optim_hooks.register_optimizer_step_pre_hook(before),
            optim_hooks.register_optimizer_step_post_hook(after),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keep Python's cycle collector from freeing tensors at moments that depend on graphmem."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _without_logged_errors() -> Iterator[None]:
    """Keep FakeTensorMode from logging the errors that it raises as well."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
