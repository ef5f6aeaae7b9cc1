"""Reference models: nobody trains them, and a forward pass reads what they compute.

A teacher's predictions, the latents of an autoencoder and the embeddings of a text encoder are
computed without gradients before the trained model runs. When that happens nobody knows yet whether
it is an evaluation. It is a part of the forward pass that follows if

(1) no optimizer trains any model that was called, and
(2) an operation of that pass reads what one of the models has computed, or what was computed from
    that outside of them. A batch that the program has loaded meanwhile does not count.

So the evaluation of averaged weights stays one, as do samples drawn from the model that trains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from graphmem.graph import Op, OwnerKind, Phase, PhaseName, StepGraph


class ReferenceModels:
    """Finds the calls of reference models among evaluations."""

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        self._trained: set[int] = set()

    @property
    def has_trained(self) -> bool:
        """Whether a model that is trained was called in the running phase."""
        return len(self._graph.phases) - 1 in self._trained

    def called(self, *, is_trained: bool) -> None:
        """Note that a model is called without gradients."""
        if is_trained:
            self._trained.add(len(self._graph.phases) - 1)

    def look(self) -> None:
        """Find the evaluations of models that train in a trace that has ended."""
        phases, storages = self._graph.phases, self._graph.storages
        gradients = (storage.owned_as(OwnerKind.GRADIENT) for storage in storages)
        trained = {each.name.removesuffix(".grad") for each in gradients if each is not None}
        for op in self._graph.ops:
            if phases[op.phase].name is PhaseName.EVALUATION and op.phase not in self._trained:
                read = (storages[each] for each in _read_by(op) if each is not None)
                owners = (storage.owned_as(OwnerKind.PARAMETER) for storage in read)
                if any(owner is not None and owner.name in trained for owner in owners):
                    self._trained.add(op.phase)

    def finish(self) -> None:
        """Let forward passes begin with what they read (clauses 1 and 2)."""
        phases = self._graph.phases
        before = {
            index
            for index, (phase, following) in enumerate(pairwise(phases))
            if phase.name is PhaseName.EVALUATION
            and following.name is PhaseName.FORWARD
            and index not in self._trained
        }
        if before:
            of_phases: defaultdict[int, list[Op]] = defaultdict(list)
            for op in self._graph.ops:
                of_phases[op.phase].append(op)
            self._join({n for n in before if _reads(of_phases[n + 1], of_phases[n])})

    def _join(self, before: set[int]) -> None:
        """Make phases, by their indices, one with the forward passes that follow them."""
        kept: list[Phase] = []
        moved = []
        for index, phase in enumerate(self._graph.phases):
            if index - 1 in before:
                phase.start = kept.pop().start
            kept.append(phase)
            moved.append(len(kept) - 1)
        self._graph.phases[:] = kept
        for op in self._graph.ops:
            op.phase = moved[op.phase]


def _reads(forward: Sequence[Op], evaluation: Sequence[Op]) -> bool:
    """Whether a forward pass reads what models have computed in an evaluation."""
    computed: set[int] = set()
    for op in evaluation:
        if not computed.isdisjoint(_read_by(op)):
            computed.update(each.storage for each in op.outputs if each.storage is not None)
        elif op.module:
            computed.update(op.births)
    return any(not computed.isdisjoint(_read_by(op)) for op in forward)


def _read_by(op: Op) -> set[int | None]:
    tensors = (node.tensor for node in op.all_input_nodes)
    return {each.storage for each in tensors if each is not None and each.storage is not None}
