"""Everything that watches torch while the user's program runs.

A session knows nothing of training loops: its caller (`tracer` for `build()`, `graphmem.live` for a
whole script) marks where iterations begin.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
import torch.optim.optimizer as optim_hooks

from graphmem.graph import PhaseName
from graphmem.trace import (
    assignments,
    clipping,
    detectors,
    disguise,
    dlpack,
    higher_order,
    initialisers,
    monitored,
    naming,
    offloaded,
    printing,
    tensor_kinds,
    threads,
    torchscript,
    whole_backward,
)
from graphmem.trace.autocast import AutocastRegions
from graphmem.trace.autograd_nodes import AutogradNodes
from graphmem.trace.backward import Backward
from graphmem.trace.compiled import eagerly
from graphmem.trace.compiled.compilation import Compilation
from graphmem.trace.compiled.unwatched import Unwatched
from graphmem.trace.deterministic import DeterministicMode
from graphmem.trace.gradients import GradientRules
from graphmem.trace.host_tensors import share_with_fakes
from graphmem.trace.in_place_forms import InPlaceForms
from graphmem.trace.later_nodes import LaterNodes
from graphmem.trace.library_flags import note_flags
from graphmem.trace.line_search import LineSearches
from graphmem.trace.location import Location
from graphmem.trace.node_hooks import NodeHooks
from graphmem.trace.python_functions import is_differentiated
from graphmem.trace.reads import Reads
from graphmem.trace.recorder import Recorder
from graphmem.trace.replayed_views import ReplayedViews
from graphmem.trace.saved_tensors import SavedTensorHooks
from graphmem.trace.threads import NodeNumbers
from graphmem.trace.transform_levels import TransformLevels
from graphmem.user_errors import note_hint, note_place
from graphmem.virtual_device import data_lifted_on_cpu
from graphmem.virtual_device.device_memory import DEFAULT_STREAM, DeviceMemory
from graphmem.virtual_device.fake_mode import VirtualFakeMode
from graphmem.virtual_device.patching import replaced

_COPY_SLICES: Any = vars(torch._C._functions)["CopySlices"]
_OF_A_NUMBER = (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError)
"""Errors that a wrong number may cause: a size, an index, a divisor, a branch."""


class Session:
    """Watches one program, and observes the backward walk to tell phases apart.

    Attributes:
        recorder: writes the step graph.
        location: knows where the program is.
        fake_mode: the mode of the fake tensors.
        saved: the tensors that autograd holds.
        mode: the dispatch mode under which the program runs.
        reads: answers the program's reads from the device.
    """

    knows_memory = False
    """Whether the program can ask how much memory is in use while it runs."""

    memory: DeviceMemory | None = None
    """The device's memory, if it can be followed while the program runs."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        mode: Callable[..., DeterministicMode] = DeterministicMode,
        compiles: bool = False,
        subclass_like: bool = False,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Make a session that is not watching yet.

        Args:
            recorder: writes the step graph of the device whose memory is counted.
            mode: makes the dispatch mode.
            compiles: whether `torch.compile` compiles, or returns a function that runs eagerly.
            subclass_like: see `GradientRules`.
            tell: called with a line of text when something is assumed for the first time.
        """
        device = recorder.device
        self.recorder = recorder
        self._compiles = compiles
        self.location = Location(self._called)
        recorder.graph.calls = self.location.calls
        self.fake_mode = VirtualFakeMode()
        if device.type == "cpu":
            share_with_fakes(self.recorder, self.fake_mode)
        self._autocast = AutocastRegions(self.recorder.device.type)
        self._hooks = NodeHooks()
        self._views = ReplayedViews()
        self._searches = LineSearches(recorder, self.location)
        answer = self._searches.answer
        self.reads = Reads(recorder, self.location, answer=answer, tell=tell)
        self.fake_mode.known = self.reads.known
        self.saved = SavedTensorHooks(recorder, self.fake_mode, self.reads.known)
        self._nodes = AutogradNodes(self.recorder, self.saved)
        rules = GradientRules(self.recorder, subclass_like=subclass_like)
        later = LaterNodes(self.saved.release)
        self._walk = Backward(rules, self.saved, self._hooks, self._views, later, self)
        self._depth = 0
        self._levels = TransformLevels()
        self._numbers = NodeNumbers()
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self.mode = mode(
            self.recorder,
            self.fake_mode,
            self.location,
            self._autocast,
            self._views,
            later,
            InPlaceForms(observed=subclass_like, levels=self._levels),
            self._numbers,
            self.reads,
        )
        self._lifts_data = False

    @contextmanager
    def watching(
        self, device: AbstractContextManager[None], outermost: FrameType | None
    ) -> Iterator[None]:
        """Run the context's body on the device, and record it.

        Args:
            device: makes torch see the device; open while the session watches.
            outermost: the frame that calls the program; None if the whole stack is the user's.
        """
        with ExitStack() as stack:
            stack.enter_context(_without_logged_errors())
            stack.enter_context(device)
            self._lifts_data = torch._C._only_lift_cpu_tensors()
            stack.enter_context(self._hooks.collecting())
            stack.enter_context(self.location.following(outermost))
            stack.enter_context(self.saved.hooks())
            of_weights = initialisers.replacements(self.recorder, self.location)
            stack.enter_context(replaced(of_weights))
            stack.enter_context(replaced(self._searches.replacements()))
            stack.enter_context(replaced(tensor_kinds.replacements(self.location, self.recorder)))
            stack.enter_context(replaced(self._levels.replacements()))
            stack.enter_context(replaced(printing.replacements(self.reads, self.fake_mode)))
            stack.enter_context(replaced(dlpack.replacements(self.fake_mode)))
            stack.enter_context(replaced([offloaded.replacement(self.reads)]))
            stack.enter_context(replaced(higher_order.replacements(self.mode)))
            stack.enter_context(torchscript.unfused())
            stack.enter_context(replaced(torchscript.replacements(self.reads.scripted)))
            stack.enter_context(self._compilation())
            stack.enter_context(self._walk.installed())
            stack.enter_context(self._watching_optimizers())
            stack.enter_context(self._autocast.following(self.recorder))
            stack.enter_context(replaced(threads.replacements(self._watching_thread)))
            stack.enter_context(disguise.worn())
            stack.enter_context(detectors.known(self.reads))
            stack.enter_context(detectors.when_nms_is_loaded(self.mode.follow_nms))
            stack.enter_context(assignments.known(self.reads))
            stack.enter_context(monitored.improving(self.reads))
            stack.enter_context(clipping.known(self.reads))
            stack.enter_context(self.mode.uncovered)
            stack.callback(self._end)
            stack.enter_context(self._excusing())
            stack.enter_context(self.mode)
            yield
            note_flags(self.recorder)

    @contextmanager
    def _excusing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.excuse(error)
            raise

    def excuse(self, error: BaseException) -> None:
        """Add a hint to an error that a number may have caused, if one was assumed before it."""
        if isinstance(error, _OF_A_NUMBER) and not isinstance(error, torch.OutOfMemoryError):
            note_hint(error, self.reads.excuse())

    @contextmanager
    def _compilation(self) -> Iterator[None]:
        """The handler of `torch.compile`."""
        device, known = self.recorder.device, self.reads.known
        unwatched = Unwatched(self.mode, self._hooks, self.fake_mode, device, known)
        compilation = Compilation(
            self.recorder,
            unwatched,
            self.reads.compiler,
            known,
            knows_memory=self.knows_memory,
            memory=self.memory,
        )
        self.location.compiled = compilation.origins.at
        compilation.noted = self._graph_compiled
        eager = [] if self._compiles else eagerly.replacements(self.reads.eager)
        with compilation.installed(), replaced(eager):
            yield

    @contextmanager
    def _watching_thread(self) -> Iterator[None]:
        """Watch another thread of the program."""
        self._numbers.go_on()
        lifted = data_lifted_on_cpu(is_on=self._lifts_data)
        with self.saved.hooks_of_thread(), lifted, self.mode:
            try:
                yield
            finally:
                if not self.mode.is_over:
                    self._numbers.go_on()

    def _graph_compiled(self, trains: bool) -> None:
        """Know that a graph was compiled, and will run next; whether to be differentiated."""

    def _called(self, module: torch.nn.Module) -> None:
        """Know that a module is called from outside any other."""
        self.recorder.phases.module_called(trains=is_differentiated())

    def _end(self) -> None:
        """Leave threads that outlive the program alone, and hold nothing of its own."""
        self.mode.is_over, self.mode.belongings = True, None

    def name_what_lives(self) -> None:
        """Name what models and optimizers hold, by their current names."""
        for name, model in self.location.roots:
            self._name(model, name)
        for optimizer in self._known_optimizers():
            naming.name_optimizer(self.recorder, optimizer)

    def _name(self, model: torch.nn.Module, root: str) -> None:
        naming.name_model(self.recorder, model, root)
        naming.describe_model(self.recorder, model, root)

    def _known_optimizers(self) -> Iterator[torch.optim.Optimizer]:
        for known in list(self._optimizers.values()):
            optimizer = known()
            if optimizer is not None:
                yield optimizer

    # Events of the walk -------------------------------------------------------------------------

    def begin_backward(self) -> None:
        """Begin a phase at the outermost call of `backward`, of `grad` or of the engine."""
        if not self._depth and self.recorder.phases.running is not PhaseName.BACKWARD:
            naming.name_variables(self.recorder, self.location)
            note_flags(self.recorder)
            self.recorder.phases.enter_backward()

    def compiles_whole(self, nodes: Iterable[Any]) -> bool:
        """Whether compiled autograd takes over a pass; if not, graphmem takes over its nodes."""
        known = list(nodes)
        if whole_backward.is_on() and self._can_compile(known):
            whole_backward.name_all_saved(known, self.recorder)
            self.recorder.phases.compile_whole()
            return True
        self.saved.take_over(known)
        return False

    def _can_compile(self, nodes: Iterable[Any]) -> bool:
        obstacle = next(filter(None, map(self._keeps_from_compiling, nodes)), "")
        if obstacle or not self._compiles:
            self.recorder.assume(
                "compiled autograd",
                "the backward pass takes what it takes without it",
                f"{obstacle or 'nothing is compiled'}, so graphmem runs the nodes one by one",
                self.location.source(),
            )
        return self._compiles and not obstacle

    def _keeps_from_compiling(self, node: Any) -> str:
        """Why compiled autograd cannot have a node, if it cannot.

        Until it is on, autograd has graphmem's tokens in place of tensors, and no hooks. A write
        into a view has a `view_fn` if the tensors are fake (`CopySlices::apply_with_saved`).
        """
        if isinstance(node, _COPY_SLICES):
            return "the forward pass wrote into a view outside compiled code"
        if self._hooks.hides_any(node) or self.saved.holds_any(node):
            return "the forward pass ran before it was on"
        return ""

    def enter_backward(self) -> None:
        """Count one more level: backward passes can be nested."""
        self._depth += 1

    def leave_backward(self) -> None:
        """End the phase with the outermost call: optimizer or next forward pass follows."""
        self._depth -= 1
        if not self._depth:
            self.end_backward_phase()

    def end_backward_phase(self) -> None:
        """End the phase that `begin_backward` began."""
        self.recorder.phases.leave_backward()

    def run_node(self, node: Any, *, keeps_graph: bool = False) -> None:
        """Assign the following operations to this autograd node."""
        self.mode.run_node(node, keeps_graph=keeps_graph)
        if node is not None:
            self._nodes.note(node, self.mode.forward_of(node))

    def current_stream(self) -> int:
        """The handle of the current stream; a trace that follows none has only the default one."""
        return DEFAULT_STREAM if self.memory is None else self.memory.current_stream

    def note_context(self, node: Any) -> None:
        """Name what a Python function keeps in its context."""
        naming.name_kept(node, self.recorder)

    def failed(self, error: Exception, roots: list[Any]) -> None:
        """Attach a place to an error, for the case that no user line calls `backward`.

        It is the line of the failing node's operation, else that of a root's, else the module.
        """
        nodes = [node for node in (self.mode.node, *roots) if node is not None]
        made_by = [op for op in map(self.mode.forward_of, nodes) if op is not None]
        lines = [op.source for op in made_by if op.source is not None]
        note_place(error, next(iter(lines), made_by[0].module if made_by else None))

    def optimizer_stepped(self) -> None:
        """Note that an optimizer's step has just ended."""
        self.recorder.phases.optimizer_stepped()

    @contextmanager
    def _watching_optimizers(self) -> Iterator[None]:
        """Register every optimizer that steps, and when it does."""

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if torch.compiler.is_compiling() and _breaks_graphs(optimizer):
                torch._dynamo.graph_break()
            known = self._optimizers.get(id(optimizer), lambda: None)
            if known() is not optimizer:
                self._optimizers[id(optimizer)] = weakref.ref(optimizer)
                naming.name_models(self.recorder, self.location)
            else:
                naming.name_replaced(self.recorder, self.location, optimizer)
            if _has_gradients(optimizer):
                naming.name_optimizer(self.recorder, optimizer)
            self.recorder.phases.optimizer_steps()

        def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            naming.name_replaced(self.recorder, self.location, optimizer)
            naming.name_optimizer(self.recorder, optimizer)
            self.optimizer_stepped()

        register_after = optim_hooks.register_optimizer_step_post_hook
        handles = [optim_hooks.register_optimizer_step_pre_hook(before), register_after(after)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def _without_logged_errors() -> Iterator[None]:
    """Keep FakeTensorMode from also logging the errors that it raises."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step has something to read; else its closure may call the model for the first time.

    Only then do the parameters have the model's names.
    """
    groups = optimizer.param_groups
    return any(each.grad is not None for group in groups for each in group["params"])


def _breaks_graphs(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `step` breaks a compiled graph (`_use_grad_for_differentiable`, torch/optim/)."""
    is_theirs = type(optimizer).__module__.startswith("torch.optim.")
    return is_theirs and "differentiable" in optimizer.defaults
