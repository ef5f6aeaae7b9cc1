"""Mixtures of experts: which parameters are divided, and what is sent to the experts and back.

Clauses:
  (1) *experts* are the children of a list of that name (`….experts.3`), or are stacked along the
      first axis of a parameter of a module of that name, if a batched product runs over that axis;
  (2) storages that the experts' operations read and that others made in the same pass are
      *dispatched* to them; storages that they make and others read are *combined*. In the backward
      pass the same holds for the gradients, in the opposite direction (Megatron-LM,
      `MoEAlltoAllTokenDispatcher`, megatron/core/transformer/moe/token_dispatcher.py; DeepSpeed,
      `_AllToAll`, deepspeed/moe/sharded_moe.py);
  (3) routing is balanced: a rank receives as many rows as it sends, tokens x top-k. So does the
      trace if the number of rows that an expert picks is given.

Not covered: capacity factors and dropped tokens, unless the model's code implements them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from graphmem.graph import Op, OwnerKind, PhaseName, StepGraph, Storage

_NAMED_AFTER = frozenset({OwnerKind.PARAMETER, OwnerKind.GRADIENT, OwnerKind.OPTIMIZER_STATE})
MODEL_KINDS = frozenset(
    {
        OwnerKind.PARAMETER,
        OwnerKind.BUFFER,
        OwnerKind.GRADIENT,
        OwnerKind.OPTIMIZER_STATE,
        OwnerKind.AUTOCAST_CACHE,
    }
)
_NUMBERED = re.compile(r"^(.*\bexperts)\.(\d+)(?:\.|$)")
_WITHIN = re.compile(r"^(.*\bexperts)(?:\.|$)")
_STACKED_DIMENSIONS = 3


@dataclass(frozen=True)
class Exchange:
    """The data sent to the experts of one layer and back, in one pass of the trace.

    Attributes:
        first, last: the first and last of the experts' operations.
        dispatched, combined: storages.
    """

    first: int
    last: int
    dispatched: tuple[int, ...]
    combined: tuple[int, ...]


def is_of_model(storage: Storage) -> bool:
    """Whether a storage belongs to the model, not to the data that run through it."""
    return any(owner.kind in MODEL_KINDS for owner in storage.owners)


def expert_of(module: str) -> tuple[str, int] | None:
    """The list of experts that a module belongs to, and its expert's number."""
    match = _NUMBERED.match(module)
    return None if match is None else (match[1], int(match[2]))


def count_experts(graph: StepGraph) -> dict[str, int]:
    """Count the experts of each list."""
    found: dict[str, int] = {}
    for module in graph.modules:
        expert = expert_of(module)
        if expert is not None:
            found[expert[0]] = max(found.get(expert[0], 0), expert[1] + 1)
    return found


def may_be_stacked(parameter: str, shape: tuple[int, ...]) -> bool:
    """Whether a parameter's name and shape suggest stacked experts."""
    is_expert = _WITHIN.match(parameter.rpartition(".")[0]) is not None
    return is_expert and expert_of(parameter) is None and len(shape) >= _STACKED_DIMENSIONS


def find_exchanges(graph: StepGraph, reads: Mapping[int, tuple[int, ...]]) -> Iterator[Exchange]:
    """Find every exchange of the trace (clause 2).

    Args:
        graph: the trace.
        reads: by operation of the forward and backward passes, the storages that it reads.
    """
    inside: dict[tuple[int, str], list[Op]] = {}
    readers: dict[int, list[Op]] = {}
    for op in graph.ops:
        for number in reads.get(op.index, ()):
            readers.setdefault(number, []).append(op)
        match = _WITHIN.match(op.module)
        if match and graph.phases[op.phase].name in (PhaseName.FORWARD, PhaseName.BACKWARD):
            inside.setdefault((op.phase, match[1]), []).append(op)
    for (phase, _), ops in inside.items():
        own = {op.index for op in ops}
        made = [number for op in ops for number in op.births]
        read = dict.fromkeys(number for op in ops for number in reads.get(op.index, ()))
        dispatched = [n for n in read if _is_made_by_others(graph, n, phase, own)]
        combined = [
            n
            for n in made
            if any(op.phase == phase and op.index not in own for op in readers.get(n, ()))
        ]
        yield Exchange(
            ops[0].index,
            ops[-1].index,
            tuple(_data(graph, dispatched)),
            tuple(_data(graph, combined)),
        )


def _is_made_by_others(graph: StepGraph, number: int, phase: int, own: set[int]) -> bool:
    op = graph.op_of(graph.storages[number])
    return op is not None and op.phase == phase and op.index not in own


def _data(graph: StepGraph, numbers: Iterable[int]) -> Iterator[int]:
    return (number for number in numbers if not is_of_model(graph.storages[number]))


def parameter_of(storage: Storage) -> str | None:
    """The parameter that a storage is, or whose gradient or optimizer state it is."""
    for owner in storage.owners:
        if owner.kind in _NAMED_AFTER:
            is_itself = owner.kind is OwnerKind.PARAMETER
            return owner.name if is_itself else owner.name.rpartition(".")[0]
    return None
