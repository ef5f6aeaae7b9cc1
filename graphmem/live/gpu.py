"""A virtual GPU for part of a program: `with graphmem.virtual_gpu("h100") as gpu:`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any, ClassVar, Self

from torch import OutOfMemoryError

from graphmem import ranks
from graphmem.analysis import Analysis, Request, analysis_of, runtime_of
from graphmem.caller import put_back, turn
from graphmem.errors import input_errors_noted
from graphmem.gpus import DEFAULT_GPU
from graphmem.live import resized_storages, serialization, surroundings
from graphmem.live.kept_files import KeptFiles
from graphmem.live.messages import (
    CaughtRefusalError,
    EnteredTwiceError,
    RefusedCall,
    SecondGpuError,
)
from graphmem.live.program_threads import ProgramThreads
from graphmem.live.session import EnoughSteps, LiveSession
from graphmem.live.sparse_safetensors import sparse_safetensors
from graphmem.live.unpublished import unpublished
from graphmem.live.verdict import verdict_of
from graphmem.live.workers import with_stand_ins
from graphmem.online import addresses, pool_pointers
from graphmem.ranks import zero
from graphmem.ranks.journal import Journal
from graphmem.ranks.world import devices_of
from graphmem.record import Observed, TracedStep
from graphmem.report import Report
from graphmem.report.schema import OnCard
from graphmem.runtime import Runtime
from graphmem.trace import storage_parts
from graphmem.training_step import TrainingStep
from graphmem.values.choices import Choices
from graphmem.virtual_device import virtual_cuda
from graphmem.virtual_device.patching import replaced
from graphmem.virtual_device.process_environment import ProcessEnvironment
from graphmem.virtual_device.stand_ins import find, standing_in


class VirtualGpu:
    """A simulated CUDA device.

    Inside the context torch sees a CUDA device: operations on its tensors do no arithmetic and take
    no memory, operations on the CPU are real, and queries about memory are answered as the card
    would. It can be entered once. On exit everything is restored.

    Attributes:
        memory: the device's memory.
        stand_ins: the stand-ins for packages.

    Example:
        >>> with graphmem.virtual_gpu("h100") as gpu:
        ...     train()
        >>> gpu.report().peak.allocated
    """

    _present: ClassVar[VirtualGpu | None] = None

    def __init__(
        self,
        gpu: str = DEFAULT_GPU,
        *,
        torch: str | None = None,
        env: Mapping[str, str] | None = None,
        assume: Sequence[str] = (),
        stand_in: Sequence[str] = (),
        strict: bool = False,
        compiles: bool = True,
        max_steps: int | None = None,
        tell: Callable[[str], None] = lambda line: None,
        name: str = "",
    ) -> None:
        """A device that has not been entered.

        Args:
            gpu: the card's name.
            torch: the release whose CUDA rules apply; by default the installed one.
            env: environment variables that override those of this process.
            assume: assumed values, as in `--assume`.
            stand_in: packages that graphmem stands in for, as in `--stand-in`.
            strict: raise an `InputError` instead of assuming a value.
            compiles: whether `torch.compile` compiles, or returns a function that runs eagerly.
            max_steps: stop the program by `EnoughSteps` after this many iterations.
            tell: called with a line of text the first time something is assumed.
            name: the report's subject; by default the card.

        Raises:
            InputError: the card, an assumption or a stand-in is unknown.
        """
        runtime = runtime_of(Request(gpu=gpu, torch=torch))
        runtime = replace(runtime, env=ProcessEnvironment(env or {}))
        self._name = name or runtime.gpu.name
        self._session = LiveSession(
            runtime, devices_of(os.environ), compiles=compiles, max_steps=max_steps, tell=tell
        )
        recorder = self._session.recorder
        self._simulator = self._session.simulator
        self.memory = self._simulator.memory
        self.stand_ins = find(stand_in)
        for each in self.stand_ins:
            recorder.assume(each.distribution, "a stand-in allocates for it", each.source, None)
        self._session.reads.choose(Choices.parse(assume))
        recorder.assumptions.is_strict = strict
        self.threads = ProgramThreads()
        self._stack = ExitStack()
        self._was_entered = False
        self._finished = False
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        return self.enter(sys._getframe(1).f_back)

    def enter(self, outermost: FrameType | None) -> Self:
        """Switch the device on; frames from `outermost` outwards are not the program's.

        Raises:
            InputError: it was entered before, or another one is active.
        """
        if self._was_entered:
            raise EnteredTwiceError()
        if VirtualGpu._present is not None:
            raise SecondGpuError(VirtualGpu._present.runtime.gpu.title)
        self._was_entered = True
        session = self._session
        with ExitStack() as stack:
            stack.enter_context(turn("a virtual GPU"))
            belongings = stack.enter_context(put_back(all_values=False))
            session.mode.belongings = belongings
            card = virtual_cuda(
                self.runtime.gpu,
                self.runtime.release,
                session.fake_mode,
                memory=self.memory,
                before=belongings.tensors,
                pinned=session.recorder.host.pinned,
            )
            stack.enter_context(standing_in(self.stand_ins, self.runtime.gpu))
            stack.enter_context(with_stand_ins(self.stand_ins, self.runtime.gpu))
            stack.enter_context(KeptFiles(session.recorder, session.location).kept())
            stack.enter_context(sparse_safetensors())
            stack.enter_context(unpublished(session.recorder, session.location))
            stack.enter_context(replaced(self._replacements()))
            stack.enter_context(ranks.groups_taken_down())
            stack.enter_context(zero.named(session.recorder))
            stack.enter_context(session.watching(card, outermost))
            stack.enter_context(input_errors_noted(session.mode.note_refusal))
            self._stack = stack.pop_all()
        self.memory.devices.is_initialized = False  # the setup above is not the program's
        VirtualGpu._present = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        VirtualGpu._present = None
        self._failure = error
        if error is not None:
            self._session.excuse(error)
        self.finish()
        self._session.mode.unfilled.fill_all()
        self._stack.close()

    def _replacements(self) -> list[Any]:
        session = self._session
        journal = Journal(
            session.reads.known, session.location.place, lambda: session.enough is not None
        )
        return [
            *addresses.replacements(session.recorder, self._simulator.block_holding),
            *serialization.replacements(session.recorder, session.fake_mode, session.reads),
            *storage_parts.replacements(session.recorder),
            *resized_storages.replacements(session.recorder, session.saved.replaced),
            *pool_pointers.replacements(self._simulator, session.fake_mode),
            *surroundings.replacements(
                session.recorder,
                session.location,
                session.reads.known,
                self.memory.devices,
                journal,
            ),
        ]

    @property
    def was_used(self) -> bool:
        """Whether an operation has run on it."""
        return bool(self._session.recorder.graph.ops)

    def bytes_in_use(self) -> int:
        """Bytes of the card in use now, the CUDA context included, as nvidia-smi counts them."""
        if not (self.was_used or self.memory.devices.is_initialized):
            return 0
        card = self.memory.settled().device
        return (card.total_bytes or 0) - (card.free_bytes or 0)

    @property
    def enough(self) -> EnoughSteps | None:
        """What stopped the program after `max_steps`; it may have caught that."""
        return self._session.enough

    @property
    def refusal(self) -> RefusedCall | None:
        """What graphmem refused first; the program may have caught the error."""
        return self._session.mode.refusal

    def abandon(self) -> None:
        """Leave tensors on the host without their numbers: their program has ended."""
        self._session.mode.unfilled.forget()

    def follow(self, step: TrainingStep) -> None:
        """Know the functions of a step whose loop is graphmem's."""
        self._session.location.follow(step)

    def finish(self) -> None:
        """Mark the end of the program: what it holds now is never freed."""
        if not self._finished:
            self._finished = True
            self._session.name_what_lives()
            self._session.observer.finish()
            self._session.built.finish()
            self._session.reads.name_unused()
            self._session.collector.finish()
            self._session.recorder.finish()
            self._session.references.finish()

    @property
    def runtime(self) -> Runtime:
        """The simulated machine."""
        return self._simulator.runtime

    @property
    def peak(self) -> int:
        """The most allocated bytes so far.

        Raises:
            CaughtRefusalError: the program has caught a refusal, and went on.
        """
        self._check_none_caught()
        return self._simulator.timeline().peak()[0].allocated

    @property
    def allocated(self) -> int:
        """The bytes allocated now."""
        return self.memory.settled().statistics.allocated_bytes.current

    @property
    def reserved(self) -> int:
        """The bytes reserved now."""
        return self.memory.settled().statistics.reserved_bytes.current

    def analysis(self, options: str = "") -> Analysis:
        """The report so far, with the data behind it; `options` are the program's arguments.

        Raises:
            CaughtRefusalError: the program has caught a refusal, and went on.
        """
        return analysis_of(replace(self.step(), options=options))

    def step(self) -> TracedStep:
        """The step captured so far; `graphmem.record.save` writes it.

        Raises:
            CaughtRefusalError: the program has caught a refusal, and went on.
        """
        self._check_none_caught()
        graph = self._session.recorder.graph
        graph.end = graph.phases[-1].end = self._session.recorder.tick
        graph.host = self._session.recorder.host.peaks()
        observed = Observed(
            self._simulator.timeline(), self._session.observer.sections(), self._verdict()
        )
        return TracedStep(self._name, self.runtime, graph, observed)

    def _verdict(self) -> OnCard | None:
        """The verdict; None if something other than memory ended the program."""
        failure = self._failure
        ran_out = isinstance(failure, OutOfMemoryError)
        if failure is not None and not ran_out and not _is_an_end(failure):
            return None
        return verdict_of(
            self._simulator, ran_out=ran_out, grows_by=self._session.observer.grows_by
        )

    def report(self) -> Report:
        """The report so far, as `graphmem.analyze` would make it.

        Raises:
            CaughtRefusalError: the program has caught a refusal, and went on.
        """
        return self.analysis().report

    def _check_none_caught(self) -> None:
        if self._failure is None and self.refusal is not None:
            raise CaughtRefusalError(self.refusal)


def _is_an_end(failure: BaseException) -> bool:
    """Whether this exception is a normal end of the program."""
    if isinstance(failure, SystemExit):
        return failure.code in (None, 0)
    return isinstance(failure, EnoughSteps)
