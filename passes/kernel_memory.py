"""Memory that kernels allocate in addition to their outputs: workspaces and scratch.

The rules are in `passes/kernels/`, one family of operators a file, by the operator's name without
its overload; docs/kernel_memory.md lists them with their sources. If a rule needs strides that the
graph does not know, the operation is listed as an assumption.

The thread that runs an operation decides which cuBLAS handle it uses: autograd runs the backward
pass of CUDA tensors in a separate thread (torch/csrc/autograd/engine.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from graphmem.graph import Assumption, Op, OwnerKind, SparseOut, StepGraph
from graphmem.kernel_program import KernelMemory, Program, Scratch, thread_of
from graphmem.op_states import Determinism
from graphmem.pipeline import Annotations, Pass
from graphmem.runtime import Runtime

from .kernels import (
    attention,
    batch_norm,
    columns,
    convolution,
    copies,
    ctc,
    detection,
    deterministic,
    distance,
    elementwise,
    embedding,
    fft,
    filling,
    flash_attention_3,
    foreach,
    gemm,
    grouped,
    in_steps,
    indexing,
    losses,
    normalization,
    padding,
    pooling,
    recurrent,
    recurrent_cells,
    reduction,
    sampling,
    scatter,
    selection,
    softmax,
    solvers,
    sorting,
    sparse,
    splitting,
    topk,
    upsampling,
)
from .kernels.call import Call, Notes, Rule, UnknownOperandError, Workspaces
from .kernels.layout import numel

FAMILIES = (
    attention,
    batch_norm,
    columns,
    copies,
    convolution,
    ctc,
    detection,
    distance,
    elementwise,
    embedding,
    fft,
    flash_attention_3,
    foreach,
    gemm,
    grouped,
    in_steps,
    indexing,
    losses,
    normalization,
    padding,
    pooling,
    recurrent,
    recurrent_cells,
    reduction,
    sampling,
    scatter,
    selection,
    softmax,
    solvers,
    sorting,
    sparse,
    splitting,
    topk,
    upsampling,
)
RULES: Mapping[str, Rule] = dict(chain.from_iterable(each.RULES.items() for each in FAMILIES))


class KernelRules:
    """The rules, applied to one process's operations in execution order.

    The order matters: up to torch 2.14 a thread's first matrix product takes its workspace.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._workspaces = Workspaces()
        self._before = Workspaces()
        self._notes: Notes = {}

    def program_of(self, op: Op, thread: str) -> Program | None:
        """The program of an operation; None if it allocates only its outputs, in order.

        Args:
            op: the operation.
            thread: the thread that runs it; see `thread_of`.
        """
        self._before = self._workspaces.copy()
        name = op.target.rpartition(".")[0]
        rule = _rule_of(op, name)
        if rule is None or not (name in copies.RULES or _runs_on_device(op)):
            return None
        call = Call(op, self._runtime, thread, self._workspaces, self._notes)
        program = filling.filled(call, _program(rule, call))
        return None if program == tuple(call.outputs()) else program

    def take_blas_workspace(self, thread: str) -> Scratch | None:
        """Take the workspace of a thread's cuBLAS handle; None if there is none to take."""
        self._before = self._workspaces.copy()
        return next(gemm.workspace_of_handle(thread, self._workspaces, self._runtime), None)

    def know_workspaces(self, graph: StepGraph) -> None:
        """Register the workspaces that the program itself took before it needed them."""
        for storage in graph.storages:
            owner = None if storage.op is not None else storage.owned_as(OwnerKind.WORKSPACE)
            if owner is not None:
                self._workspaces.cublas.add(owner.name.removeprefix(gemm.BLAS_WORKSPACE))

    def untake_workspaces(self) -> None:
        """Undo the last operation's workspaces: it ran out of memory before it took them."""
        self._workspaces = self._before

    def forget_workspaces(self) -> None:
        """Forget all cuBLAS workspaces: the program freed them (`clearCublasWorkspaces`)."""
        self._workspaces = Workspaces()

    def assumptions(self) -> tuple[Assumption, ...]:
        """The operations so far for which no rule knew what a kernel allocates."""
        return tuple(
            Assumption(
                what, value, why, ops[0].source, times=len(ops), ops=tuple(op.index for op in ops)
            )
            for (what, value, why), ops in self._notes.items()
        )


def find_kernel_memory(
    graph: StepGraph, runtime: Runtime, annotations: Annotations
) -> KernelMemory:
    """Find the program of each operation that allocates more than its outputs in order."""
    rules = KernelRules(runtime)
    rules.know_workspaces(graph)
    programs: dict[int, Program] = {}
    for op in graph.ops:
        program = rules.program_of(op, thread_of(graph, op))
        if program is not None:
            programs[op.index] = program
    return KernelMemory(programs, rules.assumptions())


def _rule_of(op: Op, name: str) -> Rule | None:
    if op.determinism is not Determinism.NONE and name in deterministic.RULES:
        return deterministic.RULES[name]
    if op.determinism is Determinism.FILLED:
        return RULES.get(name, Call.outputs)
    return RULES.get(name)


def _program(rule: Rule, call: Call) -> Program:
    try:
        return tuple(rule(call))
    except UnknownOperandError:
        call.leave_out(
            f"scratch memory of {call.name}",
            "0 bytes",
            "it depends on the layout of an operand that the trace does not know",
        )
        return tuple(call.outputs())


def _runs_on_device(op: Op) -> bool:
    """Whether a result is on the graph's device, or an empty one was made from tensors there.

    An operation that only changes its arguments has no results.
    """
    if not op.outputs or any(out.storage is not None for out in op.outputs):
        return True
    if op.births and any(isinstance(out, SparseOut) for out in op.outputs):
        return True  # a sparse tensor has two storages and names neither
    made_of = [each for each in op.all_input_nodes if isinstance(each, Op)]
    return not any(map(numel, op.outputs)) and any(
        out.storage is not None for made in made_of for out in made.outputs
    )


KERNEL_MEMORY = Pass(provides="kernel_memory", run=find_kernel_memory, online=KernelRules)
