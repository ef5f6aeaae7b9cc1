"""Explain in words why a storage is alive."""

from __future__ import annotations

from collections.abc import Sequence

from graphmem.graph import COMPILED_NODE, Owner, OwnerKind, Phase, PhaseName, StepGraph, Storage

_IDENTITIES = {
    OwnerKind.PARAMETER: "the parameter {name}",
    OwnerKind.BUFFER: "the buffer {name}",
    OwnerKind.GRADIENT: "{name}, the gradient that the optimizer reads",
    OwnerKind.OPTIMIZER_STATE: "{name}, the optimizer's state",
    OwnerKind.INPUT: "{name}",
    OwnerKind.COMMUNICATION: "{name}",
}


def reason_for(storage: Storage, tick: int, graph: StepGraph, saved_by: Sequence[str] = ()) -> str:
    """One sentence, without a full stop, that names every owner holding a storage at `tick`.

    Args:
        storage: the storage.
        tick: the tick.
        graph: its step graph.
        saved_by: the passes' reasons why autograd holds it; by default the names of its owners.
    """
    workspace = storage.owned_as(OwnerKind.WORKSPACE)
    if workspace is not None:
        return _workspace(storage, workspace, graph)
    owners = storage.owners_at(tick)
    parts = [part for part in (_identity(owner, storage, graph) for owner in owners) if part]
    compiled = storage.owned_as(OwnerKind.COMPILED)
    if compiled is not None and not parts:
        parts.append(compiled.name)
    cast_of = storage.owned_as(OwnerKind.AUTOCAST_CACHE)
    if cast_of is not None:
        held = " held in autocast's cache" if cast_of.holds_at(tick) else ""
        parts.append(f"the {storage.dtype} copy of {cast_of.name} that autocast made{held}")
    saved = [owner for owner in owners if owner.kind is OwnerKind.SAVED_TENSOR]
    if compiled is not None and any(each.name.startswith(COMPILED_NODE) for each in storage.owners):
        parts.append(_saved_by_compiled(saved, tick, storage))
    elif saved:
        parts.append(_saved(saved_by or [owner.name for owner in saved]))
    variables = [owner for owner in owners if owner.kind is OwnerKind.VARIABLE]
    named = [owner for owner in variables if owner.name]
    if named:
        parts.append(f"held by the variable {_variable(named[0])}")
    if not parts:
        parts.append(_of_model(storage, graph) or _in_use(storage, tick, graph))
    return "; ".join(parts)


def _workspace(storage: Storage, owner: Owner, graph: StepGraph) -> str:
    op = graph.op_of(storage)
    if owner.end is None or op is None:
        return f"{owner.name}, kept until the process ends"
    return f"scratch of {op.target.removesuffix('.default')}: {owner.name}"


def _of_model(storage: Storage, graph: StepGraph) -> str | None:
    """A parameter or buffer before, or after, its model has been seen to hold it."""
    for kind in (OwnerKind.PARAMETER, OwnerKind.BUFFER):
        owner = storage.owned_as(kind)
        if owner is not None:
            return _identity(owner, storage, graph)
    return None


def _identity(owner: Owner, storage: Storage, graph: StepGraph) -> str | None:
    text = _IDENTITIES.get(owner.kind)
    if text is None:
        return None
    whole = text.format(name=owner.name)
    if owner.kind is OwnerKind.PARAMETER:
        whole += _packing(owner.name, storage, graph)
    if owner.kind not in (OwnerKind.PARAMETER, OwnerKind.BUFFER):
        return whole
    parameter, part = _part(owner.name, graph)
    return f"{part} of the parameter {parameter}" if part else whole


def _packing(name: str, storage: Storage, graph: StepGraph) -> str:
    """For an integer parameter, the class of the layer that packs it."""
    is_packed = name in graph.parameters and "int" in storage.dtype
    layer = graph.modules.get(name.rpartition(".")[0])
    return f", packed by {layer}" if is_packed and layer else ""


def _part(name: str, graph: StepGraph) -> tuple[str, str]:
    """The parameter that a name is a part of, and the part; "" if it is not a part."""
    parameter, part = name, ""
    while parameter and parameter not in graph.parameters:
        parameter, _, last = parameter.rpartition(".")
        part = f"{last}.{part}" if part else last
    return (parameter, part) if parameter else (name, "")


def _saved(saved_by: Sequence[str]) -> str:
    reasons = list(dict.fromkeys(each for each in saved_by if each))
    if not reasons:
        return "saved for the backward pass"
    return f"saved for the backward pass by {' and '.join(reasons)}"


def _saved_by_compiled(saved: Sequence[Owner], tick: int, storage: Storage) -> str:
    if saved:
        return (
            "saved for the compiled backward pass: the partitioner found it cheaper to keep than "
            "to recompute"
        )
    if all(tick < owner.start for owner in storage.owners if owner.kind is OwnerKind.SAVED_TENSOR):
        return "will be saved for the compiled backward pass"
    return "saved for the compiled backward pass, which still reads it"


def _variable(owner: Owner) -> str:
    return owner.name if owner.source is None else f"{owner.name} ({owner.source})"


def _in_use(storage: Storage, tick: int, graph: StepGraph) -> str:
    """Describe a storage that only an unnamed Python reference holds, by its origin."""
    op = graph.op_of(storage)
    phase = next((each for each in graph.phases if each.start <= tick <= each.end), None)
    if op is None or phase is None:
        return "held by a variable"
    name = op.target.removesuffix(".default")
    if op.autograd_node and graph.phases[op.phase].name is PhaseName.BACKWARD:
        return f"a gradient that {op.autograd_node} computes with {name}"
    if phase.name is PhaseName.OPTIMIZER and _is_within(storage, phase):
        return f"a temporary result of {name} in the optimizer"
    return f"a result of {name} that a variable or an argument still holds"


def _is_within(storage: Storage, phase: Phase) -> bool:
    """Whether a storage was made for the update, not after it, like the next batch."""
    stepped = phase.end if phase.stepped is None else phase.stepped
    return phase.start <= storage.birth <= stepped
