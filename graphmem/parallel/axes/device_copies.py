"""Device storages of parameters and buffers that were created on the host."""

from __future__ import annotations

from graphmem.graph import PhaseName, StepGraph
from graphmem.nodes import Node


def find_device_copies(graph: StepGraph) -> dict[Node, int]:
    """For each node that made a tensor, the tensor's storage on the device.

    Parameters and buffers keep their identity, and thus the node that made them, when
    `model.to(device)` gives them a new storage.
    """
    copies: dict[Node, int] = {}
    chains: list[tuple[Node, int]] = []
    for op in graph.ops:
        if graph.phases[op.phase].name is PhaseName.SETUP and op.outputs:
            storage = op.outputs[0].storage
            if storage is not None and op.args and isinstance(op.args[0], Node):
                chains.append((op.args[0], storage))
    while chains:
        for node, storage in chains:
            copies.setdefault(node, storage)
        chains = [
            (node.args[0], storage)
            for node, storage in chains
            if node.args and isinstance(node.args[0], Node)
        ]
    return copies
