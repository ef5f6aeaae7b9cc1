"""Autocast in a step: the policy of every operation, its casts, and what they cost.

Clauses:
  (1) outside an autocast region, and in the backward pass, no policy applies;
  (2) an operation on PyTorch's lists has the policy listed there (autocast_policies.py); but if
      that is lower precision and the result is float32, it is part of an operator that keeps the
      widest dtype: `mm` within `tensordot`;
  (3) an unlisted operation that takes a cast made for it is part of a listed operator, and has the
      policy that the cast reveals: float32 or lower precision;
  (4) a cast is *for* the operations that take it, directly or through views; it was reused where
      operations of several modules or lines take it;
  (5) the weight cache holds a cast of a weight from its birth until the outermost region exits
      [`autocast_increment_nesting`, aten/src/ATen/autocast_mode.cpp], and longer where autograd
      saved it;
  (6) *saved by autocast*: autograd holds two bytes an element where it would hold four [every
      tensor in lower precision, casts excepted], so the saving equals the bytes held;
  (7) *added by autocast*: the bytes of its casts, except those of weights.

Not covered: the effect of a region on the backward pass, and casts of the loss by `GradScaler`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from graphmem.annotations import FULLEST_FORWARD
from graphmem.graph import Op, OwnerKind, PhaseName, StepGraph, Storage
from graphmem.nodes import Node, Users
from graphmem.op_states import AutocastState
from graphmem.pipeline import Annotations, Pass
from graphmem.runtime import Runtime
from graphmem.units import format_bytes

from .autocast_policies import Policy, policy_of

_LOWER = ("float16", "bfloat16")
_VIEWS = (
    "aten.t.",
    "aten.view.",
    "aten.transpose.",
    "aten.expand.",
    "aten.permute.",
    "aten.alias.",
)


@dataclass(frozen=True, slots=True)
class Cast:
    """One cast that autocast inserted.

    Attributes:
        op: index of the cast.
        users: indices of the operations that it was made for (clause 4).
        dtype: the dtype it casts to.
        storage, nbytes: the storage it allocated.
        weight: the parameter, where the weight cache holds the cast.
        cached_until: the tick at which the cache lets go.
    """

    op: int
    users: tuple[int, ...]
    dtype: str
    storage: int
    nbytes: int
    weight: str | None
    cached_until: int | None


@dataclass(frozen=True)
class AutocastFindings:
    """Policies and casts; the sums are over the fullest forward phase (graphmem/forward_passes.py).

    If it has no casts, over the last forward phase that has.

    Attributes:
        policies: one for each operation, by its index.
        casts: in order.
        saved_bytes: see clause (6).
        cast_bytes: see clause (7).
        cached_weight_bytes: the most that the cache holds at once, of copies of weights.
    """

    policies: tuple[Policy, ...]
    casts: tuple[Cast, ...]
    saved_bytes: int
    cast_bytes: int
    cached_weight_bytes: int

    def report_lines(self) -> Iterator[str]:
        """Yield the report's lines; none without autocast."""
        if not self.casts:
            return
        yield f"autocast shrinks saved activations by {format_bytes(self.saved_bytes)}"
        yield f"its other casts allocate {format_bytes(self.cast_bytes)} in total"
        if self.cached_weight_bytes:  # none under `cache_enabled=False`, as in Lightning
            cached = format_bytes(self.cached_weight_bytes)
            yield f"its weight cache holds {cached} until the autocast block exits"


def find_autocast(graph: StepGraph, runtime: Runtime, annotations: Annotations) -> AutocastFindings:
    """Find the policy of every operation and every cast, and sum them up."""
    made = [op for op in graph.ops if _is_cast(op)]
    users = graph.nodes.users() if made else {}
    casts = tuple(_cast(op, graph, users) for op in made)
    phase = _phase_with(casts, graph, annotations.of(FULLEST_FORWARD))
    of_phase = [cast for cast in casts if graph.ops[cast.op].phase == phase]
    return AutocastFindings(
        policies=_policies(graph, casts),
        casts=casts,
        saved_bytes=_saved_bytes(graph, phase, {cast.storage for cast in casts}),
        cast_bytes=sum(cast.nbytes for cast in of_phase if cast.weight is None),
        cached_weight_bytes=_most_cached(casts, graph),
    )


def _phase_with(casts: Iterable[Cast], graph: StepGraph, fullest: int | None) -> int | None:
    """The fullest forward phase; without a cast there, the last one, or phase, that has some."""
    phases = {graph.ops[cast.op].phase for cast in casts}
    if fullest in phases:
        return fullest
    forwards = {phase for phase in phases if graph.phases[phase].name is PhaseName.FORWARD}
    return max(forwards or phases, default=None)


def _most_cached(casts: Iterable[Cast], graph: StepGraph) -> int:
    """The most bytes at once, each cast from its birth until the cache lets go (clause 5)."""
    changes = []
    for cast in casts:
        if cast.weight is None:
            continue
        changes.append((graph.storages[cast.storage].birth, cast.nbytes))
        if cast.cached_until is not None:
            changes.append((cast.cached_until, -cast.nbytes))
    return max(accumulate(nbytes for _, nbytes in sorted(changes)), default=0)


def _is_cast(op: Op) -> bool:
    return op.autocast is AutocastState.CAST and bool(op.births)


def _cast(op: Op, graph: StepGraph, users: Users) -> Cast:
    storage = graph.storages[op.births[0]]
    cached = storage.owned_as(OwnerKind.AUTOCAST_CACHE)
    return Cast(
        op=op.index,
        users=tuple(dict.fromkeys(user.index for user in _users(op, graph, users))),
        dtype=storage.dtype,
        storage=storage.id,
        nbytes=storage.nbytes,
        weight=None if cached is None else cached.name,
        cached_until=None if cached is None else cached.end,
    )


def _users(node: Node, graph: StepGraph, users: Users) -> Iterator[Op]:
    """The forward operations that take a tensor or a view of it."""
    for user in users.get(node, ()):
        op = user if isinstance(user, Op) else None
        if op is not None and graph.phases[op.phase].name is PhaseName.BACKWARD:
            continue
        if op is None or op.target.startswith(_VIEWS):
            yield from _users(user, graph, users)
        else:
            yield op


def _policies(graph: StepGraph, casts: Iterable[Cast]) -> tuple[Policy, ...]:
    shown = {
        user: Policy.LOWER_PRECISION if cast.dtype in _LOWER else Policy.FP32
        for cast in casts
        for user in cast.users
    }
    return tuple(_policy(op, graph, shown.get(op.index, Policy.NONE)) for op in graph.ops)


def _policy(op: Op, graph: StepGraph, shown: Policy) -> Policy:
    in_backward = graph.phases[op.phase].name is PhaseName.BACKWARD
    if op.autocast is AutocastState.OFF or in_backward:
        return Policy.NONE
    listed = policy_of(op.target)
    if listed is Policy.LOWER_PRECISION and op.outputs[0].dtype == "float32":
        return Policy.WIDEST
    return listed or shown


def _saved_bytes(graph: StepGraph, phase: int | None, casts: set[int]) -> int:
    if phase is None or graph.phases[phase].name is not PhaseName.FORWARD:
        return 0
    end = graph.phases[phase].end
    return sum(
        storage.nbytes
        for storage in graph.storages
        if storage.id not in casts and _is_saved_in_lower_precision(storage, end, graph)
    )


def _is_saved_in_lower_precision(storage: Storage, tick: int, graph: StepGraph) -> bool:
    op = graph.op_of(storage)
    if op is None or op.autocast is AutocastState.OFF or storage.dtype not in _LOWER:
        return False
    return any(owner.kind is OwnerKind.SAVED_TENSOR for owner in storage.owners_at(tick))


AUTOCAST = Pass(provides="autocast", run=find_autocast, requires=("fullest_forward",))
