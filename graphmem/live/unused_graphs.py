"""Graphs that autograd builds and no backward pass runs, as of an evaluation without `no_grad`.

Counted is what autograd alone holds at the peak, for nodes that never ran. Not counted are nodes
that are alive when the program ends, which may have ended before their backward pass, and the
inputs of checkpoints, which no node needs to run for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from graphmem.graph import Owner, OwnerKind, StepGraph, Storage
from graphmem.simulate import Timeline
from graphmem.units import format_both

LEAST_SHARE = 0.1
"""Of the peak; less does not change it much."""


def unused_graphs(graph: StepGraph, timeline: Timeline) -> Iterator[str]:
    """The lines of the report."""
    moment, _ = timeline.peak()
    ran = {id(saved.owner) for node in graph.autograd_nodes for saved in node.saved}

    def is_for_nothing(owner: Owner) -> bool:
        is_saved = owner.kind is OwnerKind.SAVED_TENSOR and not owner.name
        return is_saved and owner.end is not None and id(owner) not in ran

    def is_unused(storage: Storage) -> bool:
        owners = storage.owners_at(moment.tick)
        return bool(owners) and all(is_for_nothing(each) for each in owners)

    unused = [each for each in timeline.alive_at(moment) if is_unused(each)]
    held = sum(timeline.block_bytes[each.id] for each in unused)
    if not held or held < LEAST_SHARE * moment.allocated:
        return
    at = Counter[str]()
    for each in unused:
        op = graph.op_of(each)
        if op is not None and op.source is not None:
            at[str(op.source)] += each.nbytes
    where = f" ({at.most_common(1)[0][0]})" if at else ""
    yield (
        f"{format_both(held)} of the peak is saved for a backward pass that never runs{where}; "
        "under torch.no_grad() it is freed at once"
    )
