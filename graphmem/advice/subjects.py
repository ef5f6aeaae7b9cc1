"""Resolve a name for `graphmem explain`: a storage, a module, a source line or an operator.

Clauses, the first that matches:
  (1) `s12`: the storage with that number in `graphmem graph`;
  (2) `h.0.mlp`: the module, with those inside it; a parameter belongs to its module, and so do its
      gradient and the optimizer's state for it;
  (3) `h.0.mlp.weight`: the parameter or buffer, with its gradient and the optimizer's state for it;
  (4) `model.py:41`, or the end of a path: the operations of that line;
  (5) `gelu` or `aten.gelu`: the operations of that name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from graphmem.annotations import SAVED_TENSORS
from graphmem.errors import InputError, did_you_mean
from graphmem.graph import Op, Owner, OwnerKind, StepGraph, Storage
from graphmem.report.build import NAMED_AFTER_PARAMETERS
from graphmem.wording import fields_in_words, listed

if TYPE_CHECKING:
    from graphmem.analysis import Analysis

_HINT = (
    "name a storage as s12, a module as h.0.mlp, a parameter as h.0.mlp.weight, a line as "
    "model.py:41, or an operator as gelu"
)
_LETS_GO = {
    OwnerKind.VARIABLE: "the variable goes out of scope or is deleted",
    OwnerKind.PARAMETER: "the model is deleted",
    OwnerKind.BUFFER: "the model is deleted",
    OwnerKind.GRADIENT: "zero_grad(set_to_none=True)",
    OwnerKind.OPTIMIZER_STATE: "the optimizer is deleted",
    OwnerKind.AUTOCAST_CACHE: "the outermost autocast region exits",
    OwnerKind.INPUT: "the loop moves the next inputs",
    OwnerKind.WORKSPACE: "the process ends",
}


class UnknownSubjectError(InputError):
    """`explain` is asked about something that the trace does not have."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        hint = did_you_mean(name, known, _HINT)
        super().__init__(f"nothing in the trace is called {name!r}", hint=hint)


@dataclass(frozen=True)
class Holding:
    """An owner of a storage: its kind and name, its lifetime, its rule, and what would end it."""

    kind: str
    name: str
    first_op: int | None
    last_op: int | None
    rule: str
    lets_go: str


@dataclass(frozen=True)
class Explained:
    """A storage, and everything that holds it."""

    storage: Storage
    op: Op | None
    at_peak: bool
    holdings: tuple[Holding, ...]


def explain_subject(analysis: Analysis, name: str) -> list[Explained]:
    """What the named subject allocates in one iteration: what the peak has, then the largest.

    It is that of the peak; if the subject does not run there, its last one. A module also has the
    parameters, gradients and optimizer states that are alive meanwhile.

    Raises:
        InputError: nothing in the trace has this name.
    """
    graph = analysis.graph
    tick = analysis.timeline.peak()[0].tick
    found = _storages_named(graph, name, _step_at(graph, tick))
    if found is None:
        raise UnknownSubjectError(name, _names(graph))
    ops = [op.tick for op in graph.ops]
    saved = analysis.annotations.of(SAVED_TENSORS)
    explained = [
        Explained(
            storage=storage,
            op=graph.op_of(storage),
            at_peak=bool(storage.owners_at(tick)),
            holdings=tuple(_together(_holdings(storage, saved, ops))),
        )
        for storage in found
    ]
    return sorted(
        explained, key=lambda each: (not each.at_peak, -each.storage.nbytes, each.storage.id)
    )


def _names(graph: StepGraph) -> set[str]:
    """The modules, parameters, lines and operators of a trace."""
    lines = {str(op.source) for op in graph.ops if op.source}
    operators = {op.target.split(".")[1] for op in graph.ops}
    return {*graph.modules, *graph.parameters, *graph.tied, *lines, *operators}


def _step_at(graph: StepGraph, tick: int) -> int:
    return next((each.step for each in graph.phases if each.start <= tick <= each.end), -1)


def _storages_named(graph: StepGraph, name: str, step: int) -> list[Storage] | None:
    match = re.fullmatch(r"s(\d+)", name)
    if match is not None and int(match[1]) < len(graph.storages):
        return [graph.storages[int(match[1])]]
    if name in graph.modules:
        return _of_module(graph, name, step)
    parameter = list(_lasting(graph, graph.tied.get(name, name), step))
    if parameter:
        return parameter
    ops = [op for op in graph.ops if str(op.source or "").endswith(name) and ":" in name]
    bare = name.removeprefix("aten.")
    ops = ops or [
        op for op in graph.ops if bare in (op.target.split(".", 1)[-1], op.target.split(".")[1])
    ]
    return _made_by(graph, ops, _step_of(graph, ops, step)) if ops else None


def _step_of(graph: StepGraph, ops: Sequence[Op], step: int) -> int:
    """That iteration if some of the operations run there, else the last in which they do."""
    steps = {graph.phases[op.phase].step for op in ops}
    return step if step in steps else max(steps, default=step)


def _made_by(graph: StepGraph, ops: Sequence[Op], step: int) -> list[Storage]:
    """The storages that the operations make in an iteration."""
    return [
        graph.storages[born]
        for op in ops
        if graph.phases[op.phase].step == step
        for born in op.births
        if graph.storages[born].device == graph.device
    ]


def _of_module(graph: StepGraph, name: str, step: int) -> list[Storage]:
    ops = [op for op in graph.ops if _is_within(op.module, name)]
    step = _step_of(graph, ops, step)
    found = [*_made_by(graph, ops, step), *_lasting(graph, name, step)]
    return list({storage.id: storage for storage in found}.values())


def _is_within(name: str, outer: str) -> bool:
    return not outer or f"{name}.".startswith(f"{outer}.")


def _lasting(graph: StepGraph, name: str, step: int) -> Iterator[Storage]:
    """What is named after a parameter, or after those of a module, and is alive in an iteration."""
    phases = graph.phases_of(step)
    start, end = (phases[0].start, phases[-1].end) if phases else (0, math.inf)
    for storage in graph.storages:
        owners = (each for each in storage.owners if each.kind in NAMED_AFTER_PARAMETERS)
        if storage.birth <= end and any(_is_within(each.name, name) for each in owners):
            death = storage.death
            if death is None or death > start:
                yield storage


def _holdings(storage: Storage, saved_tensors: Any, ops: Sequence[int]) -> Iterator[Holding]:
    from bisect import bisect_left, bisect_right

    by_owner = {id(saved.owner): saved for saved in saved_tensors.by_storage.get(storage.id, ())}
    for owner in storage.owners:
        first = bisect_right(ops, owner.start) - 1
        is_label = owner.end == owner.start  # found after the fact (`Recorder.label`)
        end = storage.death if is_label else owner.end
        last = None if end is None else bisect_left(ops, end) - 1
        saved = by_owner.get(id(owner))
        yield Holding(
            kind=owner.kind,
            name=owner.name,
            first_op=first if first >= 0 else None,
            last_op=last,
            rule=_rule(owner) if saved is None else str(saved),
            lets_go=_lets_go(owner, saved),
        )


def _together(holdings: Iterable[Holding]) -> Iterator[Holding]:
    """Fields that one node saves for the same gradients are one holding."""
    for _, alike in groupby(holdings, lambda each: (each.first_op, each.last_op, each.lets_go)):
        first, *others = alike
        purpose = first.rule.removeprefix(first.name)
        if first.kind == OwnerKind.SAVED_TENSOR and all(
            each.rule == each.name + purpose for each in others
        ):
            names = listed(fields_in_words(each.name for each in (first, *others)))
            yield replace(first, name=names, rule=names + purpose)
        else:
            yield from (first, *others)


def _rule(owner: Owner) -> str:
    if owner.kind is OwnerKind.VARIABLE:
        return f"a Python reference{f', {owner.name}' if owner.name else ''}"
    return f"{owner.kind.replace('_', ' ')} {owner.name}"


def _lets_go(owner: Owner, saved: Any) -> str:
    if owner.kind is not OwnerKind.SAVED_TENSOR:
        return _LETS_GO[owner.kind]
    if saved is None:
        return "its autograd node runs, or the graph is dropped"
    return (
        f"{saved.name} runs; it would not be saved if nothing needed {saved.gradients} "
        "(freeze), or within a checkpointed module"
    )
