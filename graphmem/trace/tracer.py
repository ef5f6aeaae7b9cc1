"""Trace the iterations of a training step: from `build()` to the step graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from graphmem.caller import Belongings, put_back
from graphmem.caller.settings import of_a_new_program
from graphmem.data_stack import with_room
from graphmem.frames import acts_for_the_program
from graphmem.gpus import Gpu
from graphmem.graph import OwnerKind, StepGraph
from graphmem.own_process import without_collector
from graphmem.retention import kept_of
from graphmem.trace.addresses import far_from_others, of_tensors
from graphmem.trace.closed_over import labels_in_place
from graphmem.trace.holders import holders_of
from graphmem.trace.loop import TrainingLoop
from graphmem.trace.messages import InferenceOfOwnLoopError
from graphmem.trace.naming import name_models
from graphmem.trace.recorder import Recorder
from graphmem.trace.reference_models import ReferenceModels
from graphmem.trace.root_names import RootNames
from graphmem.trace.session import Session
from graphmem.trace.uncalled_models import name_uncalled
from graphmem.training_step import TrainingStep
from graphmem.values.choices import Choices
from graphmem.virtual_device import fake_cpu, virtual_cuda
from graphmem.virtual_device.device_memory import DeviceMemory
from graphmem.virtual_device.fake_mode import VirtualFakeMode
from graphmem.virtual_device.patching import Replacement, replaced


@dataclass(frozen=True)
class TraceOptions:
    """Options for running the step; they override `build()`.

    Attributes:
        steps: iterations to trace.
        torch_release: the version of torch whose choice of CUDA kernels applies.
        keep_grads: zero gradients in place instead of dropping them.
        inference: forward passes only, under `torch.inference_mode`.
        assume: values for the program's reads that only a real run knows, in the syntax of
            `--assume`.
        strict: raise an error instead of assuming anything.
        compile: whether `torch.compile` compiles, or returns a function that runs eagerly.
        offload: keep what the forward pass saves for the backward pass on the host.
        within: the running target, in words, for messages about package lines.
        subclass_like: see `GradientRules`; True only to compare with an observed CPU run.
    """

    steps: int = 3
    torch_release: tuple[int, int] = (2, 13)
    keep_grads: bool = False
    inference: bool = False
    assume: tuple[str, ...] = ()
    strict: bool = False
    compile: bool = True
    offload: bool = False
    within: str = ""
    subclass_like: bool = False


class Follower(Protocol):
    """Follows memory while the step runs (`graphmem.online.following`)."""

    @property
    def memory(self) -> DeviceMemory:
        """The device's memory."""

    def session(self, **options: Any) -> Session:
        """A session of the program; the options are those of `Session`."""

    def replacements(self, fake_mode: VirtualFakeMode) -> list[Replacement]:
        """The attributes to replace while the program runs."""

    def empty_cache(self, tick: int) -> None:
        """Empty the cache."""


@with_room
def trace(
    build: Callable[[], TrainingStep],
    *,
    gpu: Gpu | None,
    options: TraceOptions,
    progress: Callable[[str], None] = lambda message: None,
    following: Follower | None = None,
) -> StepGraph:
    """Call `build` and trace the step that it returns.

    Args:
        build: makes the training step; it also runs on the virtual GPU.
        gpu: the GPU to stand in for; None traces on fake CPU tensors.
        options: how to run.
        progress: called with a description of each stage.
        following: follows memory from where the step uses streams or pools; None refuses CUDA
            graphs and pools.

    Raises:
        InputError: the step cannot be traced; the message says why and where.
    """
    return _Tracer(gpu, options, progress, following).run(build)


class _Tracer:
    """Runs the iterations of one training step in a session."""

    def __init__(
        self,
        gpu: Gpu | None,
        options: TraceOptions,
        progress: Callable[[str], None],
        following: Follower | None = None,
    ) -> None:
        self._gpu = gpu
        self._options = options
        self._progress = progress
        self._following = following
        self._device = torch.device("cpu" if gpu is None else "cuda:0")
        new_session = (
            partial(Session, Recorder(self._device)) if not following else following.session
        )
        self._session = new_session(
            compiles=options.compile and gpu is not None, subclass_like=options.subclass_like
        )
        self._recorder = self._session.recorder
        self._recorder.assumptions.is_strict = options.strict
        self._session.location.within = options.within

    def run(self, build: Callable[[], TrainingStep]) -> StepGraph:
        caller = sys._getframe()
        with (
            without_collector(),  # it would free tensors at moments that depend on graphmem
            put_back(all_values=True) as belongings,
            of_a_new_program(),
            self._session.watching(self._device_context(belongings), caller),
        ):
            self._session.mode.belongings = belongings
            self._session.reads.choose(Choices.parse(self._options.assume))
            with labels_in_place(build()) as step:
                self._session.reads.choose(Choices.of(step.assume))
                self._session.reads.choose(Choices.parse(self._options.assume))
                iterate = self._prepare(step)
                self._recorder.host.begin_steps()
                for number in range(self._options.steps):
                    self._progress(f"tracing step {number + 1} of {self._options.steps}")
                    self._iterate(number, iterate)
                name_uncalled(self._recorder, self._session.location)
                references = ReferenceModels(self._recorder.graph)
                references.look()
                references.finish()
                self._find_holders()
                self._session.reads.name_unused()
                self._recorder.graph.is_routed = self._session.reads.is_routed
                if self._gpu is not None:
                    self._recorder.graph.host = self._recorder.host.peaks()
                return self._recorder.finish()

    def _device_context(self, belongings: Belongings) -> AbstractContextManager[None]:
        if self._gpu is None:
            return fake_cpu(self._session.fake_mode, belongings.tensors)
        return self._card(self._gpu, belongings)

    @contextmanager
    def _card(self, gpu: Gpu, belongings: Belongings) -> Iterator[None]:
        names = ("_cuda_emptyCache", "_accelerator_emptyCache")
        release, fake_mode = self._options.torch_release, self._session.fake_mode
        following = self._following
        replacements: list[Replacement] = [
            *((torch._C, name, self._empty_cache) for name in names),
            *(
                following.replacements(fake_mode)
                if following
                else [of_tensors(self._recorder, far_from_others)]
            ),
        ]
        card = virtual_cuda(
            gpu,
            release,
            fake_mode,
            memory=following.memory if following else None,
            is_live=False,
            before=belongings.tensors,
            pinned=self._recorder.host.pinned,
        )
        with card, replaced(replacements):
            yield

    def _empty_cache(self) -> None:
        """Note that the program emptied the allocator's cache."""
        tick = self._recorder.next_tick()
        self._recorder.graph.emptied.append(tick)
        if self._following:
            self._following.empty_cache(tick)

    def _prepare(self, step: TrainingStep) -> Callable[[], Any]:
        self._session.location.follow(step)
        self._session.location.root_name = RootNames(self._session.location).name
        if step.model is not None:
            self._session.location.know(step.model)
        if step.step is not None:
            if self._options.inference:
                raise InferenceOfOwnLoopError()
            return step.step
        loop = TrainingLoop(
            step,
            self._device,
            self._recorder.phases.mark,
            self._identify_input,
            keep_grads=self._options.keep_grads,
            inference=self._options.inference,
            offload=self._options.offload,
            notice=self._recorder.assume,
        )
        loop.prepare()
        return loop.iterate

    def _identify_input(self, tensor: torch.Tensor) -> None:
        self._recorder.identify(tensor, OwnerKind.INPUT, "a moved input")

    @acts_for_the_program
    def _iterate(self, number: int, iterate: Callable[[], Any]) -> None:
        name_models(self._recorder, self._session.location)
        self._recorder.phases.begin_iteration(number)
        iterate()
        self._session.name_what_lives()

    def _find_holders(self) -> None:
        """Find the variables that hold what an iteration before the last one has left."""
        graph = self._recorder.graph
        starts = [graph.phases_of(step)[0].start for step in range(graph.steps)]
        own = (each for each in graph.storages if each.device == graph.device)
        alive = [each for each in own if each.death is None]
        kept = kept_of(alive, starts, range(len(starts) - 1))
        saved, location = self._session.saved, self._session.location
        held = holders_of(kept, self._recorder, saved, location) if kept else {}
        graph.retained = {number: each for number, each in held.items() if not each.is_bounded}
