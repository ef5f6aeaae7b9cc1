"""Kernel programs: what a kernel allocates while one operation runs, in order.

A program is a sequence of steps: take scratch memory, allocate outputs, free scratch memory.
Scratch that is taken and never freed is a workspace, which lasts until the process ends. The pass
`kernel_memory` writes programs, the simulator replays them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from graphmem.graph import Assumption, Op, Owner, OwnerKind, PhaseName, StepGraph, Storage

MAIN_THREAD = "the main thread"
CUBLAS_WORKSPACE = "cuBLAS workspace"
CUBLASLT_WORKSPACE = "cublasLt workspace"
CONVOLUTION_WORKSPACE = "workspace of cuDNN's convolution"
"""Scratch that cuDNN can do without: it skips plans whose workspace cannot be allocated."""


@dataclass(frozen=True, slots=True, eq=False)
class Scratch:
    """An allocation of a kernel that is not an output.

    Attributes:
        what: its purpose, such as "staging buffer of a column reduction".
        nbytes: requested bytes; nothing is allocated for 0.
    """

    what: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Take:
    """Allocate scratch memory."""

    scratch: Scratch


@dataclass(frozen=True, slots=True)
class Free:
    """Free scratch memory."""

    scratch: Scratch


@dataclass(frozen=True, slots=True)
class Output:
    """Allocate a result of the operation.

    Attributes:
        birth: position in `Op.births`.
    """

    birth: int


Step = Take | Free | Output
Program = tuple[Step, ...]


@dataclass(frozen=True)
class KernelMemory:
    """The annotation `kernel_memory`.

    Attributes:
        programs: by the operation's index; one without a program allocates only its outputs.
        assumptions: operations for which the rules do not know what a kernel allocates.
    """

    programs: Mapping[int, Program] = field(default_factory=dict)
    assumptions: tuple[Assumption, ...] = ()


class OnlineRules(Protocol):
    """The rules of the pass `kernel_memory`, applied while the program runs."""

    def program_of(self, op: Op, thread: str) -> Program | None:
        """The program of the process's next operation; None if it allocates only its outputs."""

    def know_workspaces(self, graph: StepGraph) -> None:
        """Register the workspaces that the program itself took before it needed them."""

    def take_blas_workspace(self, thread: str) -> Scratch | None:
        """Take the workspace of a thread's cuBLAS handle; None if there is none to take."""

    def untake_workspaces(self) -> None:
        """Undo the last operation's workspaces: it ran out of memory before it took them."""

    def forget_workspaces(self) -> None:
        """Forget all cuBLAS workspaces: the program freed them."""


def outputs_of(op: Op) -> Iterator[Output]:
    """The steps that allocate an operation's results, in the order of the trace."""
    return map(Output, range(len(op.births)))


def storages_of(
    op: Op, program: Program, graph: StepGraph, numbers: Iterator[int]
) -> dict[Scratch, Storage]:
    """A storage for each scratch allocation of one operation, with ids from `numbers`."""
    freed = {step.scratch for step in program if isinstance(step, Free)}
    return {
        step.scratch: _storage(next(numbers), step.scratch, op, graph, step.scratch in freed)
        for step in program
        if isinstance(step, Take) and step.scratch.nbytes
    }


def tick_of(op: Op, graph: StepGraph) -> int:
    """The tick at which an operation's program runs: that of its last output."""
    return max((graph.storages[born].birth for born in op.births), default=op.tick)


def thread_of(graph: StepGraph, op: Op) -> str:
    """The name of the thread that runs an operation."""
    phase = graph.phases[op.phase]
    is_engines = phase.name is PhaseName.BACKWARD and not phase.is_compiled_whole
    return "the autograd thread" if is_engines else MAIN_THREAD


def _storage(number: int, scratch: Scratch, op: Op, graph: StepGraph, is_freed: bool) -> Storage:
    tick = tick_of(op, graph)
    owner = Owner(OwnerKind.WORKSPACE, scratch.what, tick, tick + 1 if is_freed else None)
    return Storage(
        id=number,
        nbytes=scratch.nbytes,
        birth=tick,
        op=op.index,
        shape=_flat(scratch.nbytes),
        dtype="uint8",
        device=graph.device,
        owners=[owner],
    )


@cache
def _flat(nbytes: int) -> tuple[int]:
    """The shape of scratch memory; equal ones are one tuple, since layers are alike."""
    return (nbytes,)
