"""The memory that checkpointing each module would save, and the operations it would recompute.

`torch.utils.checkpoint` keeps a module's inputs instead of what autograd saves within it, and runs
the module's forward pass again when the backward pass reaches it. Clauses, at the end of the
fullest forward pass (graphmem/forward_passes.py):
  (1) a storage is *dropped* when the module's operations allocated it and only autograd holds it,
      for operations of the module;
  (2) an input of the module is *newly kept* when nothing held it;
  (3) the module *saves* the dropped bytes minus the newly kept ones;
  (4) it *recomputes* all its operations, and allocates their bytes again;
  (5) lists and dictionaries of modules are left out: they are never called;
  (6) so is a module that has all parameters, such as the `module` of DistributedDataParallel: it is
      the model, and all that it drops comes back at once when the backward pass begins;
  (7) so is a module within another one that runs the same operations: both save the same.

Not covered: the peak itself, which may move into the recomputation: `graphmem whatif --checkpoint`
measures that by tracing with checkpointing on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from graphmem.annotations import FULLEST_FORWARD, SAVED_TENSORS
from graphmem.graph import Op, StepGraph, TensorOut
from graphmem.layer_ranges import fold, members
from graphmem.nodes import Node
from graphmem.pipeline import Annotations, Pass
from graphmem.runtime import Runtime
from graphmem.units import counted, format_bytes

from .saved_tensors import SavedTensors

_NEVER_CALLED = frozenset({"ModuleList", "ModuleDict"})


@dataclass(frozen=True, slots=True)
class CheckpointedModule:
    """The effect of checkpointing one module alone.

    Attributes:
        module: its qualified name.
        saves_bytes: see clause (3).
        recomputed_operations, recomputed_bytes: see clause (4).
    """

    module: str
    saves_bytes: int
    recomputed_operations: int
    recomputed_bytes: int


@dataclass(frozen=True)
class Checkpointing:
    """Every module that would save something, the largest saving first."""

    modules: tuple[CheckpointedModule, ...]

    def report_lines(self) -> Iterator[str]:
        """Yield a line for the module, or the equal layers, that would save most."""
        effects = {m.module: (m.saves_bytes, m.recomputed_operations) for m in self.modules}
        layers = [
            (saves * len(list(members(name))), name, saves, recomputed)
            for name, (saves, recomputed) in fold(effects).items()
        ]
        for total, name, saves, recomputed in sorted(layers, key=lambda each: -each[0])[:1]:
            apiece = " each" if total > saves else ""
            yield (
                f"checkpointing {name} would save {format_bytes(saves)}{apiece} at the end of the "
                f"forward pass and recompute {counted(recomputed, 'operation')}{apiece}"
            )


def find_checkpointing(
    graph: StepGraph, runtime: Runtime, annotations: Annotations
) -> Checkpointing:
    """Find what checkpointing each module alone would save."""
    forward = annotations.of(FULLEST_FORWARD)
    if forward is None:
        return Checkpointing(())
    inside = defaultdict[str, list[Op]](list)
    for op in graph.ops:
        if op.phase == forward:
            for module in _with_ancestors(op.module):
                inside[module].append(op)
    tick = graph.phases[forward].end
    saved: SavedTensors = annotations.of(SAVED_TENSORS)
    called = {
        module: ops
        for module, ops in inside.items()
        if graph.modules.get(module) not in _NEVER_CALLED and not _is_the_model(module, graph)
    }
    found = (
        _checkpointed(module, ops, graph, saved, tick)
        for module, ops in called.items()
        if all(len(called.get(outer, ())) != len(ops) for outer in _ancestors(module))
    )
    return Checkpointing(
        tuple(
            sorted(
                (each for each in found if each.saves_bytes > 0),
                key=lambda each: (-each.saves_bytes, each.module),
            )
        )
    )


def _is_the_model(module: str, graph: StepGraph) -> bool:
    """Clause (6)."""
    return bool(graph.parameters) and all(
        each.startswith(f"{module}.") for each in graph.parameters
    )


def _with_ancestors(module: str) -> Iterator[str]:
    while module:
        yield module
        module = module.rpartition(".")[0]


def _ancestors(module: str) -> Iterator[str]:
    return islice(_with_ancestors(module), 1, None)


def _checkpointed(
    module: str, ops: list[Op], graph: StepGraph, saved: SavedTensors, tick: int
) -> CheckpointedModule:
    indices = {op.index for op in ops}
    born = [storage for op in ops for storage in op.births]
    dropped = sum(
        graph.storages[storage].nbytes
        for storage in born
        if _is_held_for(indices, storage, graph, saved, tick)
    )
    kept = sum(
        graph.storages[storage].nbytes
        for storage in _inputs(ops, indices)
        if not graph.storages[storage].owners_at(tick)
    )
    return CheckpointedModule(
        module=module,
        saves_bytes=dropped - kept,
        recomputed_operations=len(ops),
        recomputed_bytes=sum(graph.storages[storage].nbytes for storage in born),
    )


def _is_held_for(
    ops: set[int], storage: int, graph: StepGraph, saved: SavedTensors, tick: int
) -> bool:
    """Whether only autograd holds a storage, and only for operations in `ops`."""
    owners = graph.storages[storage].owners_at(tick)
    holds = saved.holding(storage, tick)
    return 0 < len(owners) == len(holds) and all(each.op in ops for each in holds)


def _inputs(ops: list[Op], indices: set[int]) -> set[int]:
    """The storages of tensors that were made outside the module."""
    found = set()
    for op in ops:
        for node in op.all_input_nodes:
            tensor = _made_outside(node, indices)
            if tensor is not None and tensor.storage is not None:
                found.add(tensor.storage)
    return found


def _made_outside(node: Node, indices: set[int]) -> TensorOut | None:
    makers = [node] if isinstance(node, Op) else node.all_input_nodes
    is_inside = any(isinstance(each, Op) and each.index in indices for each in makers)
    return None if is_inside else node.tensor


CHECKPOINTING = Pass(
    provides="checkpointing", run=find_checkpointing, requires=("fullest_forward", "saved_tensors")
)
