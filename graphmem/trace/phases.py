"""The phases of a trace, in program order.

Everything after a backward pass counts as optimizer until another forward or backward pass shows
that it was a forward pass: all of it, or the part after the last `optimizer.step()`.
"""

from __future__ import annotations

from collections.abc import Callable

from graphmem.graph import Mark, Phase, PhaseName, StepGraph

_PASSES = frozenset({PhaseName.FORWARD, PhaseName.EVALUATION, PhaseName.BACKWARD})


class Phases:
    """Writes the phases and marks of a step graph.

    Attributes:
        step: the running iteration; -1 before the first one.
        pending: the phase that the next operation begins, if any.
        passes: how many forward and backward passes have begun.
        index: the running phase's position in `StepGraph.phases`; its operations share the number.
    """

    def __init__(self, graph: StepGraph, next_tick: Callable[[], int]) -> None:
        """Begin with the setup phase.

        Args:
            graph: the graph to write to.
            next_tick: the clock of the trace.
        """
        self.step = -1
        self.pending: PhaseName | None = None
        self.passes = 0
        self.index = -1
        self._graph = graph
        self._next_tick = next_tick
        self._steps_running = 0
        self._begin(PhaseName.SETUP)

    def _begin(self, name: PhaseName) -> None:
        """End the running phase and begin another one of the same iteration."""
        phases = self._graph.phases
        start = self._next_tick()
        self.passes += name in _PASSES
        if phases:
            phases[-1].end = start - 1
        phases.append(Phase(name=name, step=self.step, start=start, end=start))
        self.index += 1

    def begin_pending(self) -> None:
        """Begin the pending phase now, if there is one."""
        name, self.pending = self.pending, None
        if name is not None:
            self._begin(name)

    @property
    def running(self) -> PhaseName:
        """The phase of the next operation."""
        return self.pending or self._graph.phases[-1].name

    @property
    def is_updating(self) -> bool:
        """Whether weights are updated: after a backward pass, until an optimizer has stepped.

        The steps of several optimizers are one update, as far as one of them is running.
        """
        if self.running is not PhaseName.OPTIMIZER:
            return False
        return self._steps_running > 0 or not (self.pending is None and self._has_stepped)

    @property
    def _has_stepped(self) -> bool:
        """Whether an optimizer has stepped in the last phase."""
        return self._graph.phases[-1].stepped is not None

    def mark(self, name: str) -> None:
        """Mark the current tick by name."""
        self._graph.marks.append(Mark(name=name, step=self.step, tick=self._next_tick()))

    def begin_iteration(self, step: int) -> None:
        """Begin an iteration with a forward phase."""
        self.begin_pending()
        self.step = step
        self._begin(PhaseName.FORWARD)

    def enter_forward(self) -> None:
        """Begin another forward phase of the same iteration, where the last pass has ended."""
        self._enter(PhaseName.FORWARD)

    def enter_evaluation(self) -> None:
        """Begin a phase of forward passes without gradients, there as well."""
        self._enter(PhaseName.EVALUATION)

    def _enter(self, name: PhaseName) -> None:
        self.pending = None
        phase = self._graph.phases[-1]
        is_updated = self._steps_running > 0 or self._has_stepped
        if phase.name is PhaseName.OPTIMIZER and not is_updated:
            phase.name = name
            self.passes += 1
        else:
            self._begin(name)

    def module_called(self, *, trains: bool) -> None:
        """Begin an evaluation, as of samples, with a module that runs after an optimizer's step.

        It ends with the next forward pass.
        """
        if trains and self.running is PhaseName.EVALUATION:
            self.enter_forward()
        elif not trains and self.running is PhaseName.OPTIMIZER and not self.is_updating:
            self.enter_evaluation()

    def enter_backward(self) -> None:
        """Begin a backward phase, or continue the last one if nothing ran since."""
        if self.pending is not None:
            self.pending = None
            self.passes += 1
            return
        phase = self._graph.phases[-1]
        if phase.name is PhaseName.OPTIMIZER:
            if phase.stepped is not None:
                self._split(phase.stepped)
            else:
                phase.name = PhaseName.FORWARD
        self._begin(PhaseName.BACKWARD)

    def was_forward(self, tick: int) -> None:
        """Note that what looked like an evaluation was a forward pass from `tick` on."""
        if self.running is PhaseName.EVALUATION:
            self._split(tick)

    def compile_whole(self) -> None:
        """Note that compiled autograd takes over the backward pass that has begun."""
        self._graph.phases[-1].is_compiled_whole = True

    def leave_backward(self) -> None:
        """Let the next operation begin the phase after a backward pass.

        Storages freed before that, such as the gradient of the loss, belong to the backward pass.
        """
        self.pending = PhaseName.OPTIMIZER

    def optimizer_steps(self) -> None:
        """Note that an optimizer's step begins."""
        self._steps_running += 1

    def optimizer_stepped(self) -> None:
        """Note that an optimizer's step has just ended; compiled, it may run kernels alone."""
        self._steps_running -= 1
        if self.pending is PhaseName.OPTIMIZER:
            self.begin_pending()
        self._graph.phases[-1].stepped = self._next_tick()

    def _split(self, tick: int) -> None:
        """Split the running phase: after `tick` it was the next forward pass."""
        graph = self._graph
        self.index += 1
        graph.phases[-1].end = tick
        graph.phases.append(Phase(PhaseName.FORWARD, self.step, tick + 1, tick + 1))
        for op in reversed(graph.ops):
            if op.tick <= tick:
                break
            op.phase = self.index
