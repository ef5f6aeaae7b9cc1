"""What a kernel allocates while one operation runs, in order: its program.

A program is a sequence of steps: scratch memory is taken, outputs are allocated, scratch memory is
freed. Scratch that is taken and never freed is a workspace, which lasts until the process ends.
The pass `kernel_memory` writes programs, the simulator replays them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from graphmem.graph import Assumption, Op, Owner, OwnerKind, StepGraph, Storage


@dataclass(frozen=True, slots=True, eq=False)
class Scratch:
    """One allocation of a kernel besides its outputs.

    Attributes:
        what: what it is for, such as "staging buffer of a column reduction".
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
    """Free scratch memory that was taken before."""

    scratch: Scratch


@dataclass(frozen=True, slots=True)
class Output:
    """Allocate what the operation returns.

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
        programs: by the index of the operation; one without a program allocates its outputs alone.
        assumptions: where the rules do not know what a kernel allocates.
    """

    programs: Mapping[int, Program] = field(default_factory=dict)
    assumptions: tuple[Assumption, ...] = ()


def outputs_of(op: Op) -> Iterator[Output]:
    """The steps that allocate what an operation returns, in the order of the trace."""
    return map(Output, range(len(op.births)))


def storages_of(graph: StepGraph, programs: Mapping[int, Program]) -> dict[Scratch, Storage]:
    """A storage for each scratch allocation, numbered after the graph's own."""
    found: dict[Scratch, Storage] = {}
    for index, program in programs.items():
        op = graph.ops[index]
        freed = {step.scratch for step in program if isinstance(step, Free)}
        for step in program:
            if isinstance(step, Take) and step.scratch.nbytes:
                number = len(graph.storages) + len(found)
                is_freed = step.scratch in freed
                found[step.scratch] = _storage(number, step.scratch, op, graph, is_freed)
    return found


def tick_of(op: Op, graph: StepGraph) -> int:
    """The tick at which an operation's program runs: that of its last output."""
    return max((graph.storages[born].birth for born in op.births), default=op.tick)


def _storage(number: int, scratch: Scratch, op: Op, graph: StepGraph, is_freed: bool) -> Storage:
    tick = tick_of(op, graph)
    owner = Owner(OwnerKind.WORKSPACE, scratch.what, tick, tick + 1 if is_freed else None)
    return Storage(
        id=number,
        nbytes=scratch.nbytes,
        birth=tick,
        op=op.index,
        shape=(scratch.nbytes,),
        dtype="uint8",
        device=graph.device,
        owners=[owner],
    )
