"""The memory that kernels keep for themselves: cuBLAS workspaces.

A workspace is allocated
  (1) by the first operation of a thread that asks for a cuBLAS handle,
  (2) after that operation's own outputs,
  (3) once for each thread, and autograd runs the backward pass of CUDA tensors in a thread of its
      own, so there are two in a training loop,
and is never freed (aten/src/ATen/cuda/CublasHandlePool.cpp; ckpt11 and mlp01 of the recordings in
shared/recordings show position and count).

Not covered yet: cublasLt's own workspace before torch 2.12, cuDNN, and temporary scratch memory.
"""

from __future__ import annotations

from graphmem.graph import Op, Owner, OwnerKind, PhaseName, StepGraph, Storage
from graphmem.pipeline import Annotations, Pass
from graphmem.runtime import Runtime

_USES_CUBLAS = frozenset(
    f"aten.{name}"
    for name in (
        "mm.default",
        "addmm.default",
        "_addmm_activation.default",
        "bmm.default",
        "baddbmm.default",
        "addbmm.default",
        "mv.default",
        "addmv.default",
        "dot.default",
        "vdot.default",
        "_scaled_mm.default",
    )
)


def find_workspaces(
    graph: StepGraph, runtime: Runtime, annotations: Annotations
) -> tuple[Storage, ...]:
    """The workspaces as storages that no operation returned, numbered after the graph's own."""
    nbytes = runtime.cublas_workspace_bytes
    first: dict[str, Op] = {}
    for op in graph.ops:
        if op.target in _USES_CUBLAS and any(out.storage is not None for out in op.outputs):
            first.setdefault(_thread_of(graph, op), op)
    if not nbytes:
        return ()
    return tuple(
        _workspace(len(graph.storages) + i, nbytes, thread, op, graph)
        for i, (thread, op) in enumerate(first.items())
    )


def _thread_of(graph: StepGraph, op: Op) -> str:
    backward = graph.phases[op.phase].name is PhaseName.BACKWARD
    return "the autograd thread" if backward else "the main thread"


def _workspace(id: int, nbytes: int, thread: str, op: Op, graph: StepGraph) -> Storage:
    birth = max((graph.storages[born].birth for born in op.births), default=op.tick)
    return Storage(
        id=id,
        nbytes=nbytes,
        birth=birth,
        op=op.index,
        shape=(nbytes,),
        dtype="uint8",
        device=graph.device,
        owners=[Owner(OwnerKind.WORKSPACE, f"cuBLAS workspace of {thread}", birth)],
    )


WORKSPACES = Pass(provides="workspaces", run=find_workspaces)
