"""A session that finds the iterations of a program by itself.

(1) An iteration begins when a module is called from outside any other with gradients enabled, or
    by a function that autograd differentiates, as a reentrant checkpoint, and the last iteration is
    complete; the first such call begins the first one. Before that is set-up.
(2) An iteration is complete after an optimizer's step, or without any optimizer after a backward
    pass. So several forward and backward passes before a step, as in gradient accumulation, are one
    iteration; two optimizers that step in turn, as in a GAN, make two.
(3) If the program calls no module, the backward pass begins the iteration; the operations since the
    last optimizer step are its forward pass. The first one begins with compiled code, if any.
(4) A module called without gradients begins an evaluation, which ends when training resumes. A
    backward pass within such a call, as from an energy to its forces, is part of the evaluation.
    Called so in a forward pass, a model that no optimizer trains, such as a teacher, is part of
    that; so is one in training mode, such as a policy without its adapters. Before a forward pass,
    the former may be (`graphmem/trace/reference_models.py`). After an iteration, a module that has
    trained and is now in evaluation mode begins one too, though gradients are enabled, unless a
    backward pass follows its last call.
(5) Without an optimizer or a backward pass, each forward pass counts as a step.
(6) Before the first operation on the card, a module that is called begins nothing: it runs on the
    CPU, as a detector does that measures its strides when it is built. Nor does a backward pass
    then, as of a package that tries an operator when it is imported, if there is no optimizer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, NoReturn

import torch

from graphmem.graph import PhaseName
from graphmem.live.built_models import BuiltModels
from graphmem.live.collector_watch import CollectorWatch
from graphmem.live.mode import LiveMode
from graphmem.live.observer import Observer
from graphmem.online.online_simulator import OnlineSimulator
from graphmem.online.session import FollowedSession
from graphmem.runtime import Runtime
from graphmem.trace.python_functions import is_differentiated
from graphmem.trace.reference_models import ReferenceModels
from graphmem.trace.root_names import RootNames
from graphmem.virtual_device.device_memory import DeviceMemory
from graphmem.virtual_device.devices import Devices
from graphmem.virtual_device.patching import replaced


class EnoughSteps(BaseException):
    """The requested number of iterations has run.

    Attributes:
        has_trained: whether they were iterations, not forward passes of a program that has trained
            nothing yet: it may evaluate first.
    """

    def __init__(self, *, has_trained: bool) -> None:
        """Stop after iterations, or after forward passes."""
        super().__init__()
        self.has_trained = has_trained


class LiveSession(FollowedSession):
    """Watches a whole program and finds its iterations.

    Attributes:
        observer: samples the device when iterations begin.
        collector: notes when Python's cycle collector runs.
        built: names models that are never called.
        references: finds the models that forward passes read.
        enough: what stopped the program after the requested iterations; it may still clean up.
    """

    mode: LiveMode
    knows_memory = True

    def __init__(
        self,
        runtime: Runtime,
        devices: Devices,
        *,
        compiles: bool,
        max_steps: int | None,
        tell: Callable[[str], None],
    ) -> None:
        """A session that does not watch yet.

        Args:
            runtime: the machine to simulate.
            devices: the cards that the process sees.
            compiles: as in `Session`.
            max_steps: stop the program by `EnoughSteps` after this many iterations.
            tell: called with a line of text for the user.
        """
        memory = DeviceMemory(
            runtime.gpu,
            runtime.new_allocator(),
            devices,
            first_settings=lambda: runtime.allocator_settings,
        )
        simulator = OnlineSimulator(runtime, memory, self._look_before_refusal)
        simulator.follow()
        recorder = simulator.recorder
        super().__init__(simulator, mode=LiveMode, compiles=compiles, tell=tell)
        self.observer = Observer(self.simulator, self.saved, self.location, tell)
        simulator.where = self.location.place
        self.collector = CollectorWatch(recorder)
        self.built = BuiltModels(recorder)
        self.references = ReferenceModels(recorder.graph)
        self.location.whole = self.built.whole
        self._max_steps = max_steps
        self.enough: EnoughSteps | None = None
        self._is_complete = True
        self._forwards = 0
        self._walked = False
        self._is_aside = False
        self._made: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._root_names = RootNames(self.location, self.built.models, self._made)
        self.location.root_name = self._root_names.name
        self._evaluated: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._trained: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._validated: int | None = None

    @contextmanager
    def watching(
        self, device: AbstractContextManager[None], outermost: FrameType | None
    ) -> Iterator[None]:
        """Watch the program and the collector, and note every new optimizer and moved model."""
        with (
            super().watching(device, outermost),
            replaced([self._noting_optimizers(), self.built.replacement()]),
            replaced(self.mode.unfilled.replacements()),
            self.collector.installed(),
            self.mode.pace.installed(),
        ):
            yield

    def _noting_optimizers(self) -> tuple[Any, str, Any]:
        make = torch.optim.Optimizer.__init__
        made = self._made

        def make_and_note(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            made.add(optimizer)

        return torch.optim.Optimizer, "__init__", make_and_note

    def _called(self, module: torch.nn.Module) -> None:
        """Handle a module called from outside any other."""
        if self._depth:  # a recomputation, or a hook
            return
        self.recorder.host.begin_steps()
        self.location.is_trial = not self.recorder.graph.ops
        if self.location.is_trial:  # clause 6
            return
        self._count_forward()
        phase = self.recorder.graph.phases[-1].name
        if not is_differentiated():
            self._name_once(module)
            if phase is PhaseName.EVALUATION and self.references.has_trained:
                return
            is_trained = self._root_names.is_trained(module)
            is_amid = self._is_amid(phase) and (module.training or not is_trained)
            if phase is not PhaseName.EVALUATION and not is_amid:
                self.recorder.phases.enter_evaluation()
            self.references.called(is_trained=is_trained)
        elif self._is_complete and not module.training and module in self._trained:
            self._validate(phase)
        else:
            self._train(module, phase)

    def _train(self, module: torch.nn.Module, phase: PhaseName) -> None:
        if module.training:
            self._trained.add(module)
        if self._is_complete:
            self._begin_iteration()
            self.recorder.phases.begin_iteration(self.recorder.phases.step + 1)
        elif phase is not PhaseName.FORWARD:
            self.recorder.phases.enter_forward()

    def _validate(self, phase: PhaseName) -> None:
        """Begin an evaluation that forgets `torch.no_grad()`, or note its next call."""
        if phase is not PhaseName.EVALUATION:
            self.recorder.phases.enter_evaluation()
        self._validated = self.recorder.tick

    def _is_amid(self, phase: PhaseName) -> bool:
        """Whether a forward pass has begun that is to be trained."""
        return phase is PhaseName.FORWARD and not self._is_complete and bool(self._made)

    def _name_once(self, module: torch.nn.Module) -> None:
        """Name a model that may never train: what holds it may have returned at the end."""
        known = self._evaluated.get(id(module))
        if known is None or known() is not module:
            self._evaluated[id(module)] = weakref.ref(module)
            model = self.built.whole(module)
            name = next((name for name, root in self.location.roots if root is model), "")
            self._name(model, name)

    def _count_forward(self) -> None:
        """Count forward passes, which are the steps if nothing trains, as in generation.

        After a refusal that the program has caught it may complete no step, as torchft.
        """
        self._forwards += 1
        trains = (self._made or self._walked) and self.mode.refusal is None
        if self._max_steps is not None and not trains and self._forwards > self._max_steps:
            self._stop(has_trained=False)

    def _stop(self, *, has_trained: bool) -> NoReturn:
        self.enough = EnoughSteps(has_trained=has_trained)  # the other's traceback keeps tensors
        raise EnoughSteps(has_trained=has_trained)

    def _look_before_refusal(self) -> None:
        """Sample the device at a refused request."""
        self.observer.refuse()

    def _begin_iteration(self) -> None:
        """Begin the next iteration."""
        number = self.recorder.phases.step + 1
        self.recorder.host.begin_steps()
        self.name_what_lives()
        self.saved.forget_released()
        self.observer.begin_iteration(number)
        if number:  # before the first, those that are about to be called are not known
            for model in self._root_names.uncalled():
                self.built.note(model, self._root_names.name(model))
        if self._max_steps is not None and number >= self._max_steps:
            self._stop(has_trained=True)
        self._is_complete = False
        self._validated = None

    def _graph_compiled(self, trains: bool) -> None:
        """Name the models that optimizers train: compiled code calls no module within it."""
        if self.location.is_in_module:  # part of a model that was called
            return
        if trains and self.recorder.phases.step < 0 and self._is_complete:  # clause 3
            self._begin_iteration()
            self.recorder.phases.begin_iteration(0)
        for model in self._root_names.trained():
            if not self.location.knows(model):
                name = self._root_names.name(model)
                self.location.know(model, name)
                self._name(model, name)

    def begin_backward(self) -> None:
        """Begin a phase at the outermost call of `backward` or `grad`."""
        if not self._depth:
            is_of_cpu = not (self.recorder.graph.ops or self._made)
            self._is_aside = is_of_cpu or self._is_within_evaluation()
        if self._is_aside:  # clauses 4 and 6
            return
        if not self._depth and self._is_complete:
            validated = self._validated
            self._begin_iteration()
            self.recorder.phases.step += 1
            if validated is not None:
                self.recorder.phases.was_forward(validated)
        self._walked = True
        super().begin_backward()

    def _is_within_evaluation(self) -> bool:
        is_evaluation = self.recorder.phases.running is PhaseName.EVALUATION
        return is_evaluation and self.location.is_in_module

    def leave_backward(self) -> None:
        """End a backward pass, which completes the iteration if there is no optimizer."""
        super().leave_backward()
        if not self._depth and not self._made and not self._is_aside:
            self._is_complete = True

    def end_backward_phase(self) -> None:
        """End the phase, if there is one."""
        if not self._is_aside:
            super().end_backward_phase()

    def optimizer_stepped(self) -> None:
        """End an optimizer's step, and with it the iteration."""
        super().optimizer_stepped()
        self.recorder.phases.mark("optimizer.step")
        self._is_complete = True
